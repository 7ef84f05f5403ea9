"""The origin of a value is found, or said to be unknown; it is never guessed."""

import functools
import itertools
import math
import operator

import pytest
import torch

from collectives.pictures import origin
from collectives.pictures.origin import ExpectedCall
from collectives.semantics.calls import CALLS, POINT_TO_POINT, Layout

trace = functools.partial(origin.trace, in_place=True)


def states(row):
    return [cell.state for cell in row]


def labels(row):
    return [cell.label for cell in row]


def tensors(*rows, dtype=None):
    return [torch.tensor(row, dtype=dtype) for row in rows]


BITS = [1 << rank for rank in range(8)]
# op -> values by rank that tell all subsets apart, and the reduction of some of them.
REVEALING = {
    "SUM": ([10**rank for rank in range(8)], sum),
    "AVG": ([10.0**rank for rank in range(6)], lambda values: sum(values) / len(values)),
    "PRODUCT": ([2, 3, 5, 7, 11, 13, 17, 19], math.prod),
    "BOR": (BITS, functools.partial(functools.reduce, operator.or_)),
    "BXOR": (BITS, functools.partial(functools.reduce, operator.xor)),
    "BAND": ([255 ^ bit for bit in BITS], functools.partial(functools.reduce, operator.and_)),
}


@pytest.mark.parametrize("op", REVEALING)
def test_every_subset_of_ranks_is_found(op):
    values, reduce = REVEALING[op]
    subsets = [
        ranks
        for size in range(2, len(values) + 1)
        for ranks in itertools.combinations(range(len(values)), size)
    ]
    for some in (subsets[start : start + 32] for start in range(0, len(subsets), 32)):
        result = torch.tensor([reduce([values[rank] for rank in ranks]) for ranks in some])
        before = tensors(*([value] for value in values), dtype=result.dtype)
        traced = trace(before, [result] * len(values), op=op).after[0]
        assert [cell.ranks for cell in traced] == some
        assert set(states(traced)) == {"reduced"}


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_minimum_and_maximum_come_from_the_rank_that_had_them(op):
    before = tensors([1], [2], [3])
    winner = 0 if op == "MIN" else 2
    origins = trace(before, [before[winner]] * 3, op=op)
    assert [labels(row) for row in origins.after] == [[f"r{winner}"]] * 3
    assert origins.notes == (f"{op}: one rank's value, copied.",)
    assert states(trace(before, [sum(before)] * 3, op=op).after[0]) == ["undefined"]


# What the ranks had, the reduction, what a rank has then -> whose it is. "r?": nobody can say.
REDUCED = {
    "two ranks had the minimum": (tensors([1], [1], [3]), "MIN", [1], "r?"),
    "an average by all leaves one out": (
        tensors(*([10.0**rank] for rank in range(4))),
        "AVG",
        [111 / 4],
        "r0-r2",
    ),
    "a rank adds nothing": (tensors([0], [1], [2], [4]), "SUM", [7], "r?"),
    "2 + 6, and no other sum": (tensors([1], [2], [3], [6]), "SUM", [8], "r1, r3"),
    "1 + 4, or 2 + 3": (tensors([1], [2], [3], [4]), "SUM", [5], "r?"),
    # 4 is 1 + 3 as well, at the other place
    "a sum of another place": (tensors([0, 1], [1, 1], [2, 1], [3, 1]), "SUM", [6, 4], "r? r0-r3"),
    # 3 is 1 + 2, and what rank 1 has at the other place
    "a value of another place": (tensors([1, 5], [2, 3]), "SUM", [3, 8], "r0-r1 r0-r1"),
    "whole numbers wrap around": (
        tensors([100], [101], dtype=torch.int8),
        "SUM",
        [201 - 256],
        "r0-r1",
    ),
}


@pytest.mark.parametrize("case", REDUCED)
def test_a_reduced_value_is_of_the_ranks_that_alone_can_give_it(case):
    before, op, came, expected = REDUCED[case]
    after = [torch.tensor(came, dtype=before[0].dtype)] * len(before)
    assert " ".join(labels(trace(before, after, op=op).after[1])) == expected


def test_equal_values_of_all_ranks_are_not_guessed():
    origins = trace([torch.ones(2)] * 3, [[torch.ones(2)] * 3] * 3, in_place=False)
    assert {cell.state for row in origins.after for cell in row} == {"unknown"}


