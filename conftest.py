"""pytest as a tool that verifies backends: which of them, at which world sizes, and a grid of the outcome.

pytest --backend gloo --world-sizes 2,4
"""

import pytest

from collectives.backends import availability as backends
from collectives.backends import machine
from collectives.spec.catalogue import COLLECTIVES

COLUMNS = [(backend, device) for backend, devices in backends.DEVICES.items() for device in devices]


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
    """A test that takes `lesson`, `backend`, `device` and `world_size` runs once for each cell of the matrix."""
    if {"lesson", "backend", "device", "world_size"} <= set(metafunc.fixturenames):
        wanted = metafunc.config.getoption("backend") or list(backends.DEVICES)
        if not set(wanted) <= set(backends.DEVICES):
            raise pytest.UsageError(
                f"the lessons run on {', '.join(backends.DEVICES)}; --import is for tests/pytorch_suite.py"
            )
        cells = [
            pytest.param(
                lesson, backend, device, world_size, id=f"{lesson}-{backend}-{device}-w{world_size}"
            )
            for lesson in COLLECTIVES
            for backend, device in COLUMNS
            if backend in wanted
            for world_size in _sizes(metafunc.config.getoption("world_sizes"))
        ]
        metafunc.parametrize(("lesson", "backend", "device", "world_size"), cells)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_makereport(item, call):
    """Tell the summary which cell of the matrix a test was (a worker of pytest-xdist sends it along)."""
    report = yield
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if {"lesson", "backend", "device", "world_size"} <= set(parameters) and (
        report.when == "call" or report.skipped or report.failed
    ):
        cell = parameters["lesson"], f"{parameters['backend']}/{parameters['device']}"
        report.user_properties.append(("cell", cell))
    return report


def pytest_terminal_summary(terminalreporter):
    """The grid of lessons and backends: how many world sizes passed, failed, or were skipped."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            for cell in {
                tuple(value)
                for name, value in getattr(report, "user_properties", ())
                if name == "cell"
            }:
                counts.setdefault(cell, {}).setdefault(
                    "failed" if outcome == "error" else outcome, 0
                )
                counts[cell]["failed" if outcome == "error" else outcome] += 1
    if not counts:
        return
    columns = [f"{backend}/{device}" for backend, device in COLUMNS]
    columns = [column for column in columns if any(cell[1] == column for cell in counts)]
    terminalreporter.section("lessons and backends, by number of world sizes")
    rows = [["", *columns]]
    for lesson in COLLECTIVES:
        rows.append([lesson, *(_cell(counts.get((lesson, column), {})) for column in columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        terminalreporter.write_line(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def _cell(counts: dict[str, int]) -> str:
    return (
        ", ".join(
            f"{counts[outcome]} {outcome}"
            for outcome in ("failed", "passed", "skipped")
            if outcome in counts
        )
        or "-"
    )
