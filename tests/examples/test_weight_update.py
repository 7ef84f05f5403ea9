"""examples/weight_update.py sends the weights of some ranks to the others, or says why it cannot."""

import contextlib
import shutil
import signal
import time
import types

import pytest
import torch
import torch.distributed as dist
from machines import needs_a_lab, needs_slurm
from planted import Planted, unnoticed
from processes import finished, free_port, printed, started
from repository import ROOT

from collectives import Lab, launch
from collectives.lab import slurm

FILE = ROOT / "examples" / "weight_update.py"


@pytest.fixture
def folder(tmp_path):
    """A folder that holds nothing but the program."""
    shutil.copy(FILE, tmp_path)
    return tmp_path


def check_versions(stdout, engines):
    """Each engine had the trainer's weights, to the last bit, in each of three versions."""
    lines = sorted(printed(stdout).splitlines())
    sent = [line.removeprefix("trainer 0: ") for line in lines if line.startswith("trainer 0: ")]
    assert [line[:9] for line in sent] == ["version 1", "version 2", "version 3"]
    assert len({line.partition(" is ")[2] for line in sent}) == 3  # the weights change
    names = ["trainer 0", *(f"engine {number}" for number in range(engines))]
    assert lines == sorted(f"{name}: {line}" for name in names for line in sent)


@contextlib.contextmanager
def two_ranks(folder, *options):
    """Without torchrun, which would take longer to start."""
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                started(f"python weight_update.py {one}", folder, **environ, RANK=str(rank))
            )
            for rank, one in enumerate(options)
        ]


def test_the_program_has_no_line_of_this_package():
    assert "collectives" not in FILE.read_text("utf-8")


def test_one_trainer_and_one_engine(folder):
    with two_ranks(folder, "", "") as ranks:
        ended = [one.communicate(timeout=120) for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], ended
    check_versions("".join(stdout for stdout, _ in ended), 1)


WRONG = {
    "never copied back": ("tensor.copy_(part", "tensor.clone().copy_(part"),
    "buckets of another limit": ("4 * 2**20", '2**int(__import__("os").environ["RANK"])'),
    "another root": ("src=0", "src=dist.get_world_size() - 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_update_does_not_go_unnoticed(wrong, folder):
    file = folder / "weight_update.py"
    old, new = WRONG[wrong]
    assert file.read_text("utf-8").count(old) == 1
    file.write_text(file.read_text("utf-8").replace(old, new))
    with two_ranks(folder, *["--width 20000 --limit 5"] * 2) as ranks:
        ended = [one.communicate(timeout=120) for one in ranks]
    if [one.returncode for one in ranks] == [0, 0]:
        with pytest.raises(AssertionError):
            check_versions("".join(stdout for stdout, _ in ended), 1)


def updates(rank, n, device, texts):
    """Runs in a rank: what is wrong with the order of events in an update by each program. The last
    rank is slow.
    """
    store, told = dist.distributed_c10d._get_default_store(), []
    for number, text in enumerate(texts):
        program = {"__name__": "changed"}
        exec(compile(text, FILE, "exec"), program)
        program["BUCKET"] = 1  # each of the two tensors has a bucket of its own
        old, sent = float(rank == 0), []
        model = torch.nn.Linear(4, 2).requires_grad_(False)
        for one in model.parameters():
            one.fill_(old)

        def broadcast(tensor, *, number=number, old=old, sent=sent, model=model, **options):
            dist.broadcast(tensor, **options)
            sent.append(all((one == old).all() for one in model.parameters()))
            time.sleep(0.2 * (rank == n - 1))
            store.add(f"came {number}", 1)

        program["dist"] = types.SimpleNamespace(**vars(dist) | {"broadcast": broadcast})
        program["update"](model, dist.group.WORLD)
        came = store.add(f"came {number}", 0)
        right = [*sent, came == 2 * n, *(bool((one == 1).all()) for one in model.parameters())]
        told.append("" if all(right) else str(right))
        dist.barrier()
    return told


def in_order(faults):
    ranks = launch(updates, 3, args=([fault.text for fault in faults],), backend="gloo")
    return ["\n".join(filter(None, said)) for said in zip(*ranks, strict=True)]


BROADCAST = "dist.broadcast(spares[-1], src=0, group=group)"
FAULTS = [
    Planted(FILE, "dist.barrier(group)", "pass"),
    Planted(FILE, BROADCAST, f"{BROADCAST}; as_bytes(bucket[0]).copy_(spares[-1])"),
]


def test_no_engine_takes_weights_before_all_have_them_and_the_test_would_notice_a_fault():
    nothing = Planted(FILE, BROADCAST, BROADCAST)
    assert unnoticed([nothing, *FAULTS], in_order) == {nothing: ""}


@pytest.mark.slow
def test_two_trainers_and_two_engines(folder):
    """In two buckets: the largest tensor is longer than one."""
    command = "torchrun --standalone --nproc-per-node 4 weight_update.py --trainers 2 --width 20000"
    done = finished(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    check_versions(done.stdout, 2)


@needs_a_lab
@pytest.mark.slow
def test_on_two_machines(folder):
    text = " ".join((folder / "weight_update.py").read_text("utf-8").split())
    command = text[text.index("torchrun --nnodes 2") : text.index(" With Slurm")]
    command = command.replace("NUMBER", "{node}").replace("MACHINE_0", "node0")
    with Lab(2) as lab:
        done = lab.run(["sh", "-c", f"cd {folder}; {command}"])
    assert [one.returncode for one in done] == [0, 0], done
    check_versions("".join(one.stdout for one in done), 2)


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_the_commands_for_slurm(folder):
    text = (folder / "weight_update.py").read_text("utf-8")
    lines = text.partition("With Slurm")[2].splitlines()[2:4]
    (folder / "job.sh").write_text("\n".join(["#!/bin/sh", *(line.strip() for line in lines), ""]))
    with Lab(2) as lab:
        slurm.start(lab)
        command = (
            f"cd {folder}; sbatch --wait -N 2 --ntasks-per-node 2 --output out job.sh; cat out"
        )
        (done,) = lab.run(["sh", "-c", command], on=["login"])
    lines = [line for line in done.stdout.splitlines() if line.startswith(("trainer", "engine"))]
    check_versions("\n".join(lines), 2)


def test_an_engine_that_never_comes(folder):
    with two_ranks(folder, "--limit 1") as (trainer,):
        _, stderr = trainer.communicate(timeout=120)
    assert trainer.returncode == 1
    assert "not all ranks have met after 0:00:01: do all of them run? (" in stderr


def test_shapes_that_differ_are_named_before_a_byte_travels(folder):
    with two_ranks(folder, *["--engine-width 128"] * 2) as ranks:
        ended = [one.communicate(timeout=120) for one in ranks]
    shapes = "0.weight (128, 64) torch.float32", "0.weight (256, 64) torch.float32"
    assert [one.returncode for one in ranks] == [1, 1]
    for stdout, stderr in ended:
        assert printed(stdout) == ""
        assert "engine 0 has {}, and the trainer has {}\n".format(*shapes) in stderr


@pytest.mark.slow
def test_an_engine_that_is_killed_ends_the_trainer_with_a_sentence(folder):
    with two_ranks(folder, *["--updates 1000000 --limit 30"] * 2) as (trainer, engine):
        engine.stdout.readline()
        engine.send_signal(signal.SIGKILL)
        _, stderr = trainer.communicate(timeout=120)
    assert trainer.returncode == 1
    assert "trainer 0: a rank has died, or was silent for 0:00:30 (" in stderr
