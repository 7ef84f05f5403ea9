"""What all tests share: what the fork server imports, and a hint at tests that take long."""

import multiprocessing
import os

# DistributedDataParallel and the functional collectives import the compiler: the server does it
# once, for the ranks of all tests.
PRELOAD = ["torch._dynamo", "torch.distributed.nn", "collectives.spec.probe"]

# On CI, a test that takes more seconds than this and is not marked `slow` is listed at the end.
LIMIT = 20.0

_set_preload = multiprocessing.set_forkserver_preload


def _set_preload_and_more(modules: list[str]) -> None:
    """The server starts with the first launch: tests that launch nothing do not pay for it."""
    _set_preload([*PRELOAD, *modules])


multiprocessing.set_forkserver_preload = _set_preload_and_more


def pytest_terminal_summary(terminalreporter):
    if "CI" not in os.environ:
        return
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.duration > LIMIT and "slow" not in report.keywords
    ]
    if reports:
        terminalreporter.section(f"over {LIMIT:.0f} s: shorten these tests, or mark them slow")
    for report in sorted(reports, key=lambda report: -report.duration):
        terminalreporter.write_line(f"{report.duration:6.1f} s  {report.nodeid}")
