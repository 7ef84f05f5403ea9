"""The flags that look at a measured matrix: what they print, and when the exit status is 1."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import cell, matrix

from collectives.backends.claims import Claim, holds, table
from collectives.lesson.make import claims_table
from collectives.matrix import compare_command
from collectives.spec.calls import LESSONS

ROOT = Path(__file__).parent.parent

REFUSED = cell(op="AVG", dtype="int64", state="refuses", detail="RuntimeError: no")


def test_html_writes_the_page(tmp_path):
    assert compare_command.html(matrix(cell()), tmp_path / "page.html") == ("", 0)
    assert "<table" in (tmp_path / "page.html").read_text()
    with pytest.raises(ValueError, match="cannot be written"):
        compare_command.html(matrix(cell()), tmp_path / "none" / "page.html")


def test_claims_that_hold_give_status_0():
    assert compare_command.claims(matrix(cell(), REFUSED)) == ("2 cells: all as claimed", 0)


def test_claims_that_do_not_hold_give_status_1():
    text, status = compare_command.claims(
        matrix(cell(), REFUSED | {"state": "works"}, cell(dtype="float64", state="wrong"))
    )
    assert status == 1
    assert [line.split(",")[0] for line in text.splitlines()] == [
        "not as claimed:",
        "  worse",
        "  better",
    ]


def test_a_backend_without_claims_gives_status_1_only_if_a_cell_is_broken():
    assert compare_command.claims(matrix(cell(backend="x", state="refuses"))) == ("", 0)
    assert compare_command.claims(matrix(cell(backend="x", state="hangs")))[1] == 1


def test_a_file_of_your_own_claims_counts(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        '[[claim]]\nbackend = "x"\ndevice = "cpu"\nform = "all_reduce"\nstate = "works"\n'
    )
    assert compare_command.claims(matrix(cell(backend="x", state="refuses")), path)[1] == 1
    idle = compare_command.claims(
        matrix(cell(backend="x")), path, probes=[cell("reduce", backend="x")]
    )
    assert idle[1] == 1
    assert "speaks of no cell" in idle[0]


def test_against_a_record_changed_cells_give_status_1_and_new_cells_0(tmp_path):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(matrix(cell(), REFUSED)))
    assert compare_command.against(matrix(cell(), REFUSED), str(path))[1] == 0
    assert "no cell differs" in compare_command.against(matrix(cell(), REFUSED), str(path))[0]
    text, status = compare_command.against(matrix(cell(), cell(dtype="int8")), str(path))
    assert (
        status,
        "gone: all_reduce(AVG, int64)" in text,
        "new: all_reduce(SUM, int8)" in text,
    ) == (0, True, True)
    assert compare_command.against(matrix(cell(), REFUSED | {"state": "works"}), str(path))[1] == 1
    assert compare_command.against(matrix(cell(state="wrong"), REFUSED), str(path))[1] == 1


def test_many_new_cells_are_counted(tmp_path):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(matrix()))
    text, _ = compare_command.against(
        matrix(*(cell(f"form{number}") for number in range(30))), str(path)
    )
    assert len(text.splitlines()) == 22
    assert text.endswith("new: 10 more")


def test_against_the_documentation_prints_its_links_and_gives_status_0():
    text, status = compare_command.against(
        matrix(cell("all_to_all", op=None, backend="nowhere", state="unavailable")), "docs"
    )
    assert status == 0
    assert "0 differences" in text
    assert text.count("https://") == 2


@pytest.mark.parametrize(
    ("part", "text"),
    [(claims_table.FULL, claims_table.full()), (claims_table.SHORT, claims_table.short())],
    ids=["docs/backends.md", "README.md"],
)
def test_the_tables_of_claims_are_up_to_date(part, text):
    assert part.read() == text, f"run python -m {part.module}"


CLAIMS = (
    Claim("x", "cpu", "works", form=("all_reduce", "send", "recv")),
    Claim(
        "x",
        "cpu",
        "refuses",
        "it cannot divide",
        form=("all_reduce",),
        ops=("AVG",),
        dtypes=("int8",),
        torch="<2.14",
    ),
    Claim("x", "cpu", "wrong", "it has gaps", form=("all_reduce:noncontiguous",)),
    Claim("y", "cuda", "wrong", "it has gaps", form=("send:noncontiguous",), world_size=">=2"),
    Claim("y", "cuda", "hangs", "no cell", steps=("a_step",)),
)


def test_the_full_table_follows_the_claims():
    assert claims_table.full(CLAIMS).splitlines() == [
        "| call | x, cpu | y, cuda |",
        "| --- | --- | --- |",
        "| `all_reduce` | works, except 1-2 | - |",
        "| `send` | works | 3 |",
        "| `recv` | works | - |",
        "",
        "### Exceptions on x, cpu",
        "",
        "1. **refuses** AVG for int8 (torch <2.14): it cannot divide",
        "2. **wrong** noncontiguous: it has gaps",
        "",
        "### Exceptions on y, cuda",
        "",
        "3. **wrong** noncontiguous (ranks >=2): it has gaps",
    ]


def test_the_short_table_counts_the_exceptions_where_something_works():
    rows = claims_table.short(CLAIMS).splitlines()
    assert "| `send`, `recv` | works |" in rows
    assert "| `all_reduce` | works; 1 refused, 1 **wrong** |" in rows
    assert "| `barrier` | - |" in rows
    assert len(rows) == 2 + len(LESSONS)


def test_numbers_that_follow_each_other_are_a_range():
    assert claims_table._ranges([1, 2, 3, 5, 7, 8]) == "1-3, 5, 7-8"
    assert claims_table._ranges([]) == ""


def test_a_page_without_a_place_for_the_table_is_an_error():
    with pytest.raises(ValueError, match="lacks the lines"):
        claims_table.FULL.updated("# A page", "")


def test_the_table_leaves_out_what_versions_did_that_this_package_does_not_run_on():
    works = Claim("gloo", "cpu", "works", form=("reduce",))
    old = Claim("gloo", "cpu", "refuses", "not yet", form=("reduce",), torch="<=2.6")
    assert claims_table.full((works, old)) == claims_table.full((works,))
    newer = replace(old, torch="<=2.14")
    assert "1. **refuses** (torch <=2.14): not yet" in claims_table.full((works, newer))
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"torch>={claims_table.VERSIONS[0]}"' in pyproject


def test_every_claim_about_cells_is_in_the_full_table():
    text = claims_table.full()
    assert all(
        claim.reason in text for claim in table() if claim.form and holds(claim.torch, "2.13")
    )
