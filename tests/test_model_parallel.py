"""The lessons on model parallelism are right at 2, 4 and 8 ranks, and notice a wrong program."""

import pytest
from lesson_source import Source
from wrong_programs import check_each_is_noticed

from collectives import launch
from collectives.course import chapters, files
from collectives.course.marks import world_of
from collectives.pictures.pipeline_slots import PipelineSlots

CHAPTER = chapters.read()["model_parallel"]
SOURCES = {name: Source(name) for name in CHAPTER.names}


def run_all(rank, world_size, device, path):
    """Runs in a rank: all steps of a lesson, in one world."""
    steps = [one for one in files.load(path).STEPS if world_of(one).ranks <= world_size]
    for step in steps:
        step(rank, world_size, device)
    return len(steps)


# With 4 ranks every lesson runs in test_notebooks.py.
@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHAPTER.names)
def test_every_step_proves_itself(name, world_size):
    found = launch(run_all, world_size, args=(files.find(name),), backend="gloo", timeout=200.0)
    assert found[0]
    assert found == [found[0]] * world_size


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in CHAPTER.names]
)
def test_the_proof_notices_every_wrong_program_and_says_what_the_lesson_says(name):
    check_each_is_noticed(SOURCES[name], files.find(name), timeout=400.0)


@pytest.mark.parametrize("name", CHAPTER.names)
def test_a_lesson_is_short(name):
    assert len(SOURCES[name].text.splitlines()) <= 250
    assert len(SOURCES[name].prose.split()) <= 900


def test_the_model_has_at_most_40_lines_of_code():
    lines = (CHAPTER.lessons[0].path.parent / "model.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 40


def test_passes_that_wait_for_each_other_have_no_picture():
    """Rank 0 wants to go back before rank 1 has the micro-batch."""
    orders = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match="naive: ranks wait for each other in slot 0"):
        PipelineSlots.of("naive", orders)
