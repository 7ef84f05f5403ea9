"""What all tests share: what the fork server imports, and which skips are failures on CI."""

import multiprocessing
import os
import re

import pytest

# DistributedDataParallel and the functional collectives import the compiler: the server does it
# once, for the ranks of all tests.
PRELOAD = ["torch._dynamo", "torch.distributed.nn", "collectives.semantics.probe"]

# Why a test is skipped where a program is missing. CI installs all of them: .ci/install.
MISSING = re.compile(r"A lab of machines needs|Slurm needs|needs Chromium|needs the extra")

_set_preload = multiprocessing.set_forkserver_preload


def _set_preload_and_more(modules: list[str]) -> None:
    """The server starts with the first launch: tests that launch nothing do not pay for it."""
    _set_preload([*PRELOAD, *modules])


multiprocessing.set_forkserver_preload = _set_preload_and_more


def pytest_configure(config):
    # Else each rank computes with as many threads as there are cores, which wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The tests use tensors of the CPU. Who asks a backend asks for its device, too.
    if not config.getoption("backend", None):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_report_header(config):
    if not config.getoption("backend", None):
        return "GPUs: hidden from these tests, if there are any; pytest --backend nccl uses them"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("weekly"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A module may be skipped as a whole, by importorskip."""
    return _judged((yield))


def _judged(report):
    if report.skipped and "COLLECTIVES_ALL_INSTALLED" in os.environ:
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else [""]
        if MISSING.search(reason):
            report.outcome = "failed"
            report.longrepr = f"may not be skipped here. {reason}"
    return report
