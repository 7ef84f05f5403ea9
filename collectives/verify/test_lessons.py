"""Every lesson runs on the backend at each world size, or is skipped with a reason."""

import pytest

from collectives.backends import availability
from collectives.course import chapters
from collectives.verify import ask, lessons

SIZES = (1, 2, 3, 4, 5)

# Without --backend, those that `make test` asks. Gloo runs all lessons with 4 ranks in the tests of
# the notebooks, and those on the calls with 3 in those of the hints.
QUICK = {"gloo": (1, 2, 5), "mpi": (3,), "by_hand": (3,), "nccl": (3,)}


def pytest_generate_tests(metafunc):
    metafunc.parametrize(ask.WORLD, ask.worlds(metafunc.config, SIZES, QUICK))


@pytest.mark.usefixtures("fork_server")
def test_lessons(backend, device, world_size, record_property):
    if reason := availability.unavailable(backend, device, world_size):
        pytest.skip(reason)
    everywhere = [chapter for chapter in chapters.read().values() if chapter.runs_everywhere]
    names = [name for chapter in everywhere for name in chapter.names]
    faults = lessons.faults_of(names, backend, device, world_size)
    for name in names:
        runs = lessons.runnable(name, backend, device, world_size)
        outcome = "failed" if name in faults else "passed" if runs else "skipped"
        title, column = "lessons and backends, by number of world sizes", f"{backend}/{device}"
        record_property(ask.ASKED, (title, name, column, {outcome: 1}, outcome == "failed"))
    if faults:
        text = "\n\n".join(f"{name}: {text}" for name, text in faults.items())
        pytest.fail(text, pytrace=False)
