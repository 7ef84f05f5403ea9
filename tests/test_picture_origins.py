"""The origin of a value is found, or said to be unknown; it is never guessed."""

import functools
import itertools
import operator

import pytest
import torch

from collectives.pictures.origin import trace


def states(row):
    return [cell.state for cell in row]


def labels(row):
    return [cell.label for cell in row]


def tensors(*rows, dtype=None):
    return [torch.tensor(row, dtype=dtype) for row in rows]


FULL = (1 << 8) - 1
# op -> values by rank that tell all subsets apart, and the reduction of some of them.
REVEALING = {
    "SUM": ([10**rank for rank in range(8)], sum),
    "AVG": ([10.0**rank for rank in range(6)], lambda values: sum(values) / len(values)),
    "PRODUCT": (
        [2, 3, 5, 7, 11, 13, 17, 19],
        lambda values: functools.reduce(operator.mul, values),
    ),
    "BOR": (
        [1 << rank for rank in range(8)],
        lambda values: functools.reduce(operator.or_, values),
    ),
    "BXOR": (
        [1 << rank for rank in range(8)],
        lambda values: functools.reduce(operator.xor, values),
    ),
    "BAND": (
        [FULL ^ (1 << rank) for rank in range(8)],
        lambda values: functools.reduce(operator.and_, values),
    ),
}


@pytest.mark.parametrize("op", REVEALING)
def test_every_subset_of_ranks_is_found(op):
    values, reduce = REVEALING[op]
    subsets = [
        ranks
        for size in range(2, len(values) + 1)
        for ranks in itertools.combinations(range(len(values)), size)
    ]
    for start in range(0, len(subsets), 32):
        results = [
            torch.tensor(
                [reduce([values[rank] for rank in ranks]) for ranks in subsets[start : start + 32]]
            )
        ]
        traced = trace(
            tensors(*([value] for value in values), dtype=results[0].dtype),
            results * len(values),
            op=op,
        ).after[0]
        assert [cell.ranks for cell in traced] == subsets[start : start + 32]
        assert set(states(traced)) == {"reduced"}


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_minimum_and_maximum_come_from_the_rank_that_had_them(op):
    before = tensors([1], [2], [3])
    winner = 0 if op == "MIN" else 2
    origins = trace(before, [before[winner]] * 3, op=op)
    assert [labels(row) for row in origins.after] == [[f"r{winner}"]] * 3
    assert "leave no trace" in origins.notes[0]


def test_a_minimum_that_two_ranks_had_is_not_guessed():
    origins = trace(tensors([1], [1], [3]), tensors([1], [1], [1]), op="MIN")
    assert [labels(row) for row in origins.after] == [["r?"]] * 3
    assert states(origins.after[2]) == ["unknown"]


def test_an_average_that_divides_by_all_shows_that_a_rank_is_left_out():
    before = tensors(*([10.0**rank] for rank in range(4)))
    assert trace(before, [sum(before[:3]) / 4] * 4, op="AVG").after[0][0].label == "r0-2"


def test_a_rank_that_adds_nothing_may_have_taken_part_or_not():
    before = tensors([0], [1], [2], [3])
    cell = trace(before, [sum(before)] * 4, op="SUM").after[1][0]
    assert (cell.state, cell.ranks, cell.perhaps, cell.label) == (
        "reduced",
        (1, 2, 3),
        (0,),
        "r0?,1-3",
    )


def test_sums_that_several_subsets_give_are_not_guessed():
    # 2 + 6, and no other sum
    origins = trace(tensors([1], [2], [3], [6]), tensors([8], [8], [8], [8]), op="SUM")
    assert origins.after[0][0].label == "r1,3"
    # 1 + 4, or 2 + 3
    origins = trace(tensors([1], [2], [3], [4]), tensors([5], [5], [5], [5]), op="SUM")
    assert states(origins.after[0]) == ["unknown"]
    assert "More than one answer" in origins.notes[0]


def test_equal_values_of_all_ranks_are_not_guessed():
    origins = trace([torch.ones(2)] * 3, [[torch.ones(2)] * 3] * 3)
    assert {cell.state for row in origins.after for cell in row} == {"unknown"}
    assert "More than one answer" in origins.notes[0]


def test_values_are_untouched_or_overwritten_only_in_place():
    before, after = tensors([1, 2], [3, 4]), tensors([1, 3], [2, 9])
    origins = trace(before, after)
    assert [states(row) for row in origins.before] == [
        ["own", "overwritten"],
        ["overwritten", "overwritten"],
    ]
    assert [states(row) for row in origins.after] == [
        ["untouched", "received"],
        ["received", "undefined"],
    ]
    origins = trace(before, after, in_place=False)
    assert [states(row) for row in origins.before] == [["own", "own"], ["own", "own"]]
    assert [states(row) for row in origins.after] == [
        ["own", "received"],
        ["received", "undefined"],
    ]


