"""The numbers that ranks hold, and how many: they tell reductions and ranks apart."""

import pytest
import torch

from collectives.semantics import values, wide_values
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


def test_uneven_lengths_are_one_more_for_each_rank_and_a_pair_may_have_nothing():
    for size in (2, 3, 4):
        ranks = tuple(range(size))
        case = Case(1, ranks, 0, None, torch.device("cpu"), torch.float32, None, "uneven")
        pairs = [case.lengths(rank) for rank in ranks]
        assert case.lengths() == [1 + rank for rank in ranks]
        assert all(sum(sent) % size == 0 and len(set(sent)) == size and 0 in sent for sent in pairs)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_somewhere_all_ranks_are_negative_and_somewhere_none_is(size, dtype):
    """A maximum that begins with 0, and a minimum that does, are then wrong."""
    shape = (2 * size + 1,)
    for kind in (values, wide_values):
        op = ("MAX",) if kind is wide_values else ()
        terms = [kind.term(rank, size, shape, dtype, 0, *op) for rank in range(size)]
        signs = torch.stack(terms) < 0
        assert signs.all(0).any()
        assert not signs.any(0).all()
