"""A hang is drawn as the circle of who waits for whom (read from the figure)."""

import pytest
from drawn import HANGS
from figures import words
from hand_made import program

from collectives.pictures import timeline, waiting


def test_the_call_stands_at_its_arrow_and_the_words_say_the_same():
    figure = waiting.draw(program(*HANGS["tags differ"]), title="tags")
    assert {"send to 1, tag 1", "recv from 0, tag 2"} <= {*words(figure)}
    assert figure.get_label() == (
        "tags. Rank 0 waits for rank 1 in send to 1, tag 1. "
        "Rank 1 waits for rank 0 in recv from 0, tag 2. "
        "The arrows close a circle, 0 -> 1 -> 0: no rank can continue."
    )


def test_ranks_that_take_the_same_number_do_not_wait_for_each_other():
    calls = program("init_process_group:0...", "init_process_group:0...")
    assert waiting.waits(calls) == []
    assert "Rank 1: init_process_group as rank 0 never returned." in timeline.describe(calls)


def test_where_no_circle_is_none_is_claimed():
    assert "circle" not in waiting.describe(program(*HANGS["one is missing"]))
    assert "circle, 1 -> 2 -> 1" in waiting.describe(program(*HANGS["across"]))


@pytest.mark.parametrize(
    "calls", [["send:1", "recv:0"], ["send:1!", "recv:0!"], ["recv:any1...", ""]]
)
def test_who_does_not_wait_for_a_certain_rank_has_no_arrow(calls):
    assert waiting.waits(program(*calls)) == []
