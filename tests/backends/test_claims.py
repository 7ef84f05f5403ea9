"""The claims: which one is about a cell, and how a matrix differs from them."""

import json
import re
from pathlib import Path

import pytest
import torch
from hand_made import cell, matrix

from collectives.backends import availability, claims
from collectives.backends.claims import BROKEN, Claim, expected, holds, load, parse
from collectives.matrix import selection
from collectives.matrix.claimed import claims_without_cells, differences
from collectives.matrix.selection import cells
from collectives.semantics.calls import OPS

DTYPES = ("int64", "float32", "float64")


def true_cells():
    """What gloo really does, in little: AVG of integers is refused, all else works."""
    for dtype in DTYPES:
        for op in ("SUM", "AVG"):
            refused = (op, dtype) == ("AVG", "int64")
            detail = "RuntimeError: result type Float can't be cast" if refused else ""
            yield cell(dtype=dtype, op=op, state="refuses" if refused else "works", detail=detail)


def claim(state="works", reason="", form="all_reduce", **fields):
    return Claim("gloo", "cpu", state, reason, form=(form,), **fields)


WORKS = claim()
NO_AVG = claim("refuses", "it divides in its own type", ops=("AVG",), dtypes=("int64",))
TRUE = (WORKS, NO_AVG)
NO_DOUBLES = claim("refuses", "no doubles", dtypes=("float64",))
GAPS = claim("wrong", "gaps", "all_reduce:noncontiguous")


def test_what_differs_from_the_claims_is_found_once_for_each_claim_and_worse_comes_first():
    cells = list(true_cells())
    assert differences(matrix(*cells), TRUE, probes=cells) == []
    (found,) = differences(matrix(*cells), (*TRUE, NO_DOUBLES))
    assert found.kind == "better"
    text = "better, 2 cells: all_reduce(SUM, float64) on gloo/cpu, 2 ranks works; claimed: refuses"
    assert found.text.startswith(f"{text}, because no doubles")
    (found,) = differences(matrix(*cells), (WORKS,))
    assert found.kind == "worse"
    cell_in_words = "all_reduce(AVG, int64) on gloo/cpu, 2 ranks"
    assert f"worse, 1 cell: {cell_in_words} refuses (RuntimeError: result type" in found.text
    wrong = (cell(dtype=dtype, state="wrong") for dtype in DTYPES)
    found = differences(matrix(cell(op="AVG", dtype="int64"), *wrong), TRUE)
    starts = [one.text.partition(":")[0] for one in found]
    assert starts == ["worse, 3 cells", "better, 1 cell"]


def test_what_became_better_or_worse_than_claimed():
    for found, ours, kinds in (
        *((cell(backend="x", state=state), TRUE, []) for state in ("works", "refuses")),
        *((cell(backend="x", state=state), TRUE, ["broken"]) for state in BROKEN),
        *((cell("all_reduce", "int64", "AVG", state), TRUE, ["worse"]) for state in BROKEN),
        (cell("reduce", state="refuses"), (NO_AVG,), ["unclaimed"]),
        (cell("all_reduce:noncontiguous", state="refuses"), (WORKS, GAPS), ["better"]),
        (cell(state="unavailable", detail="no GPU"), TRUE, []),
    ):
        assert [one.kind for one in differences(matrix(found), ours)] == kinds, found


def test_a_claim_that_matches_no_cell_is_an_error_on_a_backend_that_is_probed():
    idle = claim("refuses", "why", dtypes=("int65",))
    misspelt = Claim("gloo", "cpu", "works", form=("all_reduce", "all_redcue"))
    for other, word in ((idle, "int65"), (misspelt, "'all_redcue'")):
        (found,) = differences(matrix(cell()), (WORKS, other), probes=[cell()])
        assert (found.kind, word in found.text) == ("unprobed", True)
    elsewhere = Claim("nccl", "cuda", "works", form=("all_reduce",))
    many = claim("refuses", "one shape", world_size=">=9")
    assert differences(matrix(cell()), (WORKS, elsewhere, many), probes=[cell()]) == []


