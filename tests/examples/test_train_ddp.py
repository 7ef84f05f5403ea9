"""The program to take home trains the model of one process: also when it is killed, and over machines."""

import argparse
import ast
import contextlib
import io
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import types

import psutil
import pytest
import torch
import torch.distributed as dist
from lesson_source import Source
from machines import needs_a_lab, needs_slurm, sh
from planted import Planted, note, unnoticed
from processes import started, wait_until
from torch.nn.functional import cross_entropy

from collectives import Lab, digits, launch
from collectives.course import chapters
from collectives.lab import slurm

FILE = chapters.folder().parent / "examples" / "train_ddp.py"
TORCHRUN = f"torchrun --nproc-per-node 2 --max-restarts 3 {{}} {FILE} --double --epochs 6"
STEPS = 6 * 24


def one_process(epochs, clip=math.inf):
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
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        gradients = [one * min(1, clip / (norm + 1e-6)) for one in gradients]
        rate = 0.05 * (1 + math.cos(math.pi * step / (epochs * 24)))
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                momentum.mul_(0.9).add_(gradient)
                parameter.sub_(rate * momentum)
    return parameters


def error(checkpoint, epochs, clip=math.inf):
    """The largest relative error of a parameter in a checkpoint, which must be that of the end."""
    state = torch.load(checkpoint)
    assert state["step"] == epochs * 24
    pairs = zip(state["model"].values(), one_process(epochs, clip), strict=True)
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


# The variables of each launcher.

STORE = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN_SAYS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
SRUN_SAYS = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
MPICH_SAYS = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
OPEN_MPI_SAYS = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1"}
OPEN_MPI_SAYS = {f"OMPI_COMM_WORLD_{name}": value for name, value in OPEN_MPI_SAYS.items()}
AGENT = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}


def variables(monkeypatch, environ):
    monkeypatch.setattr("os.environ", environ)
    return runpy.run_path(str(FILE))["read_variables"]()


@pytest.mark.parametrize(
    "environ",
    [
        TORCHRUN_SAYS,
        SRUN_SAYS,
        MPICH_SAYS,
        OPEN_MPI_SAYS,
        pytest.param(TORCHRUN_SAYS | AGENT, id="torchrun under srun"),
        pytest.param(MPICH_SAYS | AGENT, id="mpiexec that starts its helpers by srun"),
        pytest.param(SRUN_SAYS | {"PMI_RANK": "3", "PMI_SIZE": "4"}, id="srun --mpi=pmi2"),
    ],
)
def test_a_rank_reads_who_it_is_from_the_variables_of_its_launcher(environ, monkeypatch):
    assert variables(monkeypatch, environ | STORE) == [3, 4, 1]


@pytest.mark.parametrize(
    ("environ", "absent"),
    [
        ({}, "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0"} | STORE, "WORLD_SIZE, LOCAL_RANK"),
        (SRUN_SAYS, "MASTER_ADDR, MASTER_PORT"),
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"} | STORE,
            "SLURM_STEP_NUM_TASKS",
            id="a batch script without srun",
        ),
    ],
)
def test_variables_that_are_set_by_half_are_one_sentence(environ, absent, monkeypatch):
    with pytest.raises(SystemExit, match=f"^not set: {absent}. See the commands above, in .*py$"):
        variables(monkeypatch, environ)


# In a world of `launch`: all but the meeting of the ranks.

OPTIONS = {"epochs": 2, "batch": 64, "accumulation": 2, "save_every": 10, "double": True}
OPTIONS |= {"clip": math.inf, "bf16": False, "workers": 0, "pin": False, "log_every": 3}


def loaded(rank, world_size, device):
    """The names of the program in a rank, which has met the other ranks, and will not leave them."""
    torch.set_num_threads(1)
    program = runpy.run_path(str(FILE))["main"].__globals__
    program["start"] = lambda: (torch.device(device), rank, world_size)
    calls = vars(dist) | {"destroy_process_group": lambda: None}
    program["dist"] = types.SimpleNamespace(**calls)
    return program


