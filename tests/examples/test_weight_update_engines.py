"""The programs of examples/weight_update_engines: a trainer that speaks SGLang's and vLLM's HTTP,
and an engine that is played, right or with one of the faults that it knows.

They are forks of a process that has imported torch, so that a start costs a tenth of a second.
"""

import contextlib
import json
import multiprocessing
import os
import re
import runpy
import sys
import time

import pytest
from processes import wait_until
from repository import ROOT

FOLDER = ROOT / "examples" / "weight_update_engines"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed"])


def play(name, words, out):
    """One of the programs, in a process of its own, with its stdout in a file."""
    with open(out, "wb") as file:
        os.dup2(file.fileno(), 1)
    with open(f"{out}.err", "wb") as file:
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, str(FOLDER))
    sys.argv = [name, *map(str, words)]
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@contextlib.contextmanager
def engine(folder, protocol, **options):
    """Its address."""
    out = folder / f"{time.monotonic_ns()}.engine"
    words = [word for name, one in options.items() for word in (f"--{name}", one)]
    process = FORKS.Process(
        target=play, args=("stub_engine.py", ["--protocol", protocol, *words], out)
    )
    process.start()
    try:
        wait_until(lambda: not process.is_alive() or (out.exists() and "\n" in out.read_text()), 60)
        yield out.read_text().strip()
    finally:
        process.terminate()
        process.join()


def trained(folder, protocol, engines, *words):
    """The trainer's exit status, its lines, and the JSON of the last one."""
    out = folder / f"{time.monotonic_ns()}.trainer"
    addresses = [word for one in engines for word in ("--engine", one)]
    kind = protocol.partition("-")[0]
    command = ["--protocol", kind, "--limit", 3, *addresses, *words]
    process = FORKS.Process(target=play, args=("trainer.py", command, out))
    process.start()
    process.join(100)
    assert process.exitcode is not None, out.read_text()
    *lines, last = out.read_text().splitlines()
    return process.exitcode, lines, json.loads(last)


PROTOCOLS = ["sglang", "sglang-0.5.20", "vllm"]


@pytest.fixture(scope="module", params=PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def healthy(folder, protocol):
    with engine(folder, protocol) as found:
        yield found


def test_healthy_updates_name_nothing(folder, protocol, healthy):
    with engine(folder, protocol, tp=2) as other:
        status, lines, last = trained(folder, protocol, [healthy, other], "--updates", 3)
    assert (status, last["named"], last["held_by"]) == (0, [], [healthy, other]), lines


FAULTS = re.findall(r"^def (\w+)\((?:rank|server)\):", (FOLDER / "faults.py").read_text(), re.M)
FAULTS.remove("none")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(folder, protocol, healthy, fault):
    with engine(folder, protocol, tp=2, fault=fault) as other:
        status, lines, last = trained(folder, protocol, [healthy, other], "--updates", 2)
    print(fault, status, last)
    assert status == 1, lines
