"""A plugin of pytest that asks backends: its options, and the grids at the end of the report.

pytest --backend gloo --world-sizes 2,4
"""

from collections import Counter
from pathlib import Path

import pytest

from collectives.backends import availability, machine
from collectives.launcher import server
from collectives.matrix import PRELOADED, refused
from collectives.verify.ask import ANSWERS, ASKED, REFUSED, world_sizes
from collectives.verify.certificate import Certificate
from collectives.verify.plan import Plan
from collectives.verify.question import Answer

_LEFT_OUT = pytest.StashKey[bool]()


def pytest_addoption(parser):
    group = parser.getgroup("collectives")
    group.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help=f"ask this backend alone ({availability.NAMES}, or what --import brings), and run no "
        "other tests than those that ask it; repeatable",
    )
    availability.add_import_option(group.addoption)
    group.addoption(
        "--world-sizes",
        metavar="N,N",
        help="numbers of ranks (default: 1,2,3,4,5 for the lessons, 2 for single calls)",
    )
    group.addoption(
        "--all-cells",
        action="store_true",
        help="single calls with every dtype and reduction, not float32 and SUM alone",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long")
    try:
        availability.import_modules(config.getoption("modules"))
        world_sizes(config, ())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_LEFT_OUT] = False
    if not (wanted := config.getoption("backend")):
        return
    known = availability.known_backends()
    if unknown := sorted(set(wanted) - set(known)):
        raise pytest.UsageError(f"--backend {', '.join(unknown)}: there are {', '.join(known)}")
    if config.args_source is not config.ArgsSource.ARGS:
        config.args = [str(Path(__file__).parent)]
        config.stash[_LEFT_OUT] = True


@pytest.fixture(scope="session")
def fork_server(pytestconfig):
    """What the ranks of all tests need is imported once."""
    names = pytestconfig.getoption("backend")
    server.start_server((*PRELOADED, *availability.modules(names)))


def pytest_report_header(config):
    lines = [f"{name}: {value}" for name, value in machine.facts()]
    if config.stash[_LEFT_OUT]:
        lines += [
            "left out: the tests that ask no backend; pytest without --backend runs them",
            "left out: PyTorch's own tests, which "
            "pytest tests/verify/pytorch_suite.py --backend NAME runs",
        ]
    return lines


def pytest_terminal_summary(terminalreporter):
    """Why a backend refuses, and a grid of rows and backends for each title: what tests noted."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    properties = [one for report in reports for one in report.user_properties]
    if refusals := [one for name, value in properties if name == REFUSED for one in value]:
        terminalreporter.section("refused, by reason")
        for line in refused.by_reason(refusals):
            terminalreporter.write_line(line)
    _write_certificates(terminalreporter, [row for name, row in properties if name == ANSWERS])
    recorded = [value for name, value in properties if name == ASKED]
    for title in dict.fromkeys(title for title, *_ in recorded):
        _print_grid(terminalreporter, title, [rest for first, *rest in recorded if first == title])


def _write_certificates(reporter, recorded: list) -> None:
    """Of each backend, from the answers that its tests have noted, into the current folder."""
    for place in dict.fromkeys((backend, device) for backend, device, _ in recorded):
        rows = [row for *where, rows in recorded if tuple(where) == place for row in rows]
        answers = [Answer.of_row(row) for row in rows]
        unique = {(one.question, one.state): one for one in answers}
        found = Certificate(Plan(*place, lesson_sizes=()), [*unique.values()], 0.0)
        for file in found.write(Path()):
            reporter.write_line(f"written: {file}")


def _print_grid(reporter, title: str, recorded: list) -> None:
    cells: dict[tuple[str, str], Counter] = {}
    for row, column, counts, _ in recorded:
        cells.setdefault((row, column), Counter()).update(counts)
    red = {row for row, _, _, is_red in recorded if is_red}
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    lines = [["", *columns]]
    lines += [[row, *(_text(cells.get((row, column), {})) for column in columns)] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    reporter.section(title)
    for row, texts in zip(["", *rows], lines, strict=True):
        padded = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
        mark = "  <- red" if row in red else ""
        reporter.write_line(("  ".join(padded) + mark).rstrip(), red=row in red)


def _text(counts) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number) or "-"
