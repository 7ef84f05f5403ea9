"""Options of pytest that make it verify backends, and a grid of what passed on each.

pytest --backend gloo --world-sizes 2,4
"""

from collections import Counter, defaultdict

import pytest

from collectives.backends import availability as backends
from collectives.backends import imported, machine

COLUMNS = [(one.name, device) for one in backends.BACKENDS.values() for device in one.devices]
CELL = ("backend", "device", "world_size")


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        raise pytest.UsageError(
            f"--world-sizes {text}: write whole numbers with commas between, as in 2,4"
        ) from None
    if min(sizes) < 1:
        raise pytest.UsageError(f"--world-sizes {text}: a world has at least one rank")
    return sizes


def pytest_addoption(parser):
    group = parser.getgroup("collectives")
    names = backends.NAMES
    group.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help=f"run the lessons on this backend alone ({names}); repeatable",
    )
    group.addoption(
        "--import",
        action="append",
        default=[],
        dest="modules",
        metavar="MODULE",
        help="tests/pytorch_suite.py: import it in every rank, a backend of your own; repeatable",
    )
    group.addoption(
        "--world-sizes",
        default="1,2,3,4,5",
        metavar="N,N",
        help="numbers of ranks for the lessons (default: %(default)s)",
    )


def pytest_configure(config):
    known = list(backends.BACKENDS)
    if modules := config.getoption("modules"):
        try:
            imported.import_modules(modules)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        known = backends.known_backends()
    unknown = set(config.getoption("backend") or ()) - set(known)
    if unknown:
        raise pytest.UsageError(
            f"--backend {', '.join(sorted(unknown))}: there are {', '.join(known)}"
        )
    _sizes(config.getoption("world_sizes"))


def pytest_report_header():
    return [f"{name}: {value}" for name, value in machine.facts()]


def pytest_generate_tests(metafunc):
    """A test that takes `backend`, `device` and `world_size` runs once for each cell.

    Where a backend is absent at every world size, one skip says so.
    """
    if not set(CELL) <= set(metafunc.fixturenames):
        return
    wanted = metafunc.config.getoption("backend") or list(backends.BACKENDS)
    if not set(wanted) <= set(backends.BACKENDS):
        raise pytest.UsageError(
            f"the lessons run on {', '.join(backends.BACKENDS)}; "
            "--import is for tests/pytorch_suite.py"
        )
    sizes = _sizes(metafunc.config.getoption("world_sizes"))
    cells = []
    for backend, device in COLUMNS:
        if backend not in wanted:
            continue
        if reason := backends.unavailable(backend, device, min(sizes)):
            column, marks = [min(sizes)], [pytest.mark.skip(reason=reason)]
        else:
            column, marks = sizes, []
        # Each test run has the others with 3 ranks, and gloo with what they leave out: with 4 ranks
        # tests/test_hints.py runs the lessons.
        third = [min(column, key=lambda size: abs(size - 3))]
        always = [size for size in column if size not in (3, 4)] if backend == "gloo" else third
        for size in column:
            slow = [] if size in always else [pytest.mark.slow]
            name = f"{backend}-{device}-w{size}"
            cells.append(pytest.param(backend, device, size, id=name, marks=[*marks, *slow]))
    metafunc.parametrize(CELL, cells)


def pytest_terminal_summary(terminalreporter):
    """The grid of lessons and backends: at how many world sizes a lesson passed, failed, skipped.

    Tests note it with `record_property("lesson", (lesson, column, outcome))`.
    """
    counts: dict[tuple[str, str], Counter] = defaultdict(Counter)
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in reports:
        for name, value in report.user_properties:
            if name == "lesson":
                lesson, column, outcome = value
                counts[lesson, column][outcome] += 1
    if not counts:
        return
    lessons, columns = (list(dict.fromkeys(names)) for names in zip(*counts, strict=True))
    rows = [["", *columns]]
    rows += [[lesson, *(_text(counts[lesson, column]) for column in columns)] for lesson in lessons]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    terminalreporter.section("lessons and backends, by number of world sizes")
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join(padded).rstrip())


def _text(counts: Counter) -> str:
    outcomes = ("failed", "passed", "skipped")
    return ", ".join(f"{counts[each]} {each}" for each in outcomes if counts[each]) or "-"
