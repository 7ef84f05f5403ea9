"""What the owner of one GPU, or of several, types: the tests, a lesson, the program to take away."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
import torch
from processes import finished, free_port
from repository import ROOT

from collectives.bench.bus import FORMS
from collectives.course import files
from collectives.course.runner import run_step
from collectives.launcher.world import World
from tools import notebooks, route

VISIBLE = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

NAMES = "trainer", "engine"


def test_the_tests_leave_the_gpus_alone_and_say_so():
    one = "tests/launcher/test_launch_failures.py::test_of_two_exceptions_the_first_is_reported"
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", one]
    done = finished(words, env=VISIBLE, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "GPUs: hidden from these tests" in done.stdout


@pytest.mark.parametrize("visible", ["0", "0,1"], ids=["one", "two"])
@pytest.mark.parametrize("words", ["train_ddp.py --epochs 1", "train_sharded.py --steps 2"])
def test_two_ranks_of_a_program_to_take_away_train_on_two_gpus_or_on_none(words, visible, tmp_path):
    name, *options = words.split()
    program = [*TORCHRUN, ROOT / "examples" / name, *options]
    done = finished(program, env={"CUDA_VISIBLE_DEVICES": visible}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"({'cuda' if visible == '0,1' else 'cpu'}), from step 0" in done.stdout


def test_two_ranks_of_accelerate_train_with_one_batch_norm(tmp_path):
    """To the parameters and statistics of one GPU."""
    saved = []
    for visible in "0,1", "0":
        words = ["--model", "conv", "--sync-batch-norm", "--epochs", "1", "--double"]
        number = f"--nproc-per-node={len(visible.split(','))}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", number]
        program = [*torchrun, ROOT / "examples/train_accelerate.py", *words, "--folder", visible]
        done = finished(program, env={"CUDA_VISIBLE_DEVICES": visible}, cwd=tmp_path)
        assert "(cuda)" in done.stdout, done.stderr
        saved.append(torch.load(tmp_path / visible / "model.pt", map_location="cpu")["model"])
    torch.testing.assert_close(*saved)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("first_training.py", "rank 1, step 2: own gradient -58.80, mean -49.98, weight 2.52"),
        ("spawn.py", "cuda:1: 11"),
        ("hello.py nccl", "cuda:1: 11"),
        ("probe_backend.py nccl cuda", "recv                    works"),
        ("weight_update.py", "engine 0: version 3 is "),
    ],
)
def test_two_ranks_of_a_small_program_to_take_away_run_on_two_gpus(words, said):
    name, *options = words.split()
    begin = [sys.executable] if name == "spawn.py" else TORCHRUN
    program = [*begin, ROOT / "examples" / name, *options]
    done = finished(program, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("program", route.programs()[4:], ids=lambda path: path.stem)
def test_two_ranks_of_a_program_of_the_route_train_on_two_gpus(program, tmp_path):
    """As on the CPU; but dropout draws from a GPU's generator."""
    done = finished([*TORCHRUN, program], env={"CUDA_VISIBLE_DEVICES": "0,1"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = re.findall(r"rank [01], epoch 2: .*?weights (-?\d+\.\d{6})", done.stdout)
    assert len(last) == 2
    assert last[0] == last[1]
    assert (last[0] == "0.578264") == ("dropout" not in program.read_text("utf-8").lower())


def test_two_jobs_share_their_gpus():
    """Each job has NCCL for its own ranks."""
    port = str(free_port())
    folder = ROOT / "examples" / "weight_update_two_jobs"
    with ThreadPoolExecutor(2) as jobs:
        commands = [[*TORCHRUN, folder / f"{name}.py", "--port", port] for name in NAMES]
        environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
        trainer, engine = jobs.map(lambda words: finished(words, env=environ), commands)
    assert [trainer.returncode, engine.returncode] == [0, 0], trainer.stderr + engine.stderr
    (last,) = re.findall("trainer: version 3 is .*", trainer.stdout)
    weights = last.removeprefix("trainer: ")
    assert engine.stdout.count(f"{weights}, all engines count") == 2


def test_a_table_of_bandwidths_finds_nothing_wrong():
    words = [sys.executable, "-m", "collectives", "bench", "bus", *FORMS, "--backend", "nccl"]
    few = ["-n", "2", "-b", "1KiB", "-e", "1KiB", "--iters", "2", "--warmup", "1"]
    done = finished([*words, *few], env=VISIBLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nccl on cuda" in done.stdout


WHERE = "from collectives import launch\nlaunch(lambda rank, n, device: str(device))"


def test_a_notebook_shows_on_gpus_what_it_shows_on_the_cpu(monkeypatch):
    lesson = files.find("all_reduce")
    notebook = notebooks.unexecuted(lesson)
    notebook.cells.append(nbformat.v4.new_code_cell(WHERE))
    monkeypatch.setattr(notebooks, "unexecuted", lambda lesson: notebook)
    monkeypatch.setitem(notebooks._ENVIRON, "CUDA_VISIBLE_DEVICES", "0,1,2,3")
    *found, where = asyncio.run(notebooks.executed(lesson)).cells
    assert where.outputs[0].data["text/plain"] == "['cuda:0', 'cuda:1', 'cuda:2', 'cuda:3']"
    on_the_cpu = nbformat.read(notebooks.path_of(lesson), 4).cells
    assert [*map(outputs, found)] == [*map(outputs, on_the_cpu)]


def outputs(cell):
    """Without pixels: another processor may round the grey of a letter's edge in another way."""
    for output in cell.get("outputs", []):
        output.get("data", {}).pop("image/png", None)
    return cell.get("outputs")


def only(*forms):
    return [word for form in forms for word in ("--collective", form)]


NCCL = ["--backend", "nccl"]
# A group without rank 0 that is larger than two ranks needs four.
SUBGROUPS = only("nn.all_gather", "nn.gather", "nn.scatter", "nn.all_to_all", "nn.broadcast")
# Of gloo, what needs nothing of a GPU but its copies: a CPU build has no all_reduce of gloo for
# GPUs, and here the memory of a GPU is the CPU's, out of which gloo can send a message.
COPIED = only("broadcast", "all_gather_single", "gather", "scatter", "all_to_all")
GLOO = ["--backend", "gloo", "--device", "cuda", *COPIED]


@pytest.mark.parametrize(
    "words",
    [
        [*NCCL, "--quick"],
        [*NCCL, "-n", "4", *SUBGROUPS],
        [*GLOO, "--dtype", "float32", "--dtype", "complex64", "--dtype", "float8_e5m2"],
    ],
    ids=["nccl", "nccl with four ranks", "gloo"],
)
def test_the_matrix_finds_what_is_claimed(words):
    """Both were read in the same sources: what differs is a fault of the rehearsal, or of a claim."""
    done = finished([sys.executable, "-m", "collectives", "matrix", *words], env=VISIBLE)
    assert done.returncode == 0, done.stdout


def test_a_step_whose_ranks_choose_their_backend_says_which():
    step = next(one for one in files.load(files.find("launching")).STEPS if one.world.fresh)
    text = run_step(step, World.chosen(backend="nccl", timeout=100)).text
    assert text.endswith("on gloo: fresh ranks choose their backend themselves\n"), text


AN_OLDER_TORCH = """
import os, sys
if "first" in sys.argv:
    import collectives
import torch, torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
if "then" in sys.argv:
    import collectives
print(*(hasattr(one, "all_gather_single") for one in (dist, dist.distributed_c10d, functional)))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
fully_shard(model := torch.nn.Linear(2, 2))  # torch itself calls all_gather_single
model(torch.ones(2)).sum().backward()
dist.all_gather_into_tensor(whole := torch.empty(2), torch.ones(2))
if sys.argv[1:]:
    dist.all_gather_single(whole, whole + 1)
print(whole.tolist())
"""


@pytest.mark.parametrize("words", ["", "first", "then"])
def test_an_older_torch_lacks_names_until_somebody_gives_them(words):
    program = [sys.executable, "-c", AN_OLDER_TORCH, *words.split()]
    done = finished(program, env=VISIBLE | {"REHEARSED_TORCH_NAMES": "2.11"}, cwd=ROOT)
    is_there, value = (True, 2.0) if words else (False, 1.0)
    assert done.stdout == f"{is_there} {is_there} {is_there}\n{[value, value]}\n", done.stderr


def test_make_gpu_goes_on_after_it_was_stopped_in_another_folder_from_the_archive(tmp_path):
    command = [sys.executable, "-m", "tools.first_gpu_run", "--archive", str(tmp_path / "it.zip")]
    one = {"CUDA_VISIBLE_DEVICES": "0", "REHEARSED_NCCL": "2.28.9", "PYTHONUNBUFFERED": "1"}
    first = [*command, "--folder", str(tmp_path / "a")]
    with subprocess.Popen(
        first, cwd=ROOT, env=os.environ | one, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("first_1"):
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 130
    again = [*command, "--folder", str(tmp_path / "b"), "--minutes", "0.5"]
    done = finished(again, env=one, cwd=ROOT)
    assert "environment: ended before (exit status 0)\nfirst_1: " in done.stdout, done.stderr
    ended = json.loads((tmp_path / "b/steps.json").read_text())
    assert [step["name"] for step in ended][:2] == ["environment", "first_1"]
