"""The generated parts of the documentation are what `make docs` makes."""

import re
from dataclasses import replace

import pytest
import torch

from collectives.backends import claims
from tests.support.repository import ROOT
from tools.docs import SECTIONS

CHEAP = {
    name: section for name, section in SECTIONS.items() if not (section.slow or section.sampled)
}


def compared(section, text: str) -> str:
    """Of a plot what it says: where its lines run in the file depends on the version of matplotlib."""
    if section.name.endswith("-plot"):
        return re.search(r'aria-label="(.*?)"', text)[1]
    return text.strip()


@pytest.mark.skipif(
    claims.holds("<=2.11", torch.__version__), reason="there gloo has no all_to_all of lists"
)
def test_every_part_is_the_one_that_make_docs_makes():
    """Others are compared row by row: see test_training, test_mistakes and test_ranks_page."""
    pytest.importorskip("matplotlib")
    old = [
        f"{section.path} is out of date: run make docs ARGS={name}"
        for name, section in CHEAP.items()
        if compared(section, section.read()) != compared(section, section.make())
    ]
    assert not old, "\n".join(old)


def test_the_minutes_of_each_table_are_the_sum_of_its_lines():
    readme = SECTIONS["lessons"].read()
    parts = re.findall(r"^\| \*\*[^|]*\| *\| \*\*(\d+)\*\* \|\n((?:\| \[.*\n)+)", readme, re.M)
    assert [int(whole) for whole, _ in parts] == [
        sum(map(int, re.findall(r"(\d+) \|$", lines, re.M))) for _, lines in parts
    ]
    assert f'"My DDP script" takes {parts[0][0]} minutes' in readme
    assert len(parts) == 2


def test_a_page_without_the_marks_is_an_error():
    with pytest.raises(ValueError, match=r"backends\.md lacks the lines"):
        replace(SECTIONS["works"], name="unknown").read()


def test_symmetric_memory_needs_a_gpu_as_its_page_says():
    symmetric_memory = pytest.importorskip("torch.distributed._symmetric_memory")
    with pytest.raises(RuntimeError) as error:
        symmetric_memory.empty(4, device="cpu")
    page = " ".join((ROOT / "docs" / "which-nccl.md").read_text(encoding="utf-8").split())
    assert str(error.value).splitlines()[0] in page
