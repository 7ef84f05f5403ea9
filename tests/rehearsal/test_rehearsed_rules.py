"""Each rule of NCCL that the rehearsal plays stands in torch's wheel, as cuda.cpp quotes it."""

import re
from pathlib import Path

import pytest
import torch
from repository import ROOT

SOURCE = (ROOT / "tests" / "rehearsal" / "cuda.cpp").read_text()
QUOTED = re.findall(r'([\w/]+\.(?:hpp|py)):\s+(?:// )?"(.+)"', SOURCE)


def one_line(text: str) -> str:
    return " ".join(text.replace("//", " ").split())


def test_there_are_quotations():
    assert len(QUOTED) == len(re.findall(r"\w\.(?:hpp|py):", SOURCE)) == 5


@pytest.mark.parametrize(("name", "words"), QUOTED)
def test_a_rule_is_quoted_from_torch(name, words):
    (file,) = Path(torch.__file__).parent.rglob(name)
    assert words in one_line(file.read_text())
