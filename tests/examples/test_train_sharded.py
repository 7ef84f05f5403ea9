"""The program for sharded training trains the model of one process: on a mesh, also when it is killed,
stopped, and continued by another number of ranks, under each launcher.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import tempfile
import types
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from machines import needs_a_lab, needs_slurm
from our_backends import needs_mpi
from planted import Planted, unnoticed
from processes import finished, free_port, started, wait_until
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, gelu

from collectives import Lab, launch
from collectives.course import chapters
from collectives.lab import slurm

FILE = chapters.folder().parent / "examples" / "train_sharded.py"
STEPS, CLIP = 4, 0.6


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()


def heads(x):
    return x.view(len(x), 8, 4, 8)


def one_process(steps):
    """The parameters by name, by a program that has no part in common with the example; and how
    many steps it has clipped.
    """
    torch.manual_seed(0)
    layers = {"line": nn.Linear(8, 32), "place": nn.Embedding(8, 32)}
    for block in ("blocks.0", "blocks.1"):
        for name in ("query", "key", "value"):
            layers[f"{block}.{name}"] = nn.Linear(32, 32, bias=False)
        layers[f"{block}.out"] = nn.Linear(32, 32)
        layers |= {f"{block}.up": nn.Linear(32, 128), f"{block}.down": nn.Linear(128, 32)}
    layers["head"] = nn.Linear(32, 10)
    p = {f"{name}.{k}": v for name, one in layers.items() for k, v in one.named_parameters()}
    for block in ("blocks.0", "blocks.1"):
        sizes = {"norm1": 32, "norm2": 32, "query_norm": 8, "key_norm": 8}
        p |= {f"{block}.{name}.weight": torch.ones(size) for name, size in sizes.items()}
    p = {name: one.detach().double().requires_grad_() for name, one in p.items()}

    def linear(name, x):
        y = x @ p[f"{name}.weight"].T
        return y + p[f"{name}.bias"] if f"{name}.bias" in p else y

    def network(images):
        x = linear("line", images) + p["place.weight"]
        for block in ("blocks.0", "blocks.1"):
            y = rms(x, p[f"{block}.norm1.weight"])
            q, k, v = (heads(linear(f"{block}.{name}", y)) for name in ("query", "key", "value"))
            q, k = rms(q, p[f"{block}.query_norm.weight"]), rms(k, p[f"{block}.key_norm.weight"])
            weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5).softmax(-1)
            y = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
            x = x + linear(f"{block}.out", y)
            y = rms(x, p[f"{block}.norm2.weight"])
            x = x + linear(f"{block}.down", gelu(linear(f"{block}.up", y)))
        return linear("head", x.mean(1))

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images).view(-1, 8, 8) / 16, torch.tensor(labels)
    optimizer, clipped = torch.optim.AdamW(p.values()), 0
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        batch = order[step * 64 :][:64]
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / steps)
        optimizer.zero_grad()
        cross_entropy(network(images[batch]), labels[batch]).backward()
        norm = torch.cat([one.grad.flatten() for one in p.values()]).norm()
        clipped += norm > CLIP
        for one in p.values():
            one.grad *= min(1, CLIP / (norm + 1e-6))  # as PyTorch does
        optimizer.step()
    return p, int(clipped)


def error(checkpoint, expected):
    """The largest relative error of a parameter in it."""
    dcp_to_torch_save(checkpoint, file := checkpoint.parent / "model.pt")
    got = torch.load(file, weights_only=False)["model"]
    assert got.keys() == expected.keys()
    return max(((got[name] - one).norm() / one.norm()).item() for name, one in expected.items())


# In a world of `launch`: all but the meeting of the ranks and its end.

OPTIONS = {"tensor": 2, "steps": STEPS, "batch": 64, "accumulation": 2, "clip": CLIP}
OPTIONS |= {"double": True, "bf16": False, "log_every": 1, "save_every": 10}


def program(text, rank, n):
    """The names of a program."""
    names = {"__name__": "example", "__file__": str(FILE)}
    exec(compile(text, FILE, "exec"), names)
    numbers, dimensions = {"RANK": rank, "WORLD_SIZE": n}, ("data", "tensor")
    names["dist"] = types.SimpleNamespace(**vars(dist) | {"destroy_process_group": lambda: None})
    names["variable"] = lambda name, *_: numbers[name]
    names["start"] = lambda _, __, tensor: init_device_mesh(
        "cpu", (n // tensor, tensor), mesh_dim_names=dimensions
    )
    return names


def runs(rank, n, device, wanted):
    """Runs in a rank: how each of these programs ends with these options, and what it prints.

    `stop_at` is the step in which the last rank gets a SIGTERM. `by_rank` are its folders.
    """
    torch.set_num_threads(1)
    ended = []
    for text, options in wanted:
        options = OPTIONS | options
        stop_at, folders = options.pop("stop_at", 0), options.pop("by_rank", None)
        options |= {"checkpoint": folders[rank]} if folders else {}
        names = program(text, rank, n)
        step, calls = names["train_step"], []

        def with_a_signal(*arguments, step=step, calls=calls, stop_at=stop_at):
            calls.append(1)
            if len(calls) == stop_at and rank == n - 1:
                signal.raise_signal(signal.SIGTERM)
            return step(*arguments)

        names["train_step"] = with_a_signal
        printed, code = io.StringIO(), 0
        with contextlib.redirect_stdout(printed):
            try:
                names["main"](argparse.Namespace(**options))
            except SystemExit as end:
                code = end.code
            except Exception as error:  # of a program that is wrong
                code = repr(error)
        ended.append((code, printed.getvalue()))
    return ended


def launched(n, *wanted):
    """What `runs` returns on rank 0, and how each program ended on the other ranks, which agree."""
    first, *others = launch(runs, n, args=(wanted,), backend="gloo", timeout=300.0)
    assert all([code for code, _ in one] == [code for code, _ in first] for one in others)
    return first


RIGHT = FILE.read_text("utf-8")


def test_it_trains_the_model_of_one_process_also_when_it_is_stopped_and_says_what_is_wrong(
    tmp_path,
):
    run, empty = tmp_path / "run", tmp_path / "empty"
    wrong = [
        (RIGHT.replace("WIDTH, HEADS = 32", "WIDTH, HEADS = 16"), {"checkpoint": run}),
        (RIGHT.replace("Sequential(Block(), Block())", "Sequential(Block())"), {"checkpoint": run}),
        (RIGHT, {"checkpoint": run, "steps": 5}),
        (RIGHT, {"by_rank": (run, empty)}),
        (RIGHT, {"checkpoint": empty, "tensor": 3}),
        (RIGHT, {"checkpoint": empty, "tensor": 1, "batch": 62}),
        (RIGHT, {"checkpoint": empty, "batch": 1798}),
    ]
    right = [(RIGHT, {"checkpoint": run, "stop_at": 2}), (RIGHT, {"checkpoint": run})]
    (stopped, _), (ended, said), *refused = launched(2, *right, *wrong)
    assert (stopped, ended) == (os.EX_TEMPFAIL, 0)
    assert "1 x 2 ranks (cpu), from step 2\n" in said
    last = run / f"step-{STEPS:06}"
    of_another = f"{last} is of another model, or of another --batch or --steps"
    folders = f"--checkpoint must be one folder for all ranks, but they find {[[last], []]}"
    divides = "--tensor 3 must divide 2 ranks and 4 heads"
    batch = "--batch 62 is no multiple of 2 ranks * --accumulation"
    large = "AssertionError('--batch is more than 1797 samples')"
    assert [code for code, _ in refused] == [of_another] * 3 + [folders, divides, batch, large]
    expected, clipped = one_process(STEPS)
    assert 0 < clipped < STEPS
    assert error(last, expected) < 1e-9


def by_one_process(faults):
    """For each fault, what the comparison with one process says."""
    told = []
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, str(number)) for number in range(len(faults))]
        texts = [fault.text for fault in faults]
        wanted = [(text, {"checkpoint": one}) for text, one in zip(texts, folders, strict=True)]
        expected, _ = one_process(STEPS)
        for (code, _), one in zip(launched(4, *wanted), folders, strict=True):
            wrong = 0.0 if code else error(one / f"step-{STEPS:06}", expected)
            told.append(str(code) if code else f"relative error {wrong}" * (wrong > 1e-9))
    return told


SYNC = "model.set_requires_gradient_sync(left == 0)"
TOTAL = "get_total_norm(one.grad for one in part).full_tensor()"
PLANTED = [
    Planted(FILE, old, new, "relative error")
    for old, new in [
        (TOTAL, "get_total_norm(one.grad.to_local() for one in part)"),
        ("torch.stack(norms).norm()", "torch.stack(norms).sum()"),
        ('PLAN |= dict.fromkeys(("query_norm", "key_norm"), BY_HEADS)\n', ""),
        (SYNC, "model.set_requires_gradient_sync(left > 0)"),
        ("bf16 if options.bf16 else MixedPrecisionPolicy()", "bf16"),
        ('mesh.get_local_rank("data") ::', "0 ::"),
        ('mesh.get_local_rank("data") ::', "mesh.get_rank() % 2 ::"),
    ]
]
PLANTED += [Planted(FILE, SYNC, "model.set_requires_gradient_sync(False)", "'NoneType'")]


@pytest.mark.slow
def test_four_ranks_train_the_model_of_one_process_and_a_program_that_is_wrong_does_not():
    nothing = Planted(FILE, SYNC, SYNC)
    assert unnoticed([nothing, *PLANTED], by_one_process) == {nothing: ""}


@pytest.mark.slow
def test_in_bfloat16_the_losses_are_almost_those_of_float64(tmp_path):
    in_bits = {64: {"double": True}, 16: {"double": False, "bf16": True}}
    wanted = [
        (RIGHT, {"checkpoint": tmp_path / str(bits), "steps": 12, "accumulation": 1} | changed)
        for bits, changed in in_bits.items()
    ]
    losses = [
        [float(loss) for loss in re.findall(r"loss (\S+),", said)]
        for _, said in launched(2, *wanted)
    ]
    print("float64  bfloat16", *zip(*losses, strict=True), sep="\n")
    assert losses[0][-1] < losses[0][0] - 0.3
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], abs=0.05)


# As one types it, in a folder with nothing else.

LONG = 12


@pytest.fixture
def command(tmp_path):
    """The program with its options, in the folder."""
    shutil.copy(FILE, tmp_path)
    options = f"--double --clip {CLIP} --log-every 1 --save-every 1 --steps"
    return lambda tensor, steps=STEPS: f"{FILE.name} --tensor {tensor} {options} {steps}"


def assert_trained(folder, steps=STEPS):
    assert error(folder / "run" / f"step-{steps:06}", one_process(steps)[0]) < 1e-9


def ranks():
    """The living ranks below this process, by number."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if FILE.name in line and "torchrun" not in " ".join(line):
                found[int(process.environ()["RANK"])] = process
    return found


