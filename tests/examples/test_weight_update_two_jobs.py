"""The two programs of examples/weight_update_two_jobs join two jobs, and end with a sentence where
they cannot.
"""

import argparse
import contextlib
import re
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from machines import needs_a_lab, needs_slurm
from planted import Planted, unnoticed
from processes import free_port, printed, started
from repository import ROOT

from collectives import Lab
from collectives.lab import slurm

FOLDER = ROOT / "examples" / "weight_update_two_jobs"
TORCHRUN = "torchrun --standalone --nproc-per-node 2 {}.py"


@pytest.fixture
def folder(tmp_path):
    """The programs in a folder that holds nothing else."""
    return shutil.copytree(FOLDER, tmp_path / "copy", ignore=shutil.ignore_patterns("__*"))


@contextlib.contextmanager
def alone(name, folder, options):
    """A job of one rank, without torchrun, which would take longer to start."""
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with started(f"python {name}.py {options}", folder, **environ) as process:
        yield process


def ends(process):
    """Its exit status, and what it says."""
    stdout, stderr = process.communicate(timeout=120)
    ours = re.findall(r"^(?:trainer|engine \d+): .*", stderr, re.M)
    return process.returncode, ours, printed(stdout).splitlines()


def check_versions(trainer, *engines, updates=3):
    """Each engine had the trainer's weights, to the last bit, in each version."""
    sent = [line.removeprefix("trainer: ") for line in trainer]
    assert [line[:9] for line in sent] == [f"version {one}" for one in range(1, 1 + updates)]
    assert len({line.partition(" is ")[2] for line in sent}) == updates  # the weights change
    for number, lines in enumerate(engines):
        found = [line.partition(",")[0] for line in lines if line.startswith(f"engine {number}: ")]
        assert [line.removeprefix(f"engine {number}: ") for line in found] == sent


def test_the_programs_have_no_line_of_this_package():
    assert not any("collectives" in file.read_text("utf-8") for file in FOLDER.glob("*.py"))


def test_one_trainer_and_one_engine(folder):
    options = f"--port {free_port()}"
    with alone("engine", folder, options) as engine, alone("trainer", folder, options) as trainer:
        results = ends(trainer), ends(engine)
    assert [result[:2] for result in results] == [(0, [])] * 2
    check_versions(*(lines for *_, lines in results))


@pytest.mark.slow
def test_two_torchruns_of_two_ranks_the_engines_first(folder):
    options = f" --port {free_port()} --width 20000"  # in two buckets
    engine_job = started(TORCHRUN.format("engine") + options, folder)
    with engine_job as engine, started(TORCHRUN.format("trainer") + options, folder) as trainer:
        results = ends(trainer), ends(engine)
    assert [status for status, *_ in results] == [0, 0], results
    (*_, sent), (*_, found) = results
    check_versions(sent, found, found)


@needs_a_lab
@pytest.mark.slow
def test_two_torchruns_on_two_machines(folder):
    commands = {0: TORCHRUN.format("trainer"), 1: f"{TORCHRUN.format('engine')} --host node0"}
    script = "case {node} in " + " ".join(f"{n}) {one};;" for n, one in commands.items()) + " esac"
    with Lab(2) as lab:
        trainer, engines = lab.run(["sh", "-c", f"cd {folder}; {script}"])
    assert (trainer.returncode, engines.returncode) == (0, 0), trainer.stderr + engines.stderr
    lines = engines.stdout.splitlines()
    check_versions(trainer.stdout.splitlines(), lines, lines)


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_the_commands_for_slurm(folder):
    text = (folder / "trainer.py").read_text("utf-8")
    script = text.partition("two machines:\n\n")[2].partition("\n\n")[0]
    assert script.count("srun") == 2
    (folder / "job.sh").write_text("#!/bin/sh\n" + "\n".join(map(str.strip, script.splitlines())))
    with Lab(2) as lab:
        slurm.start(lab)
        command = (
            f"cd {folder}; sbatch --wait -N 2 --ntasks-per-node 1 --output out job.sh; cat out"
        )
        (done,) = lab.run(["sh", "-c", command], on=["login"])
    lines = done.stdout.splitlines()
    trainer = [line for line in lines if line.startswith("trainer: ")]
    check_versions(trainer, lines, lines)


def test_an_engine_that_never_comes(folder):
    port = free_port()
    with alone("trainer", folder, f"--port {port} --limit 1") as trainer:
        status, said, _ = ends(trainer)
    assert status == 1
    assert said == [f"trainer: no engine at 127.0.0.1:{port} after 0:00:01: does it run?"]


def test_a_trainer_that_never_comes(folder):
    port = free_port()
    with alone("engine", folder, f"--port {port} --limit 1") as engine:
        status, said, _ = ends(engine)
    assert status == 1
    assert said == [f"engine 0: no trainer at 127.0.0.1:{port} after 0:00:01: does it run?"]


