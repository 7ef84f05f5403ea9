"""What is run on a machine with GPUs, most valuable first, in five groups."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from collectives.course import chapters

IS_REHEARSAL = "REHEARSED_GPUS" in os.environ
# A CPU build of torch has no gloo for GPUs, so that its steps are rehearsed on the CPU.
WITH_GLOO = ("gloo", "cpu" if IS_REHEARSAL else "cuda")
WITH_NCCL = ("nccl", "cuda")
PYTHON = sys.executable
COLLECTIVES = (PYTHON, "-m", "collectives")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run")
TRY = (PYTHON, "-m", "tools.first_gpu_run", "--try")

GROUPS = {
    1: "what is here",
    2: "the calls",
    3: "training, and its memory",
    4: "what `wait()` waits for, and how fast copies are",
    5: "several ranks of NCCL, which share a GPU if there is one",
}

CALLS = ("start", "calls")
# Without those that start trainings of their own, which take a minute and are not on NCCL.
TRAINING = [one for one in chapters.read()["training"].names if one != "training/failover"]


@dataclass(frozen=True)
class Machine:
    """What the plan depends on. `ranks`: as many as NCCL gives a GPU of their own, of 4, 2 or 1.

    `most`: also where ranks share a GPU. `library`: another NCCL, which the last group loads.
    """

    gpus: int
    can_share: bool = False
    library: Path | None = None

    @property
    def ranks(self) -> int:
        return max(number for number in (1, 2, 4) if number <= max(self.gpus, 1))

    @property
    def most(self) -> int:
        return 4 if self.can_share else self.ranks


@dataclass(frozen=True)
class GpuStep:
    """One command, what it is to find out, and its time limit in seconds.

    `is_open`: nobody knows how it ends, so a failure is a finding and no fault.
    """

    group: int
    name: str
    question: str
    command: tuple[str, ...]
    limit: float
    is_open: bool = False


Column = tuple[str, str]


def where(column: Column, ranks: int) -> tuple[str, ...]:
    return ("--backend", column[0], "--device", column[1], "-n", str(ranks))


def run(*names: str, ranks: int, column: Column = WITH_NCCL) -> tuple[str, ...]:
    return (*COLLECTIVES, "run", *names, *where(column, ranks))


def matrix(file: Path, ranks: int, column: Column = WITH_NCCL) -> tuple[str, ...]:
    return (*COLLECTIVES, "matrix", "--quick", *where(column, ranks), "--json", str(file))


def bus(last: str, ranks: int, column: Column) -> tuple[str, ...]:
    sizes = ("-b", "1MiB", "-e", last, "-f", "8", "--iters", "10", "--warmup", "2")
    calls = ("all_gather", "all_reduce")
    return (*COLLECTIVES, "bench", "bus", *calls, *sizes, *where(column, ranks))


def tried(name: str, ranks: int) -> tuple[str, ...]:
    """What no command of ours asks by itself: see tries.py."""
    return (*TRY, name, "--ranks", str(ranks))


def steps(folder: Path, machine: Machine) -> list[GpuStep]:
    """All steps. A name ends in the number of ranks: what was rehearsed is compared by name."""
    n = machine.ranks
    return [
        *_what_is_here(machine),
        *_calls(folder, n),
        *_training(n),
        *_waiting(n),
        *_several(folder, machine),
    ]


def _what_is_here(machine: Machine) -> list[GpuStep]:
    there = [
        GpuStep(1, "environment", "Which torch, NCCL and GPUs?", (*COLLECTIVES, "env"), 60),
        GpuStep(1, "first_1", "Does NCCL run?", run("start", "all_reduce", ranks=1), 60),
    ]
    if machine.gpus == 1:
        question = "What does NCCL say to two ranks on one GPU?"
        there.append(GpuStep(1, "refusal", question, tried("refusal", 2), 40))
    return there


def _calls(folder: Path, n: int) -> list[GpuStep]:
    of_gloo = "Does gloo carry what lies on a GPU?"
    gloo = {ranks: run(*CALLS, ranks=ranks, column=WITH_GLOO) for ranks in (2, 4)}
    nccl, file = matrix(folder / f"quick_{n}.json", n), folder / "quick_gloo.json"
    return [
        GpuStep(2, f"calls_{n}", "Is every call right?", run(*CALLS, ranks=n), 120),
        GpuStep(2, "gloo_2", of_gloo, gloo[2], 120, is_open=True),
        GpuStep(2, f"route_{n}", "Do the route's programs run?", tried("route", n), 60),
        GpuStep(2, f"quick_{n}", "Which forms work?", nccl, 180),
        GpuStep(2, "quick_gloo", "And with gloo?", matrix(file, 2, WITH_GLOO), 180, is_open=True),
        GpuStep(2, "gloo_4", "With 4 ranks?", gloo[4], 120, is_open=True),
    ]


def _training(n: int) -> list[GpuStep]:
    of_models = "And those on large models?"
    return [
        GpuStep(3, f"training_{n}", "Do the lessons hold?", run(*TRAINING, ranks=n), 180),
        GpuStep(3, f"model_parallel_{n}", of_models, run("model_parallel", ranks=n), 180),
        GpuStep(3, f"examples_{n}", "Do the programs run?", tried("examples", n), 120),
        GpuStep(3, f"half_{n}", "Also with numbers of 16 bits?", tried("half", n), 90),
        GpuStep(3, f"memory_{n}", "Is the memory as computed?", tried("memory", n), 60),
    ]


def _waiting(n: int) -> list[GpuStep]:
    nccl, gloo = bus("64MiB", n, WITH_NCCL), bus("8MiB", 2, WITH_GLOO)
    return [
        GpuStep(4, f"wait_{n}", "Does `wait()` return before the GPU?", tried("wait", n), 60),
        GpuStep(4, f"copies_{n}", "How fast are copies?", nccl, 60),
        GpuStep(4, "copies_gloo", "And through the CPU, by gloo?", gloo, 60, is_open=True),
    ]


def _several(folder: Path, machine: Machine) -> list[GpuStep]:
    """With 2 and 4 ranks what ran with fewer, and what goes wrong between two ranks."""
    if machine.most == 1:
        return []
    failing = [
        ("hang", "Who is named if a rank stays away?"),
        ("watchdog", "What do the watchdog and Flight Recorder say of it?"),
        ("mismatch", "And if ranks do not agree on a size?"),
        ("dead_rank", "And if one dies?"),
    ]
    again = []
    for number in (2, 4):
        if machine.ranks < number <= machine.most:
            of_calls, file = run(*CALLS, ranks=number), folder / f"quick_{number}.json"
            again += [
                GpuStep(5, f"calls_{number}", f"The calls, {number} ranks?", of_calls, 120),
                GpuStep(5, f"quick_{number}", "Which forms?", matrix(file, number), 180),
                *(
                    GpuStep(5, step.name, step.question, step.command, step.limit)
                    for step in _training(number)
                ),
            ]
    wrong = [GpuStep(5, f"{name}_2", ask, tried(name, 2), 90) for name, ask in failing]
    return [*again[:1], *wrong, *again[1:]]
