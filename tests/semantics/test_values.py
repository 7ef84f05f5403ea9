"""The numbers that ranks hold, and how many: they tell reductions and ranks apart."""

import torch

from collectives.semantics.form import Case
from collectives.semantics.values import reduced


def test_two_ranks_hold_1_and_3_then_4_and_2():
    found = {
        op: reduced(op, 2, (2,), torch.int64).tolist() for op in ("SUM", "PRODUCT", "MIN", "MAX")
    }
    assert found == {"SUM": [4, 6], "PRODUCT": [3, 8], "MIN": [1, 2], "MAX": [3, 4]}


def test_five_places_tell_all_reductions_of_integers_apart():
    ops = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
    for size in (3, 4, 5):
        found = {tuple(reduced(op, size, (5,), torch.int64).tolist()) for op in ops}
        assert len(found) == len(ops), size


def test_uneven_lengths_are_one_more_for_each_rank():
    case = Case(1, (0, 1, 2), 0, None, torch.device("cpu"), torch.float32, None, "uneven")
    assert (case.lengths(), case.lengths(1)) == ([1, 2, 3], [2, 3, 4])