def train(rank, world_size, device, checkpoint, stop_at, changed):
    """Runs in a rank: the last one gets a SIGTERM in this step. The status of its end."""
    program = loaded(rank, world_size, device)
    step = program["train_step"]
    calls = []

    def with_a_signal(*arguments):
        calls.append(1)
        if len(calls) == stop_at and rank == world_size - 1:
            signal.raise_signal(signal.SIGTERM)
        return step(*arguments)

    program["train_step"] = with_a_signal
    try:
        program["main"](argparse.Namespace(**OPTIONS | {"checkpoint": checkpoint} | changed))
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize("sizes", [(1, 1), pytest.param((4, 2), marks=pytest.mark.slow)])
def test_it_trains_the_model_of_one_process_also_when_it_is_stopped_in_an_epoch(sizes, tmp_path):
    """And when it continues on another number of ranks. It clips the gradients."""
    checkpoint = tmp_path / "kept.pt"
    changed = {"clip": 0.5}
    for n, stop_at, ended in zip(sizes, (33, 0), (os.EX_TEMPFAIL, 0), strict=True):
        found = launch(train, n, args=(checkpoint, stop_at, changed), backend="gloo")
        assert found == [ended] * n
        assert torch.load(checkpoint)["step"] == (33 if ended else 48)
    assert error(checkpoint, 2, clip=0.5) < 1e-9
    assert error(checkpoint, 2) > 1e-3


def refusals(rank, world_size, device, folder):
    """Runs in a rank: what it says of wrong starts; the third one is right."""
    program = loaded(rank, world_size, device)
    said = []

    def attempt(**changed):
        stderr = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(stderr):
            program["main"](argparse.Namespace(**OPTIONS | {"epochs": 1} | changed))
        said.append(stderr.getvalue())

    attempt(checkpoint=folder / "unused.pt", batch=62)
    attempt(checkpoint=folder / "unused.pt", batch=1540)
    attempt(checkpoint=folder / "kept.pt")
    attempt(checkpoint=folder / "kept.pt", epochs=2)
    attempt(checkpoint=folder / ("kept.pt", "of_this_machine.pt")[rank])
    network, program["nn"].Linear = torch.nn.Linear, lambda *sizes: network(*sizes, bias=False)
    attempt(checkpoint=folder / "kept.pt")
    program["nn"].Linear = network
    return said


def test_all_ranks_refuse_a_batch_or_checkpoint_that_would_not_be_one_training(tmp_path):
    first, second = launch(refusals, 2, args=(tmp_path,), backend="gloo")
    assert first == second
    batch, large, right, epochs, disks, model = first
    assert (
        batch == large == "--batch must be a multiple of 2 ranks * --accumulation, at most 1536\n"
    )
    assert right == ""
    for refused, found in (
        (epochs, ("step 24 of another --batch or --epochs",) * 2),
        (disks, ("step 24", "no file")),
        (model, ("step 24 of another model",) * 2),
    ):
        files = ["kept.pt", "of_this_machine.pt" if refused == disks else "kept.pt"]
        assert refused.splitlines() == [
            "--checkpoint must be one file for all ranks, of this training:",
            *(
                f"rank {rank} found {found[rank]} in {os.uname().nodename}:{tmp_path / files[rank]}"
                for rank in (0, 1)
            ),
        ]


def in_each_precision(rank, world_size, device, folder):
    """Runs in a rank: the parameters after an epoch in float32, and in bfloat16 by autocast."""
    program = loaded(rank, world_size, device)
    trained = []
    for bf16 in (False, True):
        changed = {"checkpoint": folder / f"{bf16}.pt", "epochs": 1, "double": False, "bf16": bf16}
        program["main"](argparse.Namespace(**OPTIONS | changed))
        state = torch.load(changed["checkpoint"])["model"]
        trained.append(torch.cat([one.flatten() for one in state.values()]))
    return trained


def test_with_bf16_it_trains_nearly_the_same_model(tmp_path):
    ((exact, rounded),) = launch(in_each_precision, 1, args=(tmp_path,), backend="gloo")
    assert 1e-4 < (exact - rounded).norm() / exact.norm() < 1e-1