def test_each_of_our_own_claims_is_about_cells():
    """A run of the matrix looks only at those of its reader."""
    probes = list(cells(selection.columns(None), [2]))  # also of calls that this torch lacks
    assert claims_without_cells(claims.table(), probes) == []
    claimed = {one.backend for one in claims.table() if one.form}
    assert claimed <= {one.backend for one in probes}
    without = availability.BACKENDS.keys() - claimed
    assert not without, f"no claim in claims.toml: {without}: see CONTRIBUTING, A backend"


@pytest.mark.skipif(not holds(">=2.13", torch.__version__), reason="read in torch 2.13")
def test_a_claim_about_gpus_says_where_it_was_read_and_torch_still_has_the_words_that_it_quotes():
    wheel = Path(torch.__file__).parent
    # The headers of c10d, and torch's own Python. The .cpp files are not in a wheel. Those of gloo
    # have a folder since torch 2.14; nccl2 has one, too, with other files of the same names.
    headers = wheel / "include/torch/csrc/distributed/c10d"
    paths = [*headers.glob("*.hpp"), *headers.glob("gloo/*.hpp")]
    texts = {path.name: path for path in paths}
    texts["distributed_c10d.py"] = wheel / "distributed/distributed_c10d.py"
    quoted = set()
    for one in claims.table():
        assert bool(one.read) == (one.device == "cuda"), str(one)
        place, *words = one.read.split('"')[:2]
        path = texts.get(place.rstrip(": "))
        if words and path and holds(one.torch, torch.__version__):
            assert words[0] in path.read_text(encoding="utf-8"), one.read
            quoted.add(path.name)
    files = {"NCCLUtils.hpp", "ProcessGroupGlooDetail.hpp", "Utils.hpp"}
    assert quoted == {*files, "distributed_c10d.py"}


def test_on_gpus_something_is_claimed_of_every_cell():
    places = [("nccl", "cuda"), ("gloo", "cuda")]
    open_cells = [one for one in cells(places, [1, 2, 3]) if not expected(one, "2.14.1")]
    assert open_cells == []


OLD = claim("refuses", "not yet", torch="<=2.6")
UNEVEN = claim("refuses", "one shape", "all_reduce:uneven", world_size=">=2")
EVERY = (GAPS, NO_AVG, OLD, UNEVEN, WORKS)


@pytest.mark.parametrize(
    ("found", "torch", "closest"),
    [
        (cell("all_reduce:noncontiguous"), "2.13.0", GAPS),
        (cell("all_reduce:async"), "2.13.0", WORKS),
        (cell("all_reduce:async", "int64", "AVG"), "2.13.0", NO_AVG),
        (cell("broadcast"), "2.13.0", None),
        (cell(), "2.6.0", OLD),
        (cell(), "2.7.0+cpu", WORKS),
        (cell("all_reduce:uneven", world_size=1), "2.13.0", WORKS),
        (cell("all_reduce:uneven", world_size=12), "2.13.0", UNEVEN),
    ],
)
def test_the_claim_that_describes_a_cell_most_closely_decides(found, torch, closest):
    assert expected(found, torch, EVERY) is closest


def test_two_claims_that_contradict_each_other_are_an_error():
    rival = claim("refuses", "why")
    with pytest.raises(ValueError, match="contradict"):
        expected(cell(), "2.13.0", (WORKS, rival))
    assert [
        found.kind for found in differences(matrix(cell(), cell(dtype="int64")), (WORKS, rival))
    ] == ["contradiction"]


def test_our_own_claims_never_contradict_each_other():
    forms = {form for one in claims.table() for form in one.form}
    dtypes = {dtype for one in claims.table() for dtype in one.dtypes} | {"float32"}
    for form in forms:
        for dtype in dtypes:
            for op in (*OPS, None):
                expected(cell(form, dtype, op), "2.13.0")


@pytest.mark.parametrize(
    ("versions", "torch", "holding"),
    [
        ("", "2.13.0", True),
        (">=2.13", "2.13.0+cpu", True),
        (">=2.13", "2.9.1", False),
        (">=2.13,<2.14", "2.14.0", False),
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
    assert load() == claims.table() == parse(claims.OURS.read_text("utf-8"), "claims.toml")


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
