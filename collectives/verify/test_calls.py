"""Every call does with the backend what is claimed; without claims, it works or is refused."""

import contextlib
from collections import Counter

import pytest

from collectives.backends import availability, claims
from collectives.matrix import claimed, refused, run, selection
from collectives.matrix.measured import UNAVAILABLE
from collectives.semantics.calls import LESSONS
from collectives.verify import ask

SIZES = (2,)
# Without --backend: tests/matrix/test_matrix.py asks gloo, and `make test-all` the others.
QUICK: dict[str, tuple[int, ...]] = {}


def pytest_generate_tests(metafunc):
    metafunc.parametrize(ask.WORLD, ask.worlds(metafunc.config, SIZES, QUICK))
    metafunc.parametrize("collective", LESSONS)


@pytest.mark.usefixtures("fork_server")
def test_calls(backend, device, world_size, collective, pytestconfig, record_property):
    if reason := availability.unavailable(backend, device, world_size):
        pytest.skip(reason)
    quick = not pytestconfig.getoption("all_cells")
    cells = []
    for op in (None, ["AVG"]) if quick else (None,):  # it is what a new backend often has wrong
        with contextlib.suppress(ValueError):  # none: this call does not reduce
            cells += selection.select(
                [backend], [collective], None, op, [world_size], quick, [device]
            )
    measured = list(run.measure(cells))
    if not any(cell.was_tried for cell in measured):
        pytest.skip(measured[0].detail)
    text, status = claimed.report(run.record(measured), claims.table())
    counts = Counter(cell.state for cell in measured)
    states = {state: counts[state] for state in (*claims.STATES, UNAVAILABLE)}
    title, column = "calls and backends, by number of cells", f"{backend}/{device}"
    record_property(ask.ASKED, (title, collective, column, states, bool(status)))
    record_property(ask.REFUSED, refused.refusals(measured, claims.table()))
    if status:
        pytest.fail(text, pytrace=False)