@pytest.mark.slow
def test_a_port_that_another_program_has(folder):
    """The trainer cannot open it, and the engine gets no answer there."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        options = f"--port {port} --limit 1"
        with (
            alone("trainer", folder, options) as trainer,
            alone("engine", folder, options) as engine,
        ):
            results = ends(trainer), ends(engine)
    assert [status for status, *_ in results] == [1, 1], results
    said = [
        f"trainer: port {port} is taken: give another --port to both jobs",
        f"engine 0: no trainer at 127.0.0.1:{port} after 0:00:01: does it run?",
    ]
    assert [found for _, found, _ in results] == [[one] for one in said]


OTHER = {
    "network(1 + options.width)": "0.weight (257, 64) torch.float32",
    "network(options.width).double()": "0.weight (256, 64) torch.float64",
    "torch.nn.Sequential(network(options.width))": "0.0.weight (256, 64) torch.float32",
}


@pytest.mark.parametrize("other", OTHER, ids=["shape", "dtype", "name"])
def test_a_tensor_that_differs_is_named_before_a_byte_travels(other, folder):
    file = folder / "engine.py"
    file.write_text(file.read_text("utf-8").replace("network(options.width)", other))
    options = f"--port {free_port()}"
    with alone("trainer", folder, options) as trainer, alone("engine", folder, options) as engine:
        results = ends(trainer), ends(engine)
    assert results[0] == (1, ["trainer: engines [0] have other tensors than the trainer"], [])
    tensors = OTHER[other], "0.weight (256, 64) torch.float32"
    assert results[1] == (1, ["engine 0: it has {}, and the trainer has {}".format(*tensors)], [])


@pytest.mark.slow
def test_a_second_job_of_engines_is_refused_and_disturbs_nobody(folder):
    port = free_port()
    options = f"--port {port} --limit 150 --updates"
    with (
        alone("trainer", folder, f"{options} 1000000") as trainer,
        alone("engine", folder, f"{options} 1000000"),
    ):
        trainer.stdout.readline()
        with alone("engine", folder, f"{options} 1000000") as second:
            status, said, _ = ends(second)
        assert trainer.poll() is None
    assert status == 1
    assert said == [f"engine 0: another job of engines has already come to 127.0.0.1:{port}"]


@pytest.mark.slow
def test_an_engine_that_is_killed_ends_the_trainer_with_a_sentence(folder):
    options = f"--port {free_port()} --updates 1000000 --limit 30"
    with (
        alone("trainer", folder, options) as trainer,
        alone("engine", folder, options) as engine,
    ):
        engine.stdout.readline()
        engine.send_signal(signal.SIGKILL)
        status, said, _ = ends(trainer)
    assert status == 1
    assert re.fullmatch(r"trainer: version \d+ has not come to all: has a rank died, .*", said[0])


# The order of events in an update. The three ranks are threads, so a fault costs less than a second.

FILE = FOLDER / "joint.py"


class Noted:
    """A store that notes who writes what, and with which weights."""

    def __init__(self, store, note):
        self.store, self.note = store, note

    def __getattr__(self, name):
        return getattr(self.store, name)

    def set(self, key, value):
        self.note(key)
        self.store.set(key, value)


def events(text):
    """Of two updates, each in two buckets. Engine 1 is slow after each bucket."""
    joint = {"__name__": "joint"}
    exec(compile(text, FILE, "exec"), joint)
    joint["BUCKET"] = 1  # each tensor has a bucket of its own
    options = argparse.Namespace(host="127.0.0.1", port=free_port(), limit=30)
    log, all_begin = [], threading.Barrier(3, timeout=30)

    def work(rank):
        model = torch.nn.Linear(4, 2).requires_grad_(False)
        weights = torch.nn.utils.parameters_to_vector

        def note(event):
            log.append(f"{event} {set(weights(model.parameters()).tolist())}")

        def fill(value):
            for one in model.parameters():
                one.fill_(value)

        fill(0)
        one = joint["Joint"](options, rank, 2)
        one.join(model)
        one.store, broadcast = Noted(one.store, note), one.broadcast

        def broadcast_slowly(tensor):
            broadcast(tensor)
            time.sleep(0.3 * (rank == 2))

        one.broadcast = broadcast_slowly
        for version in (1, 2):
            all_begin.wait()
            if rank == 0:
                fill(version)
                one.send(model, version)
            else:
                one.receive(model, version)
            note(f"version {version} on {rank}")

    with ThreadPoolExecutor(3) as ranks:
        list(ranks.map(work, range(3)))
    return log


def in_order(faults):
    """What of the order is wrong with each fault."""
    told = []
    for fault in faults:
        log, right = events(fault.text), []
        for version in (1, 2):
            right += [f"came/{version}/{rank} {{{version - 1}.0}}" for rank in (1, 2)]
            right += [f"commit/{version} {{{version}.0}}"]
            right += [f"version {version} on {rank} {{{version}.0}}" for rank in (0, 1, 2)]
        stages = ((0, 2), (2, 3), (3, 6), (6, 8), (8, 9), (9, 12))
        found = [line for begin, end in stages for line in sorted(log[begin:end])]
        told.append("" if found == right else "\n".join(log))
    return told


WAIT = 'self.store.wait([f"commit/{version}"], self.limit)'
FAULTS = [
    Planted(FILE, old, new)
    for old, new in [
        ("self.store.wait(list(came), self.limit)", "pass"),  # a commit before all have come
        ('came = {f"came/{version}/', 'came = {f"came/1/'),  # the receipts of the first version
        (WAIT, "pass"),  # the new version before the commit
        (WAIT, 'self.store.wait(["commit/1"], self.limit)'),
        (  # the weights of two versions in one model
            "self.broadcast(spares[-1])",
            "self.broadcast(spares[-1]); as_bytes(bucket[0]).copy_(spares[-1])",
        ),
    ]
]


@pytest.mark.slow
def test_no_engine_has_a_version_before_all_have_its_weights_and_the_test_would_notice_a_fault():
    nothing = Planted(FILE, WAIT, WAIT)
    assert unnoticed([nothing, *FAULTS], in_order) == {nothing: ""}