def test_values_are_untouched_or_overwritten_only_in_place():
    before, after = tensors([1, 2], [3, 4]), tensors([1, 3], [2, 9])
    origins = trace(before, after)
    assert states(origins.before[0] + origins.before[1]) == ["own", *["overwritten"] * 3]
    assert states(origins.after[0]) == ["untouched", "received"]
    assert states(origins.after[1]) == ["received", "undefined"]
    origins = trace(before, after, in_place=False)
    assert states(origins.before[0] + origins.before[1]) == ["own"] * 4
    assert states(origins.after[0]) == ["own", "received"]
    assert states(origins.after[1]) == ["received", "undefined"]


def test_a_wrong_element_is_found_among_right_ones():
    origins = trace(tensors([1, 2], [10, 20]), tensors([11, 2], [11, 22]), op="SUM")
    assert [labels(row) for row in origins.after] == [["r0-r1", "r0"], ["r0-r1", "r0-r1"]]
    assert states(origins.after[0]) == ["reduced", "untouched"]


def test_pieces_are_found_wherever_they_arrive():
    """Of an all_gather that permutes, and of a reduce_scatter that reduces on rank 0 alone."""
    before = tensors([1, 2], [10, 20])
    gathered = trace(before, [before[::-1]] * 2, in_place=False).after[0]
    assert labels(gathered) == ["r1", "r1", "r0", "r0"]
    reduced = trace(before, tensors([11], [20]), op="SUM", in_place=False).after
    assert [labels(row) for row in reduced] == [["r0-r1"], ["r1"]]


def test_what_stayed_is_untouched_though_others_add_up_to_it():
    before = tensors([1], [2], [3])
    cell = trace(before, tensors([6], [2], [3]), op="SUM").after[2][0]
    assert (cell.state, cell.label) == ("untouched", "r2")  # and not 1 + 2


def test_rounding_is_allowed_for_and_no_more():
    before = [torch.tensor([10.0**rank / 3], dtype=torch.float32) for rank in range(4)]
    assert trace(before, [sum(before)] * 4, op="SUM").after[0][0].label == "r0-r3"
    assert states(trace(before, [sum(before) * 1.0001] * 4, op="SUM").after[0]) == ["undefined"]
    coarse = [torch.tensor([10.0**rank], dtype=torch.bfloat16) for rank in range(4)]
    # subtle: 8 bits hold 1100 as 1104, and 1111 as 1112, so the small values may be missing.
    assert states(trace(coarse, [sum(coarse)] * 4, op="SUM").after[0]) == ["unknown"]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "bfloat16", "float64", "complex64"])
def test_values_of_any_dtype_are_traced_and_nan_like_any_other(dtype):
    first = 0 if "int" in dtype or dtype == "bool" else float("nan")
    before = tensors([first], [1], dtype=getattr(torch, dtype))
    assert labels(trace(before, [torch.cat(before)] * 2).after[1]) == ["r0", "r1"]


def test_shapes_may_be_ragged_empty_or_without_dimensions():
    origins = trace(
        [torch.tensor(5), torch.empty(0), None],
        [None, [torch.tensor([[5]]), torch.empty(0)], torch.tensor([5, 6])],
    )
    assert origins.after[0] is None
    assert origins.before[1] == ()
    assert [labels(row) for row in origins.after[1:]] == [["r0"], ["r0", ""]]


def test_text_is_traced_and_objects_are_not():
    origins = trace(["ha", {"a": 1}], [["ha", {"a": 1}]] * 2)
    assert labels(origins.after[1]) == ["r0", "r?"]
    assert "an object" in origins.notes[0]


@pytest.mark.parametrize(
    ("before", "op"),
    [
        ([torch.arange(2)] * 9, None),
        ([torch.arange(33)] * 2, None),
        ([torch.zeros(1).expand(10**9)] * 2, None),  # which is in no memory
        ([torch.ones(1)] * 2, "PREMUL_SUM"),
    ],
    ids=["nine-ranks", "33-elements", "a-billion-elements", "another-reduction"],
)
def test_what_is_too_much_or_cannot_be_undone_is_not_traced(before, op):
    assert trace(before, before, op=op) is None


def promised(name, before, after, root=None, op=None, **fields):
    """The labels of what each rank got from a call that is recorded under this name."""
    spec = CALLS[name]
    expected_call = ExpectedCall(spec, root, **fields)
    origins = origin.trace(
        before, after, op=op, root=root, in_place=spec.in_place, expected=expected_call
    )
    return [None if row is None else labels(row) for row in origins.after]


