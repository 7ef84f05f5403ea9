"""The program to take home trains the model of one process: also when it is killed, and over machines."""

import argparse
import ast
import contextlib
import math
import re
import runpy
import signal
import subprocess

import psutil
import pytest
import torch
from lesson_source import Source
from machines import needs_a_lab, needs_slurm
from processes import started, wait_until
from torch.nn.functional import cross_entropy

from collectives import Lab, digits, launch
from collectives.course import chapters
from collectives.lab import slurm

FILE = chapters.folder().parent / "examples" / "train_ddp.py"
TORCHRUN = f"torchrun --nproc-per-node 2 --max-restarts 3 {{}} {FILE} --double --epochs 6"
STEPS = 6 * 24


def one_process(epochs):
    """The parameters, by a loop that has no part in common with the program."""
    images, labels = digits()
    torch.manual_seed(0)
    first, last = torch.nn.Linear(64, 32).double(), torch.nn.Linear(32, 10).double()
    parameters = [*first.parameters(), *last.parameters()]
    momenta = [torch.zeros_like(one) for one in parameters]
    for step in range(epochs * 24):
        generator = torch.Generator().manual_seed(step // 24)
        batch = torch.randperm(1536, generator=generator)[step % 24 * 64 :][:64]
        loss = cross_entropy(last(first(images[batch]).relu()), labels[batch])
        gradients = torch.autograd.grad(loss, parameters)
        rate = 0.05 * (1 + math.cos(math.pi * step / (epochs * 24)))
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                momentum.mul_(0.9).add_(gradient)
                parameter.sub_(rate * momentum)
    return parameters


def error(checkpoint, epochs):
    """The largest relative error of a parameter in a checkpoint, which must be that of the end."""
    state = torch.load(checkpoint)
    assert state["step"] == epochs * 24
    pairs = zip(state["model"].values(), one_process(epochs), strict=True)
    return max(((got - expected).norm() / expected.norm()).item() for got, expected in pairs)


def test_what_the_lessons_say_of_a_function_stands_in_it():
    program = FILE.read_text("utf-8")
    parts = {
        node.name: ast.get_source_segment(program, node)
        for node in ast.parse(program).body
        if isinstance(node, ast.FunctionDef)
    }
    said = [
        found
        for name in chapters.read()["training"].names
        for found in re.findall(
            r"\[`(\w+)`\]\(\.\./\.\./examples/train_ddp\.py\) has it: `([^`]+)`",
            " ".join(Source(name).prose.split()),
        )
    ]
    unsaid = {"digits", "read_variables", "leave", "ignore_stops"}
    assert {name for name, _ in said} == parts.keys() - unsaid
    assert [line for name, line in said if line not in parts[name]] == []


# In a world of `launch`: all but the meeting of the ranks.


def train(rank, world_size, device, checkpoint, stop_at, **changed):
    """Runs in a rank: the last one gets a SIGTERM in this step. True if the program has ended."""
    program = runpy.run_path(str(FILE))
    program = program["main"].__globals__
    program["start"] = lambda: (torch.device(device), rank, world_size)
    torch.set_num_threads(1)
    step = program["train_step"]
    calls = []

    def with_a_signal(*arguments):
        calls.append(1)
        if len(calls) == stop_at and rank == world_size - 1:
            signal.raise_signal(signal.SIGTERM)
        return step(*arguments)

    program["train_step"] = with_a_signal
    options = {"epochs": 2, "batch": 64, "accumulation": 2, "save_every": 10, "double": True}
    options |= {"clip": math.inf, "bf16": False, "workers": 0, "pin": False, "log_every": 3}
    options |= {"checkpoint": checkpoint} | changed
    with contextlib.suppress(SystemExit):
        program["main"](argparse.Namespace(**options))
        return True
    return False


@pytest.mark.parametrize("sizes", [(1, 1), pytest.param((4, 2), marks=pytest.mark.slow)])
def test_it_trains_the_model_of_one_process_also_when_it_is_stopped_in_an_epoch(sizes, tmp_path):
    """And when it continues on another number of ranks."""
    checkpoint = tmp_path / "kept.pt"
    for n, stop_at, ended in zip(sizes, (33, 0), (False, True), strict=True):
        found = launch(train, n, args=(checkpoint, stop_at), backend="gloo")
        assert found == [ended] * n
        assert torch.load(checkpoint)["step"] == (48 if ended else 33)
    assert error(checkpoint, 2) < 1e-9


# With torchrun.


def ranks():
    """The living ranks below this process, by number."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if str(FILE) in line and "torchrun" not in " ".join(line):
                found[int(process.environ()["RANK"])] = process
    return found


def kill_after_next_checkpoint(rank, checkpoint):
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > before)
    ranks()[rank].kill()


def first_steps(stdout):
    return [int(step) for step in re.findall(r"from step (\d+) of \d+$", stdout, re.MULTILINE)]


@pytest.mark.slow
def test_after_two_kills_and_a_sigterm_it_has_the_parameters_of_one_process(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    command = TORCHRUN.format("")
    with started(command, tmp_path, OMP_NUM_THREADS="1") as process:
        for rank in (1, 0):
            kill_after_next_checkpoint(rank, checkpoint)
        before = checkpoint.stat().st_mtime_ns
        wait_until(lambda: checkpoint.stat().st_mtime_ns > before)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=100)
    began, *continued = first_steps(stdout)
    assert (process.returncode, began, len(continued)) == (1, 0, 2), stderr
    assert 0 < continued[0] < continued[1] < STEPS
    stopped = {int(step) for step in re.findall(r"stopped after step (\d+):", stderr)}
    with started(command, tmp_path, OMP_NUM_THREADS="1") as process:
        stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, {*first_steps(stdout)}) == (0, stopped), stderr
    assert error(checkpoint, 6) < 1e-9


# On two machines.


@needs_a_lab
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "meet"),
    [
        pytest.param("", "--node-rank {node} --master-addr node0 --master-port 29500", id="static"),
        pytest.param(
            "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 ",
            "--rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id lab",
            id="c10d",
        ),
    ],
)
def test_a_rank_is_killed_on_one_of_two_machines_and_both_continue(variable, meet, tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    command = f"{variable}{TORCHRUN.format(f'--nnodes 2 {meet}')} --checkpoint {checkpoint}"
    with Lab(2) as lab:
        text = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"text": True}
        begun = [lab.start(node, command, **text) for node in lab.nodes]
        kill_after_next_checkpoint(3, checkpoint)
        ended = [one.communicate(timeout=100) for one in begun]
    assert [one.returncode for one in begun] == [0, 0], ended
    began, continued = first_steps("".join(stdout for stdout, _ in ended))
    assert began < continued < STEPS
    assert error(checkpoint, 6) < 1e-9


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_it_trains_under_slurm(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    meet = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id lab"
    command = TORCHRUN.format(meet).replace("--epochs 6", f"--epochs 2 --checkpoint {checkpoint}")
    with Lab(2) as lab:
        slurm.start(lab)
        srun = f"srun -N2 --ntasks-per-node=1 {command}"
        (done,) = lab.run(srun, on=["login"], timeout=150)
    assert done.returncode == 0, done.stderr
    assert error(checkpoint, 2) < 1e-9
