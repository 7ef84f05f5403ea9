"""Lessons on the GPUs that are played: all steps that join one world, but those left out below."""

import pytest
import torch
import torch.distributed as dist

from collectives import launch
from collectives.course import chapters, files
from collectives.verify import ask, lessons

CHAPTERS = chapters.read()

# Steps that cannot run here, and why.
LEFT_OUT = {
    "result_is_late": "it looks into memory that a call still writes, on purpose, which is a race here",
    "compiled": "the compiler asks the build of torch for more of CUDA than is played",
    "seeds": "it repeats dropout with the CPU's generator, and a network on a GPU draws from the GPU's",
    "checkpoint": "it saves the state of the CPU's generator, and a network on a GPU draws from the GPU's",
    "damaged_file": "as checkpoint, whose training it continues",
}


def steps_of(names, n):
    """By lesson, the steps that run here in a world of `n` ranks."""
    found = {name: lessons.runnable(name, "nccl", "cuda", n) for name in names}
    return {
        name: [step for step in steps if step.__name__ not in LEFT_OUT]
        for name, steps in found.items()
    }


def run_steps(rank, n, device, names):
    for name, steps in steps_of(names, n).items():
        for step in steps:
            try:
                step(rank, n, device)
            except Exception as error:
                error.add_note(f"in step {step.__name__} of {name}")
                raise
        dist.all_reduce(torch.zeros(1, device=device))


@pytest.mark.parametrize(
    ("chapter", "n", "count"),
    [
        *(("calls", *sizes) for sizes in ((1, 4), (2, 4), (4, 4), (4, 2))),
        *(
            (chapter, 2, 4)
            for chapter in ("start", "launching", "training", "model_parallel", "algorithms")
        ),
    ],
)
def test_rehearsed_lessons(chapter, n, count, gpus, record_property):
    gpus(count)
    names = CHAPTERS[chapter].names
    launch(run_steps, n, args=(names,), backend="nccl", timeout=500)
    runs = sum(map(len, steps_of(names, n).values()))
    every = sum(len(files.load(files.find(name)).STEPS) for name in names)
    column = f"{n} ranks, {count} GPUs"
    counts = {"ran": runs, "left out": every - runs}
    ask.note(record_property, "rehearsed, not run on a GPU", chapter, column, counts, False)


def test_what_is_left_out_exists():
    every = {
        step.__name__
        for one in CHAPTERS.values()
        for name in one.names
        for step in files.load(files.find(name)).STEPS
    }
    assert LEFT_OUT.keys() <= every
