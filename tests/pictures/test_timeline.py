"""A timeline shows what the program orders: test_figures.py has pictures of it that were seen."""

import itertools

import pytest
from figures import words
from hand_made import program

from collectives.pictures import illustration, picture, timeline


def test_from_any_source_the_file_is_the_same_whoever_came_first():
    runs = [
        program(f"recv:any{a} recv:any{b} recv:any{c} barrier", *["send:0 barrier"] * 3)
        for a, b, c in itertools.permutations((1, 2, 3))
    ]
    assert len({picture.svg(timeline.draw(calls, title="any")) for calls in runs}) == 1


@pytest.mark.parametrize("name", ["new_group... barrier", "new_group! barrier", "new_group"])
def test_a_call_that_makes_a_group_is_a_bar_if_it_went_wrong_or_nothing_else_was_called(name):
    figure = timeline.draw(program(name))
    assert words(figure)[-1 if " " not in name else -2].startswith("new_group")
    assert "Grey ticks" not in " ".join(words(figure))


def test_work_of_the_ranks_own_makes_a_timeline():
    calls = program("isend:1 span:multiply wait:0", "irecv:0 wait:0")
    (figure,) = illustration.draw(calls, "overlap")
    assert "multiply" in words(figure)
    calls = [call for call in calls if call.name != "span"]
    told = " ".join(words(timeline.draw(calls)))
    assert "White" not in told
    assert "Thin bar" not in told


def test_how_a_rank_died_stands_in_its_last_call():
    (figure,) = illustration.draw(program("send:1", "recv:0..."), "", died={1: "died (SIGABRT)"})
    assert "recv\nfrom 0\ndied (SIGABRT)" in words(figure)


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([], "No calls were recorded"),
        (program(*["barrier"] * 9), "9 ranks are too many"),
        (program("isend:1 " * 41), "41 steps are too many"),
    ],
    ids=["no calls", "9 ranks", "41 steps"],
)
def test_what_cannot_be_drawn_is_said(calls, told):
    assert told in " ".join(words(timeline.draw(calls)))
