"""PyTorch's own tests of its collectives, from its wheel, run on any backend.

pytest tests/verify/pytorch_suite.py --backend mpi
pytest tests/verify/pytorch_suite.py --backend gloo -n 2 -k "all_reduce or barrier"
pytest tests/verify/pytorch_suite.py --backend mine --import mine

Each test runs unchanged, in a fresh world of ranks. pytorch_suite.toml lists the tests that are
left out or fail, with the reasons. Any other failure is an error, and so is a known one that passes
or fails in another way. It takes minutes: pytest runs this file only when it is named.
"""

import importlib
import os
import re
import sys
import tomllib
import unittest
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from collectives import LaunchError, launch
from collectives.launcher import server
from collectives.semantics.probe import Silence

UPSTREAM = "torch.testing._internal.distributed.distributed_test"
REASONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

# The number of ranks that torch's tests are written for.
WORLD_SIZE = 4

# In seconds, for one test: the longest take 10.
TIME_LIMIT = 120.0


def upstream_tests(backend: str) -> type:
    """The class of torch's tests, made for this backend and for WORLD_SIZE ranks."""
    from torch.testing._internal import common_distributed

    if UPSTREAM not in sys.modules:
        # The tests of timeouts look for its INIT_METHOD.
        common_distributed.initialize_temp_directories()
        os.environ |= {"BACKEND": backend, "WORLD_SIZE": str(WORLD_SIZE)}
        server.start_server((UPSTREAM,))
    return importlib.import_module(UPSTREAM).DistributedTest._DistTestBase


def chosen_backend(config) -> str:
    backends = config.getoption("backend") or ["gloo"]
    if len(backends) > 1:
        raise pytest.UsageError("torch's tests can be asked of one --backend at a time")
    return backends[0]


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        names = vars(upstream_tests(chosen_backend(metafunc.config)))
        metafunc.parametrize("name", [name for name in names if name.startswith("test_")])


def test_upstream(name, pytestconfig):
    from torch.testing._internal import common_distributed

    backend = chosen_backend(pytestconfig)
    mark = getattr(getattr(upstream_tests(backend), name), "__unittest_skip_why__", "")
    if (reason := left_out(mark)) is not None:
        pytest.skip(reason)
    arguments = name, backend, Silence()
    common_distributed.initialize_temp_directories()
    world = {"backend": backend, "device": "cpu", "timeout": TIME_LIMIT}
    skips, failure = [], None
    try:
        skips = launch(in_rank, WORLD_SIZE, args=arguments, **world)
    except LaunchError as error:
        failure = error
    finally:
        common_distributed.cleanup_temp_dir()
    for skip in filter(None, skips):
        if (reason := left_out(skip)) is None:
            pytest.fail(f"torch skips it, which pytorch_suite.toml does not foresee: {skip}")
        pytest.skip(reason)
    judge(name, backend, failure)


def left_out(words: str) -> str | None:
    """The reason for which a test that torch skips with these words is left out; None: it runs.

    Many of torch's skips go by the name of a backend and are years old. A run decides better.
    """
    for one in REASONS["left_out"]:
        if any(fnmatchcase(words, skip) for skip in one["skips"]):
            return one["reason"]
    return None


def judge(name: str, backend: str, failure: LaunchError | None) -> None:
    """Compare with what is known of this test: a surprise is a failure, a better one too."""
    known = [
        one
        for one in REASONS["fails"]
        if backend in one["backends"] and any(fnmatchcase(name, one) for one in one["tests"])
    ]
    if not known:
        if failure is not None:
            raise failure
    elif failure is None:
        pytest.fail(f"passes, but pytorch_suite.toml says that it fails on {backend}")
    elif not re.search(known[0]["error"], str(failure)):
        pytest.fail(f"fails, but not with the known error {known[0]['error']!r}:\n{failure}")
    else:
        pytest.xfail(known[0]["reason"])


def in_rank(rank, world_size, device, name, backend, _) -> str | None:
    """Run one of torch's tests. Returns why it skipped itself, in torch's words."""
    from torch.testing._internal import common_distributed, common_utils

    upstream = importlib.import_module(UPSTREAM)
    upstream.INIT_METHOD = os.environ["INIT_METHOD"]
    # subtle: with this name in the environment, which no test acts upon, the tests of subgroups do
    # not insist on 8 ranks.
    os.environ["BACKEND"] = "mpi"
    if backend not in ("gloo", "nccl"):
        # Whether the profiler shows the backend's calls is asked by the tests named after it, not
        # by those of values.
        upstream.PROFILING_SUPPORTED_BACKENDS.clear()
        upstream.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)

    class Case(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        pass

    case = Case(name)
    case.rank, case.file_name = rank, os.path.join(os.environ["TEMP_DIR"], "store")
    common_utils.set_rng_seed()
    skipped = None
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        skipped = str(skip)
    except SystemExit as end:
        skips = common_distributed.TEST_SKIPS.values()
        skipped = {skip.exit_code: skip.message for skip in skips}.get(end.code)
        if skipped is None:
            raise
    case._barrier()  # none may leave its groups while another still talks there
    return skipped


def test_every_known_failure_names_a_test_of_torch(pytestconfig):
    names = dir(upstream_tests(chosen_backend(pytestconfig)))
    for pattern in (pattern for one in REASONS["fails"] for pattern in one["tests"]):
        assert any(fnmatchcase(name, pattern) for name in names), pattern
