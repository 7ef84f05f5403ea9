"""The claims: which one is about a cell, and how a matrix differs from them."""

import json
import re

import pytest
from hand_made import cell, matrix

from collectives.backends import claims
from collectives.backends.claims import BROKEN, Claim, expected, holds, load, parse
from collectives.matrix.claimed import differences
from collectives.semantics.calls import OPS

DTYPES = ("int64", "float32", "float64")


def true_cells():
    """What gloo really does, in little: AVG of integers is refused, all else works."""
    for dtype in DTYPES:
        for op in ("SUM", "AVG"):
            refused = (op, dtype) == ("AVG", "int64")
            detail = "RuntimeError: result type Float can't be cast" if refused else ""
            yield cell(dtype=dtype, op=op, state="refuses" if refused else "works", detail=detail)


WORKS = Claim("gloo", "cpu", "works", form=("all_reduce",))
NO_AVG = Claim(
    "gloo",
    "cpu",
    "refuses",
    "it divides in the tensor's type",
    form=("all_reduce",),
    ops=("AVG",),
    dtypes=("int64",),
)
TRUE = (WORKS, NO_AVG)


def test_a_matrix_that_is_as_claimed_has_no_findings():
    cells = list(true_cells())
    assert differences(matrix(*cells), TRUE, probes=cells) == []


def test_a_claim_of_a_refusal_that_does_not_happen_is_found_as_better():
    lie = Claim("gloo", "cpu", "refuses", "no doubles", form=("all_reduce",), dtypes=("float64",))
    (found,) = differences(matrix(*true_cells()), (*TRUE, lie))
    assert (found.kind, found.claim, len(found.cells)) == ("better", lie, 2)
    assert "better, 2 cells: all_reduce(SUM, float64) on gloo/cpu, 2 ranks works" in str(found)
    assert "no doubles" in str(found)


def test_a_refusal_that_nobody_claimed_is_found_as_worse():
    (found,) = differences(matrix(*true_cells()), (WORKS,))
    assert (found.kind, found.claim, found.cells[0]["op"]) == ("worse", WORKS, "AVG")
    cell_in_words = "all_reduce(AVG, int64) on gloo/cpu, 2 ranks"
    assert f"worse, 1 cell: {cell_in_words} refuses (RuntimeError: result type" in str(found)


def test_where_only_refusals_are_claimed_a_refusal_without_a_claim_is_found():
    (found,) = differences(
        matrix(cell(), cell("reduce", state="refuses", detail="RuntimeError: no")), (NO_AVG,)
    )
    assert found.kind == "unclaimed"
    assert "no claim says so" in str(found)


def test_what_became_better_or_worse_than_claimed():
    gaps = "all_reduce:noncontiguous"
    wrong = Claim("gloo", "cpu", "wrong", "gaps", form=(gaps,))
    for found, ours, kinds in (
        *((cell(backend="x", state=state), TRUE, []) for state in ("works", "refuses")),
        *((cell(backend="x", state=state), TRUE, ["broken"]) for state in BROKEN),
        *((cell("all_reduce", "int64", "AVG", state), TRUE, ["worse"]) for state in BROKEN),
        (cell(gaps, state="refuses"), (WORKS, wrong), ["better"]),
        (cell(state="unavailable", detail="no GPU"), TRUE, []),
    ):
        assert [one.kind for one in differences(matrix(found), ours)] == kinds, found


def test_a_claim_that_matches_no_cell_is_an_error_on_a_backend_that_is_probed():
    idle = Claim("gloo", "cpu", "refuses", "why", form=("all_reduce",), dtypes=("int65",))
    misspelt = Claim("gloo", "cpu", "works", form=("all_reduce", "all_redcue"))
    for claim, word in ((idle, "int65"), (misspelt, "'all_redcue'")):
        (found,) = differences(matrix(cell()), (WORKS, claim), probes=[cell()])
        assert (found.kind, word in str(found)) == ("unprobed", True)
    other = Claim("nccl", "cuda", "works", form=("all_reduce",))
    assert differences(matrix(cell()), (WORKS, other), probes=[cell()]) == []


def test_findings_about_one_claim_are_one_finding_and_worse_ones_come_first():
    cells = [cell(op="AVG", dtype="int64"), *(cell(dtype=dtype, state="wrong") for dtype in DTYPES)]
    found = differences(matrix(*cells), TRUE)
    assert [(one.kind, len(one.cells)) for one in found] == [("worse", 3), ("better", 1)]


def test_the_most_specific_claim_decides():
    variant = Claim("gloo", "cpu", "wrong", "gaps", form=("all_reduce:noncontiguous",))
    every = (variant, NO_AVG, WORKS)
    assert expected(cell("all_reduce:noncontiguous"), "2.13.0", every) is variant
    assert expected(cell("all_reduce:async"), "2.13.0", every) is WORKS
    assert expected(cell("all_reduce:async", "int64", "AVG"), "2.13.0", every) is NO_AVG
    assert expected(cell("broadcast"), "2.13.0", every) is None


def test_two_claims_that_contradict_each_other_are_an_error():
    rival = Claim("gloo", "cpu", "refuses", "why", form=("all_reduce",))
    with pytest.raises(ValueError, match="contradict"):
        expected(cell(), "2.13.0", (WORKS, rival))
    assert [
        found.kind for found in differences(matrix(cell(), cell(dtype="int64")), (WORKS, rival))
    ] == ["contradiction"]


