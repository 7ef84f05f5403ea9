"""The lessons on model parallelism are short, and draw no pipeline that would hang."""

import pytest
from lesson_source import Source

from collectives.course import chapters
from collectives.pictures.pipeline_slots import PipelineSlots

CHAPTER = chapters.read()["model_parallel"]
SOURCES = {name: Source(name) for name in CHAPTER.names}


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
