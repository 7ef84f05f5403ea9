"""The wrong programs that a lesson proposes: its proof must notice each, as the lesson says."""

import re

import pytest
from lesson_source import QUICK, Source

from collectives import Mismatch, launch
from collectives.course import chapters, files, wrong

NAMES = [name for part in ("training", "model_parallel") for name in chapters.read()[part].names]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_the_proof_notices_every_wrong_program_and_says_what_the_lesson_says(name):
    items = Source(name).wrong_programs
    path = files.find(name)
    cells = list(wrong.proposals(path).values())
    assert len(cells) == len(items) > 0
    ranks = launch(said, 4, args=(path, cells), backend="gloo", timeout=400.0)
    for item, texts in zip(items, zip(*ranks, strict=True), strict=True):
        # All ranks raise, each with its own values if it was `check` that noticed.
        assert "nothing" not in texts, item
        words = re.search(r"It says `([^`]+)`", item)[1]
        assert any(words in text for text in texts), "\n".join(texts)


def said(rank, world_size, device, path, cells):
    """Runs in a rank: what the proof says of each wrong program, all in one world.

    The proof fails on all ranks together, so they stay in step. `check` names each rank itself.
    """
    found = []
    for cell in cells:
        module = files.load(path)
        exec(compile(cell, f"{path}, changed", "exec"), vars(module))
        try:
            for step in module.STEPS:
                vars(module)[step.__name__](rank, world_size, device)
            found.append("nothing")
        except Mismatch as error:
            found.append(str(error))
    return found
