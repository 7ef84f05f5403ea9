"""Lessons on the GPUs that are played: all steps that join one world."""

import pytest
import torch
import torch.distributed as dist

from collectives import launch
from collectives.course import chapters, files
from collectives.verify import ask, lessons

CHAPTERS = chapters.read()


def steps_of(names, n):
    """By lesson, the steps that run here in a world of `n` ranks."""
    return {name: lessons.runnable(name, "nccl", "cuda", n) for name in names}


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
        *((chapter, 2, 4) for chapter in ("start", "launching", "training", "model_parallel")),
        ("algorithms", 4, 4),
        ("model_parallel/long_text", 4, 4),  # two ranks make no ring
    ],
)
def test_rehearsed_lessons(chapter, n, count, gpus, record_property):
    gpus(count)
    names = CHAPTERS[chapter].names if chapter in CHAPTERS else (chapter,)
    launch(run_steps, n, args=(names,), backend="nccl", timeout=500)
    runs = sum(map(len, steps_of(names, n).values()))
    every = sum(len(files.load(files.find(name)).STEPS) for name in names)
    column = f"{n} ranks, {count} GPUs"
    counts = {"ran": runs, "left out": every - runs}
    title = "rehearsed, not run on a GPU"
    record_property(ask.ASKED, (title, chapter, column, dict(counts), False))