def wait_for_a_checkpoint(folder):
    """A new one."""
    before = {*folder.glob("run/*/.metadata")}
    wait_until(lambda: {*folder.glob("run/*/.metadata")} - before)


@pytest.mark.slow
def test_one_rank_trains_it(command, tmp_path):
    done = finished(f"torchrun {command(tensor=1)}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_trained(tmp_path)


@pytest.mark.slow
def test_two_ranks_are_killed_then_stopped_and_four_continue(command, tmp_path):
    torchrun = f"torchrun --nproc-per-node 2 --max-restarts 1 {command(2, LONG)}"
    with started(torchrun, tmp_path, OMP_NUM_THREADS="1") as process:
        wait_for_a_checkpoint(tmp_path)
        ranks()[1].kill()
        wait_until(lambda: len(ranks()) == 0)
        wait_for_a_checkpoint(tmp_path)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=200)
    began, continued = [int(step) for step in re.findall(r"from step (\d+)$", stdout, re.MULTILINE)]
    assert (process.returncode, began) == (1, 0), stderr
    (stopped,) = {int(step) for step in re.findall(r"stopped after step (\d+):", stderr)}
    assert 0 < continued < stopped < LONG
    done = finished(f"torchrun --nproc-per-node 4 {command(2, LONG)}", cwd=tmp_path)
    assert f"2 x 2 ranks (cpu), from step {stopped}\n" in done.stdout, done.stderr
    assert_trained(tmp_path, LONG)