def validated(rank, world_size, device, texts):
    """Runs in a rank: what is wrong with the validation of each text of the program."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(64, 10)).double()
    messages = []
    for text in texts:
        program = {"__name__": "changed"}
        exec(compile(text, str(FILE), "exec"), program)
        held_out = program["digits"](False, torch.float64)
        images, labels = held_out.tensors
        with torch.no_grad():
            output = model.eval()(images)
        loss = cross_entropy(output, labels).item()
        accuracy = (output.argmax(1) == labels).double().mean().item()
        found = program["validate"](model.train(), held_out, torch.device(device), rank, world_size)
        wrong = []
        note(wrong, torch.tensor(found), torch.tensor([loss, accuracy]), "validate")
        note(wrong, model.training, True, "model.training")
        messages.append("\n".join(map(str, wrong)))
    return messages


def by_validating(faults):
    """What is said of each fault on every rank, when nothing is said of the program itself."""
    texts = [FILE.read_text("utf-8"), *(fault.text for fault in faults)]
    ranks = launch(validated, 2, args=(texts,), backend="gloo")
    (first, *rest) = zip(*ranks, strict=True)
    assert first == ("", "")
    return ["\n".join(said) if all(said) else "" for said in rest]


FAULTS = [
    Planted(FILE, "range(rank, len(dataset), n)", "range(len(dataset))", "[validate"),
    Planted(FILE, "range(rank, len(dataset), n)", "range(0, len(dataset), n)", "[validate"),
    Planted(FILE, "dist.all_reduce(sums)", "dist.all_reduce(sums.clone())", "[validate"),
    Planted(FILE, 'reduction="sum")', 'reduction="mean")', "[validate"),
    Planted(FILE, "output.argmax(1) == labels", "output.argmax(1) != labels", "[validate"),
    Planted(FILE, "model.eval()", "model.train(True)", "[validate"),
    Planted(FILE, "    model.train()\n", "", "[model.training"),
]


def test_the_validation_of_two_ranks_is_that_of_one_process_and_the_test_would_notice_a_fault():
    assert unnoticed(FAULTS, by_validating) == {}


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


@pytest.fixture
def folder(tmp_path):
    """An empty folder with the program and the scripts for Slurm."""
    shutil.copy(FILE, tmp_path)
    shutil.copytree(FILE.parent / "sbatch", tmp_path / "sbatch")
    return tmp_path


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_under_slurm_the_ranks_save_when_they_are_warned_and_the_job_continues(folder):
    checkpoint = folder / "checkpoint.pt"
    sbatch = "sbatch --parsable --ntasks-per-node 1 --cpus-per-task 1 sbatch/train_ddp.sh --double"
    with Lab(2) as lab:
        slurm.start(lab)
        job = sh(lab, "login", f"cd {folder} && {sbatch} --epochs 6 --workers 1")
        wait_until(checkpoint.exists)
        sh(lab, "login", f"scancel --signal=TERM {job}")
        wait_until(lambda: sh(lab, "login", "squeue --noheader --format %T") == "PENDING")
        # It would wait for two minutes. At once is too soon: Slurm has just revoked what a job needs.
        sh(lab, "login", f"scontrol update jobid={job} StartTime=now+3")
        wait_until(lambda: sh(lab, "login", "squeue --noheader") == "")
    logs = [(folder / f"job-{job}-rank-{rank}.txt").read_text("utf-8") for rank in (0, 1)]
    began, continued = first_steps(logs[0])
    stopped = [re.findall(r"^stopped after step (\d+):", log, re.MULTILINE) for log in logs]
    assert (began, stopped) == (0, [[str(continued)]] * 2)
    assert error(checkpoint, 6) < 1e-9


@needs_a_lab
@pytest.mark.slow
def test_mpiexec_starts_it_on_two_machines(folder):
    with Lab(2) as lab:
        mpiexec = "MASTER_ADDR=node0 MASTER_PORT=29500 mpiexec -hosts node0,node1 -ppn 1 -n 2"
        train = f"{mpiexec} python -u train_ddp.py --double --epochs 2"
        (done,) = lab.run(["sh", "-c", f"cd {folder} && {train}"], on=["login"], timeout=150)
    assert done.returncode == 0, done.stderr
    assert first_steps(done.stdout) == [0]
    assert error(folder / "checkpoint.pt", 2) < 1e-9
