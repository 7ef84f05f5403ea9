"""The wrong programs that a lesson proposes: its proof must notice each, as the lesson says."""

import re
from pathlib import Path

from lesson_source import Source

from collectives import Mismatch, launch
from collectives.course import files, wrong


def check_each_is_noticed(source: Source, path: Path, timeout: float) -> None:
    items = source.wrong_programs
    assert items
    cells = list(wrong.proposals(path).values())
    assert len(cells) == len(items)
    found = launch(_said, 4, args=(path, cells), backend="gloo", timeout=timeout)
    # All ranks raise, each with its own values if it was `check` that noticed.
    assert {tuple(one == "nothing" for one in said) for said in found} == {(False,) * len(items)}
    for number, item in enumerate(items):
        said = [one[number] for one in found]
        words = re.search(r"It says `([^`]+)`", item)[1]
        assert any(words in text for text in said), "\n".join(said)


def _said(rank, world_size, device, path, cells):
    """Runs in a rank: what the proof says of each wrong program, all in one world.

    The proof fails on all ranks together, so they stay in step. `check` names each rank itself.
    """
    said = []
    for cell in cells:
        module = files.load(path)
        exec(compile(cell, f"{path}, changed", "exec"), vars(module))
        try:
            for step in module.STEPS:
                vars(module)[step.__name__](rank, world_size, device)
            said.append("nothing")
        except Mismatch as error:
            said.append(str(error))
    return said
