"""Options of pytest that make it verify backends, and a grid of what passed on each.

pytest --backend gloo --world-sizes 2,4
"""

import pytest

from collectives.backends import availability as backends
from collectives.backends import machine
from collectives.lesson.chapters import CHAPTERS

COLUMNS = [(backend, device) for backend, devices in backends.DEVICES.items() for device in devices]
# The lessons that need an extra have tests of their own.
LESSONS = [
    name
    for chapter in CHAPTERS.values()
    if not (chapter.isolated or chapter.extra)
    for name in chapter.names
]
CELL = ("lesson", "backend", "device", "world_size")


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
    names = ", ".join(backends.DEVICES)
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
    known = list(backends.DEVICES)
    if modules := config.getoption("modules"):
        from collectives.spec import probe

        probe.import_modules(modules)
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
    """A test that takes `lesson`, `backend`, `device` and `world_size` runs once for each cell.

    Where a backend is absent at every world size, one skip per lesson says so.
    """
    if not set(CELL) <= set(metafunc.fixturenames):
        return
    wanted = metafunc.config.getoption("backend") or list(backends.DEVICES)
    if not set(wanted) <= set(backends.DEVICES):
        raise pytest.UsageError(
            f"the lessons run on {', '.join(backends.DEVICES)}; "
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
        # gloo runs at every size in each test run, the others at one.
        always = column if backend == "gloo" else [min(column, key=lambda size: abs(size - 3))]
        cells += [
            pytest.param(
                lesson,
                backend,
                device,
                size,
                id=f"{lesson}-{backend}-{device}-w{size}",
                marks=marks if size in always else [*marks, pytest.mark.slow],
            )
            for lesson in LESSONS
            for size in column
        ]
    metafunc.parametrize(CELL, cells)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note for the summary which cell a test was. Workers of pytest-xdist send it along."""
    report = yield
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if set(CELL) <= set(parameters) and (report.when == "call" or not report.passed):
        cell = parameters["lesson"], f"{parameters['backend']}/{parameters['device']}"
        report.user_properties.append(("cell", cell))
    return report


def pytest_terminal_summary(terminalreporter):
    """The grid of lessons and backends: how many world sizes passed, failed, or were skipped."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            cells = {
                tuple(value)
                for name, value in getattr(report, "user_properties", ())
                if name == "cell"
            }
            for cell in cells:
                number = counts.setdefault(cell, {})
                word = "failed" if outcome == "error" else outcome
                number[word] = number.get(word, 0) + 1
    if not counts:
        return
    columns = [f"{backend}/{device}" for backend, device in COLUMNS]
    columns = [column for column in columns if any(cell[1] == column for cell in counts)]
    terminalreporter.section("lessons and backends, by number of world sizes")
    rows = [["", *columns]]
    for lesson in LESSONS:
        rows.append([lesson, *(_text(counts.get((lesson, column), {})) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join(padded).rstrip())


def _text(counts: dict[str, int]) -> str:
    words = ("failed", "passed", "skipped")
    return ", ".join(f"{counts[word]} {word}" for word in words if word in counts) or "-"