def test_our_own_claims_never_contradict_each_other():
    forms = {form for claim in claims.table() for form in claim.form}
    dtypes = {dtype for claim in claims.table() for dtype in claim.dtypes} | {"float32"}
    for form in forms:
        for dtype in dtypes:
            for op in (*OPS, None):
                expected(cell(form, dtype, op), "2.13.0")


def test_a_claim_about_some_versions_overrides_one_about_all():
    old = Claim("gloo", "cpu", "refuses", "not yet", form=("all_reduce",), torch="<=2.6")
    assert expected(cell(), "2.6.0", (old, WORKS)) is old
    assert expected(cell(), "2.7.0", (old, WORKS)) is WORKS


def test_a_claim_holds_for_its_versions_of_torch_only():
    old = Claim("gloo", "cpu", "refuses", "not yet", form=("all_to_all",), torch="<2.12")
    new = Claim("gloo", "cpu", "works", form=("all_to_all",), torch=">=2.12")
    assert expected(cell("all_to_all"), "2.11.0+cpu", (old, new)) is old
    assert expected(cell("all_to_all"), "2.13.0", (old, new)) is new


def test_a_claim_holds_for_its_world_sizes_only():
    uneven = Claim(
        "gloo", "cpu", "refuses", "one shape", form=("all_reduce:uneven",), world_size=">=2"
    )
    assert expected(cell("all_reduce:uneven", world_size=1), "2.13.0", (WORKS, uneven)) is WORKS
    assert expected(cell("all_reduce:uneven", world_size=12), "2.13.0", (WORKS, uneven)) is uneven
    many = Claim("gloo", "cpu", "refuses", "one shape", form=("all_reduce",), world_size=">=9")
    assert differences(matrix(cell()), (WORKS, many), probes=[cell()]) == []


@pytest.mark.parametrize(
    ("versions", "torch", "holding"),
    [
        ("", "2.13.0", True),
        (">=2.11", "2.13.0+cpu", True),
        (">=2.11", "2.9.1", False),
        (">=2.11,<2.13", "2.13.0", False),
        ("<=2.13", "2.13.1", True),
        ("==2.13", "2.13.1+cu130", True),
        ("!=2.13", "2.13.0", False),
        (">2.13", "2.14.0a0+git12", True),
    ],
)
def test_versions_are_numbers_not_text(versions, torch, holding):
    assert holds(versions, torch) is holding


def test_another_file_adds_claims_and_overrides_ours(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("""
        [[claim]]
        backend = "x"
        device = "cpu"
        form = "all_reduce"
        state = "works"
        [[claim]]
        backend = "gloo"
        device = "cpu"
        form = "all_reduce"
        ops = "AVG"
        dtypes = ["int64"]
        state = "works"
    """)
    every = load(path)
    assert expected(cell(backend="x"), "2.13.0", every).state == "works"
    assert expected(cell(op="AVG", dtype="int64"), "2.13.0", every).state == "works"
    assert expected(cell(op="AVG", dtype="int32"), "2.13.0", every).state == "refuses"
    assert load() == claims.table()


# An invalid row: what a valid one is changed to, and what the error says.
ROW = {"backend": "x", "device": "cpu", "state": "works", "form": "a"}
INVALID = [
    ({"device": "", "state": ""}, "claim 1 lacks device, state"),
    ({"form": None}, "speaks of nothing"),
    ({"dtype": "b"}, "dtype is not known"),
    ({"state": "fails", "reason": "b"}, "'fails' is not one of works, refuses"),
    ({"state": "refuses"}, "gives no reason"),
    ({"ops": "sum"}, "'sum' is no reduction"),
    ({"form": []}, "should be a list of names"),
    ({"torch": "2.13"}, "is not understood"),
    ({"world_size": "two"}, "is not understood"),
    ({"backend": 3}, "backend = 3 should be text"),
]


def test_an_invalid_file_of_claims_is_an_error_that_says_what_is_wrong(tmp_path):
    texts = [
        ("claim = 1", "[[claim]] rows and nothing else"),
        ("[[claim", "is not a file of claims"),
        ("[[claims]]\nbackend = 'gloo'", "nothing else"),
    ]
    for change, words in INVALID:
        row = {name: value for name, value in (ROW | change).items() if value is not None}
        lines = [f"{name} = {json.dumps(value)}" for name, value in row.items()]
        texts.append(("\n".join(["[[claim]]", *lines]), words))
    for text, words in texts:
        with pytest.raises(ValueError, match=re.escape(words)):
            parse(text, "mine.toml")
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_a_step_is_refused_on_the_backend_and_in_the_versions_of_its_claim_alone(monkeypatch):
    never = Claim("x", "cpu", "hangs", "no tags", steps=("tags",))
    older = Claim("x", "cpu", "refuses", "not yet", steps=("new",), torch="<1.0")
    monkeypatch.setattr(claims, "table", lambda: (never, older))
    assert claims.refusal("tags", "x", "cpu") == "x on cpu: no tags"
    assert claims.refusal("tags", "x", "cuda") is None
    assert claims.refusal("new", "x", "cpu") is None
    assert claims.refusal("send_recv", "x", "cpu") is None
