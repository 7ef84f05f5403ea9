"""Our own process groups, to promise the same of both."""

import functools
import inspect
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


def in_ranks(nproc: int, backend: str | None = None, **options) -> Callable:
    """Make a test of a function of a rank: no rank of its world may fail.

    `backend`: None stands for each of ours. What the function takes besides is the test's.
    """

    def make(fn: Callable) -> Callable:
        def test(ours=backend, **values):
            run = functools.partial(fn, **values)
            launch(run, nproc, **{"backend": ours, "timeout": 100} | options)

        _, _, _, *parameters = inspect.signature(fn).parameters.values()
        if backend is None:
            parameters.insert(0, inspect.Parameter("ours", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        test.__signature__ = inspect.Signature(parameters)
        return test if backend else on_both(test)

    return make