def test_lists_of_tensors_are_not_taken_for_one_buffer():
    pieces = [tensors([1], [2]), tensors([3], [4])]
    assert states(trace(pieces, [tensors([1], [3]), tensors([2], [4])]).after[0]) == [
        "own",
        "received",
    ]


def test_a_wrong_element_is_found_among_right_ones():
    origins = trace(tensors([1, 2], [10, 20]), tensors([11, 2], [11, 22]), op="SUM")
    assert [labels(row) for row in origins.after] == [["r0-1", "r0"], ["r0-1", "r0-1"]]
    assert states(origins.after[0]) == ["reduced", "untouched"]


def test_sums_of_other_places_do_not_stand_in_the_way():
    before = tensors([0, 1], [1, 1], [2, 1], [3, 1])  # 4 is 1 + 3 as well, at the other place
    assert trace(before, [sum(before)] * 4, op="SUM").after[0][1].label == "r0-3"


def test_a_value_that_a_rank_has_at_another_place_does_not_stand_in_the_way():
    before = tensors([1, 5], [2, 3])  # 3 is 1 + 2, and what rank 1 has at the other place
    assert trace(before, [sum(before)] * 2, op="SUM").after[0][0].label == "r0-1"


def test_what_stayed_is_untouched_though_others_add_up_to_it():
    before = tensors([1], [2], [3])
    cell = trace(before, tensors([6], [2], [3]), op="SUM").after[2][0]
    assert (cell.state, cell.label) == ("untouched", "r2")  # and not 1 + 2


def test_rounding_is_allowed_for_and_no_more():
    before = [torch.tensor([10.0**rank / 3], dtype=torch.float32) for rank in range(4)]
    assert trace(before, [sum(before)] * 4, op="SUM").after[0][0].label == "r0-3"
    assert states(trace(before, [sum(before) * 1.0001] * 4, op="SUM").after[0]) == ["undefined"]
    coarse = [torch.tensor([10.0**rank], dtype=torch.bfloat16) for rank in range(4)]
    # subtle: 8 bits hold 1100 as 1104, and 1111 as 1112, so the small values may be missing.
    assert states(trace(coarse, [sum(coarse)] * 4, op="SUM").after[0]) == ["unknown"]


def test_whole_numbers_wrap_around():
    before = tensors([100], [101], dtype=torch.int8)
    assert trace(before, [before[0] + before[1]] * 2, op="SUM").after[0][0].label == "r0-1"


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_values_of_any_dtype_are_traced(dtype):
    before = tensors([0], [1], dtype=dtype)
    assert labels(trace(before, [torch.cat(before)] * 2).after[0]) == ["r0", "r1"]


def test_nan_is_a_value_like_any_other():
    before = tensors([float("nan")], [1.0])
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
    assert "neither a number nor text" in origins.notes[0]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ([torch.arange(2)] * 9, "9 ranks: no more than 8"),
        ([torch.arange(2)] * 1000, "1000 ranks"),
        ([torch.arange(33)] * 2, "33 elements in one rank: no more than 32"),
        ([torch.zeros(1).expand(10**9)] * 2, "1000000000 elements"),  # in no memory
    ],
    ids=["nine-ranks", "a-thousand-ranks", "33-elements", "a-billion-elements"],
)
def test_too_much_is_summarised(before, says):
    origins = trace(before, before)
    assert origins.after == ()
    assert says in origins.notes[0]
    assert origins.summary[0].startswith("rank 0: [0")
    assert len(origins.summary) <= 17


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([], []), "before has 0 ranks"),
        (([None], [None, None]), "before has 1 ranks and after 2"),
        ((torch.zeros(2), [None, None]), "before is a Tensor: give a list"),
        (([None], [None], {"root": 1}), "root=1 is not one of the 1 ranks"),
        (([None], [None], {"root": True}), "root=True"),
        (([None], [None], {"op": "PREMUL_SUM"}), "use one of SUM, AVG"),
    ],
    ids=["no-ranks", "ranks-differ", "no-list", "root-outside", "root-no-number", "unknown-op"],
)
def test_nonsense_is_refused_with_the_way_out(arguments, says):
    before, after, *options = arguments
    with pytest.raises(ValueError, match=says):
        trace(before, after, **(options[0] if options else {}))
