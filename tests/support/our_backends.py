"""Our own process groups, to promise the same of both."""

from collections.abc import Callable

import pytest

from collectives import launch
from collectives.backends import availability

needs_mpi = pytest.mark.skipif(
    availability.missing_for_mpi() is not None, reason="needs the extra torch-collectives[mpi]"
)
needs_by_hand = pytest.mark.skipif(
    availability.unavailable("by_hand", "cpu", 1) is not None, reason="by_hand needs Linux"
)
on_both = pytest.mark.parametrize(
    "ours", [pytest.param("mpi", marks=needs_mpi), pytest.param("by_hand", marks=needs_by_hand)]
)


def in_ranks_of_both(nproc: int, **options) -> Callable:
    """Make a test of a function of a rank: on each backend, no rank of its world may fail."""

    def make(fn: Callable) -> Callable:
        @on_both
        def test(ours):
            launch(fn, nproc, **{"backend": ours, "timeout": 60} | options)

        return test

    return make
