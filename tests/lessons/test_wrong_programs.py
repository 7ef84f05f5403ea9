"""The wrong programs that a lesson proposes: its proof must notice each, as the lesson says."""

import re

import pytest
from lesson_source import QUICK, Source
from planted import Planted, by_the_proof_of_every_rank, unnoticed

from collectives.course import chapters, files, wrong

NAMES = [name for part in ("training", "model_parallel") for name in chapters.read()[part].names]


def proposed(name: str) -> list[Planted]:
    source, found = Source(name), []
    for item in source.wrong_programs:
        function, changed = wrong.changed(item, source.code)
        (cell,) = [cell for cell in source.code if f"def {function}(" in cell]
        says = re.search(r"It says `([^`]+)`", item)[1]
        found.append(Planted(files.find(name), cell, changed, says))
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.weekly) for name in NAMES],
)
def test_the_proof_notices_every_wrong_program_and_says_what_the_lesson_says(name):
    faults = proposed(name)
    cells = [cell.strip() for cell in wrong.proposals(files.find(name)).values()]
    assert cells == [fault.new for fault in faults] != []
    assert unnoticed(faults, by_the_proof_of_every_rank) == {}
