"""The flags that look at a measured matrix: what they print, and when the exit status is 1."""

import re
from dataclasses import replace

from hand_made import cell, matrix

from collectives.backends.claims import Claim, holds, load, table
from collectives.matrix import claimed, recorded, refused
from collectives.semantics.calls import LESSONS
from tools import claims_table


def report(found, claims=None, probes=None):
    return claimed.report(found, claims or table(), probes)


REFUSED = cell(op="AVG", dtype="int64", state="refuses", detail="RuntimeError: no")


def test_claims_that_hold_give_status_0_and_others_1():
    assert report(matrix(cell(), REFUSED)) == ("2 cells: all as claimed", 0)
    text, status = report(
        matrix(cell(), replace(REFUSED, state="works"), cell(dtype="float64", state="wrong"))
    )
    assert status == 1
    assert re.findall(r"^ *(\w[\w ]*)", text, re.MULTILINE) == ["not as claimed", "worse", "better"]


def test_a_backend_without_claims_gives_status_1_only_if_a_cell_is_broken():
    assert report(matrix(cell(backend="x", state="refuses"))) == ("", 0)
    text, status = report(matrix(cell(backend="x", state="hangs", detail="no answer")))
    assert (text.splitlines()[0], status) == ("neither right nor refused:", 1)
    assert text.splitlines()[1].startswith("  hangs, 1 cell: all_reduce")


def test_each_fault_of_a_backend_without_claims_is_told_once_with_its_detail():
    bug = {"backend": "x", "state": "crashes", "detail": "TypeError: no (mine.py, line 3)"}
    cells = [
        cell("broadcast:noncontiguous", backend="x", state="wrong", detail="got 1"),
        cell("broadcast:root1", backend="x", state="wrong", detail="got 2"),
        cell("gather", **bug),
        cell("gather:root1", **bug),
    ]
    text, _ = report(matrix(*cells))
    assert re.findall(r"(\d cells?): .*?\((got.*?|Type.*?)[,)]", text) == [
        ("1 cell", "got 1"),
        ("1 cell", "got 2"),
        ("2 cells", "TypeError: no (mine.py"),
    ]


def test_a_backend_without_claims_says_each_reason_once_for_which_it_refuses():
    """gloo has claims, which give its reasons."""
    missing = "RuntimeError: No backend type associated with device type cpu"
    bug = "TypeError: Mine.barrier() got an unexpected keyword argument 'opts'"
    cells = [
        cell(backend="x", state="refuses", detail=missing),
        cell("barrier", backend="x", state="refuses", detail=bug),
        cell("reduce", backend="x", state="refuses", detail=missing),
        cell("reduce", backend="x"),
        REFUSED,
    ]
    one, its_calls, its_meaning, other, its_own = refused.by_reason(
        refused.refusals(cells, table())
    )
    assert re.fullmatch(f"all_reduce .* and 1 more: {missing}", one)
    assert its_calls == "  calls: all_reduce, reduce"
    assert re.fullmatch(rf"barrier .* ranks: {re.escape(bug)}", other)
    assert "does not define the method" in its_meaning
    assert "a bug and no refusal" in its_own


def test_a_file_of_your_own_claims_counts(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        '[[claim]]\nbackend = "x"\ndevice = "cpu"\nform = "all_reduce"\nstate = "works"\n'
    )
    assert report(matrix(cell(backend="x", state="refuses")), load(path))[1] == 1
    idle = report(matrix(cell(backend="x")), load(path), probes=[cell("reduce", backend="x")])
    assert (idle[1], "speaks of no cell" in idle[0]) == (1, True)


def test_against_a_record_changed_cells_give_status_1_and_new_cells_0():
    def against(*cells):
        return recorded.report(matrix(cell(), REFUSED), "before", matrix(*cells))

    text, status = against(cell(), REFUSED)
    assert (status, "no cell differs" in text) == (0, True)
    many = [cell(f"form{number}") for number in range(30)]
    text, status = against(cell(), *many)
    assert (status, "gone: all_reduce(AVG, int64)" in text) == (0, True)
    assert "new: form0(SUM, float32)" in text
    assert text.endswith("new: 10 more")
    assert against(cell(), replace(REFUSED, state="works"))[1] == 1
    assert against(cell(state="wrong"), REFUSED)[1] == 1


GAPS = "it has gaps"
NO_AVG = {"form": ("all_reduce",), "ops": ("AVG",), "dtypes": ("int8",), "torch": "<2.14"}
CLAIMS = (
    Claim("x", "cpu", "works", form=("all_reduce", "send", "recv")),
    Claim("x", "cpu", "refuses", "it cannot divide", **NO_AVG),
    Claim("x", "cpu", "wrong", GAPS, form=("all_reduce:noncontiguous",)),
    Claim("y", "cuda", "wrong", GAPS, form=("send:noncontiguous",), world_size=">=2"),
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


def test_every_claim_about_cells_is_in_the_full_table():
    text = claims_table.full()
    assert all(
        claim.reason in text for claim in table() if claim.form and holds(claim.torch, "2.13")
    )