ZEROS = [torch.zeros(2) for _ in range(3)]
LISTS = [ZEROS] * 3
LONG = [torch.zeros(6)] * 3
EACH = ["r0", "r0", "r1", "r1", "r2", "r2"]
# What the ranks pass and get, all of it zeros: the record alone can say where they came from.
PROMISES = {
    "broadcast": (ZEROS, ZEROS, [["r1", "r1"]] * 3),
    "all_reduce": (ZEROS, ZEROS, [["r0-r2", "r0-r2"]] * 3),
    "reduce": (ZEROS, ZEROS, [["r?", "r?"], ["r0-r2", "r0-r2"], ["r?", "r?"]]),
    "all_gather": (ZEROS, LISTS, [EACH] * 3),
    "all_gather_single": (ZEROS, LONG, [EACH] * 3),
    "gather": (ZEROS, [None, ZEROS, None], [None, EACH, None]),
    "gather_single": (ZEROS, [None, LONG[0], None], [None, EACH, None]),
    "scatter": ([None, ZEROS, None], ZEROS, [["r1", "r1"]] * 3),
    "reduce_scatter": (LISTS, ZEROS, [["r0-r2", "r0-r2"]] * 3),
    "reduce_scatter_single": (LONG, ZEROS, [["r0-r2", "r0-r2"]] * 3),
    "all_to_all": (LISTS, LISTS, [EACH] * 3),
    "all_to_all_single": (LONG, LONG, [EACH] * 3),
}


@pytest.mark.parametrize("name", PROMISES)
def test_of_equal_values_the_record_of_the_call_says_whose_they_are(name):
    before, after, expected = PROMISES[name]
    spec = CALLS[name]
    found = promised(name, before, after, 1 if spec.peer else None, "SUM" if spec.reduces else None)
    assert found == expected


def test_every_collective_with_tensors_has_such_a_promise():
    with_tensors = {
        name
        for name, spec in CALLS.items()
        if spec.buffers and not spec.objects and name not in POINT_TO_POINT
        if all(buffer.layout is not Layout.SEVERAL for buffer in spec.buffers)
    }
    assert PROMISES.keys() == with_tensors


def test_pieces_of_unequal_size_are_promised_to_the_ranks_that_they_are_for():
    before = [torch.tensor([7, 7, 7]), torch.tensor([7])]
    after = [torch.tensor([7]), torch.tensor([7, 7, 7])]
    splits = [((1, 0), (1, 2)), ((2, 1), (0, 1))]
    found = promised("all_to_all_single", before, after, splits=splits)
    assert found == [["r0"], ["r0", "r0", "r1"]]


def test_one_value_that_was_not_promised_makes_all_of_them_a_guess():
    before, after = tensors([1, 5], [3, 5]), tensors([4, 9], [4, 10])
    assert promised("all_reduce", before, after, op="SUM") == [["r0-r1", ""], ["r0-r1", "r0-r1"]]
    after[0][1] = 10
    equal = tensors([0, 5], [0, 5])
    assert promised("all_reduce", equal, tensors([0, 10], [0, 10]), op="SUM")[0][0] == "r0-r1"
    assert promised("all_reduce", equal, tensors([0, 9], [0, 10]), op="SUM")[0][0] == "r?"


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_a_minimum_or_maximum_of_several_ranks_is_of_all_that_had_it(op):
    before = tensors([1, 1], [1, 3], [1, 3])
    after = tensors(*[[1, 1 if op == "MIN" else 3]] * 3)
    expected = ["r0-r2", "r0" if op == "MIN" else "r1-r2"]
    assert promised("all_reduce", before, after, op=op) == [expected] * 3


def test_buffers_that_do_not_fit_together_promise_nothing():
    found = promised("all_reduce", tensors([1], [2, 3]), tensors([3], [3, 3]), op="SUM")
    assert found[0] == ["r0-r1"]


def test_what_a_broadcast_replaces_is_overwritten_though_it_was_equal():
    origins = origin.trace(
        ZEROS, ZEROS, root=1, in_place=True, expected=ExpectedCall(CALLS["broadcast"], 1)
    )
    assert [states(row)[0] for row in origins.before] == ["overwritten", "own", "overwritten"]
    assert [states(row)[0] for row in origins.after] == ["received", "untouched", "received"]