@needs_a_lab
@pytest.mark.slow
def test_a_rank_is_killed_on_one_of_two_machines_and_both_continue(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meet = "--nnodes 2 --node-rank {node} --master-addr node0 --master-port 29500"
    torchrun = f"torchrun --nproc-per-node 1 --max-restarts 1 {meet} {command(2, LONG)}"
    with Lab(2) as lab:
        text = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"text": True}
        begun = [lab.start(node, torchrun, **text) for node in lab.nodes]
        wait_for_a_checkpoint(tmp_path)
        ranks()[1].kill()
        ended = [one.communicate(timeout=200) for one in begun]
    assert [one.returncode for one in begun] == [0, 0], ended
    steps = re.findall(r"from step (\d+)$", ended[0][0], re.MULTILINE)
    assert 0 == int(steps[0]) < int(steps[1]) < LONG
    assert_trained(tmp_path, LONG)


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_it_trains_under_srun(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Lab(2) as lab:
        slurm.start(lab)
        meet = "env MASTER_ADDR=node0 MASTER_PORT=29500"
        (done,) = lab.run(f"{meet} srun -N2 python -u {command(2)}", on=["login"], timeout=150)
    assert done.returncode == 0, done.stderr
    assert_trained(tmp_path)


@pytest.mark.slow
@needs_mpi
def test_it_trains_under_mpiexec(command, tmp_path):
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    done = finished(f"mpiexec -n 2 python -u {command(1)}", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert_trained(tmp_path)
