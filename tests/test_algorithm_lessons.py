"""The lessons on algorithms are right at every world size, and what they draw is what they send."""

import json
import re
from pathlib import Path

import pytest
import torch
from figures import crossed, texts, too_small
from lesson_rules import Source

from collectives import launch
from collectives.backends.algorithms import nccl
from collectives.backends.by_hand import choice
from collectives.bench import algorithm_times
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.results import table
from collectives.lesson.step import world_of
from collectives.lesson.steps import Played, Steps, draw
from collectives.pictures import crossings, picture
from collectives.pictures.colours import WRONG

CHAPTER = CHAPTERS["algorithms"]
SOURCES = {
    name: Source(CHAPTER, lesson.name, Path(files.find(name)).read_text("utf-8"))
    for name, lesson in zip(CHAPTER.names, CHAPTER.lessons, strict=True)
}


def run_all(rank, world_size, device, path, program=""):
    """Runs in a rank: all steps of a lesson in one world, and the program to write oneself."""
    from collectives.recording import record

    module = files.load(path)
    found = {}
    for step in module.STEPS:
        if world_of(step).ranks <= world_size:
            found[step.__name__] = compared(record.recorded(step), rank, world_size, device)
    exec(compile(program, f"{path}, written", "exec"), vars(module))
    for name in re.findall(r"^def (\w+)\(rank, world_size, device\)", program, re.MULTILINE):
        found[name] = vars(module)[name](rank, world_size, device)
    return found


def compared(recorded_step, rank, world_size, device):
    """The peers that a picture draws messages to, and those that messages went to at last.

    None if the step draws no messages of its own.
    """
    result, calls = recorded_step(rank, world_size, device)
    drawn = [one for one in result.values() if isinstance(one, Steps)]
    if not drawn:
        return None
    to = [peer for one in drawn for peer, sent, _ in one.sent if sent]
    sent = [call.peer for call in calls if call.name in ("send", "isend")]
    return to, sent[len(sent) - len(to) :] if to else sent


# Not a power of two of ranks: these lessons run each time, the others are slow.
ODD = ("ring", "doubling", "bruck")
CELLS = [
    pytest.param(name, n, marks=() if quick else pytest.mark.slow, id=f"{Path(name).name}-{n}")
    for name in CHAPTER.names
    for n in (1, 2, 3, 4, 5, 8)
    for quick in [n == 4 or (n == 3 and Path(name).name in ODD)]
]


@pytest.mark.parametrize(("name", "world_size"), CELLS)
def test_every_step_is_proved_and_draws_the_messages_that_it_sends(name, world_size):
    ((program, output),) = SOURCES[name].answer
    found = launch(
        run_all, world_size, args=(files.find(name), program), backend="gloo", timeout=100.0
    )
    steps = files.load(files.find(name)).STEPS
    for step in steps:
        for one in found:
            if messages := one.get(step.__name__):
                drawn, sent = messages
                assert drawn == sent, step.__name__
    (written,) = found[0].keys() - {step.__name__ for step in steps}
    if world_size == 4:
        assert table(written, [one[written] for one in found]) == output


def over_sockets(collective, nbytes):
    return choice.choose(choice.Call(collective, nbytes, 4, choice.SOCKETS), False)


@pytest.mark.parametrize(
    ("lesson", "algorithm", "collectives"),
    [
        ("tree", "binomial_tree", ["broadcast", "reduce"]),
        ("doubling", "recursive_doubling", ["all_reduce"]),
    ],
)
def test_by_hand_takes_the_algorithm_up_to_the_size_that_the_lesson_names(
    lesson, algorithm, collectives
):
    prose = " ".join(SOURCES[f"algorithms/{lesson}"].section("What libraries do").split())
    said = re.findall(r"`(\w+)` of up to (\d+) KiB", prose)
    assert [collective for collective, _ in said] == collectives
    for collective, kib in said:
        assert over_sockets(collective, int(kib) * 1024) == algorithm
        assert over_sockets(collective, int(kib) * 1024 + 1) != algorithm


def test_the_second_limit_that_the_lesson_doubling_names_is_that_of_by_hand():
    prose = " ".join(SOURCES["algorithms/doubling"].section("What libraries do").split())
    (kib,) = re.findall(r"then halving and doubling up to (\d+) KiB, and a ring for more", prose)
    assert over_sockets("all_reduce", int(kib) * 1024) == "halving_doubling"
    assert over_sockets("all_reduce", int(kib) * 1024 + 1) == "ring"


def test_the_ratios_that_the_lesson_names_are_those_of_the_simulation():
    ratios = {
        one.name: round(nccl.ring_time(one, 24_576, 6) / nccl.tree_time(one, 24_576, 6))
        for one in nccl.ASSUMPTIONS
    }
    prose = SOURCES["algorithms/which_one_when"].prose
    assert f"{ratios.pop('every hop alike')}, which is 49150 / 34." in prose
    assert f"the ratio is between {min(ratios.values())} and {max(ratios.values())}." in prose


def test_measured_curves_are_those_of_the_documentation_and_told_apart_by_ratios():
    times = algorithm_times.measured("gloo", "ring")
    document = json.loads(algorithm_times.MEASURED.read_text(encoding="utf-8"))
    rows = algorithm_times.table_rows(document)
    (cells,) = (cells for name, *cells in rows if name == "ring")
    drawn = [text.get_text() for text in texts(crossings.figure(times, {}, "title", "gloo"))]
    assert [text for text in drawn if text.endswith("x")] == [cell.split()[-1] for cell in cells]
    faster = {"old": [(4, 3.0), (8, 3.0)], "new": [(4, 2.0), (8, 4.0)]}
    drawn = [text.get_text() for text in texts(crossings.figure(faster, {}, "title", "old"))]
    assert [text for text in drawn if text.endswith("x")] == ["1.5x"]


# The picture.


def ring_of_two():
    """What two ranks note that exchange a piece each, and add it."""
    ranks = []
    for rank in (0, 1):
        own = torch.tensor([10**rank])
        steps = Steps([own])
        steps.add([torch.tensor([11])], sent=0, to=1 - rank)
        ranks.append(steps)
    return ranks


def test_the_steps_of_a_run_are_drawn_and_told():
    figure = draw("title", ring_of_two())
    assert figure.get_label() == (
        "title, step by step. Before, rank 0 holds 1; rank 1 holds 10. "
        "Step 1: rank 0 sends piece 0 to rank 1, rank 1 sends piece 0 to rank 0. "
        "Then rank 0 holds 11; rank 1 holds 11."
    )
    assert [text.get_text() for text in texts(figure)][:3] == ["title", "before", "rank 0"]
    assert 'id="step1/0-1"' in picture.svg(figure).decode()


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (1, ["title", "before", "rank 0", "1"]),
        (9, ["title", "9 ranks, 9 pieces: at most 8 ranks and 32 pieces can be drawn."]),
    ],
)
def test_one_rank_is_drawn_and_too_many_are_refused_in_words(n, words):
    memory = [[10**rank] * n for rank in range(n)]
    figure = draw("title", [Played("all_reduce", "ring", memory)])
    assert [text.get_text() for text in texts(figure)][: len(words)] == words


def test_an_arrow_leads_from_the_sender_to_the_receiver():
    giver, taker = Steps([torch.tensor([1])]), Steps([None])
    giver.add([torch.tensor([1])], sent=0, to=1)
    taker.add([torch.tensor([1])])
    figure = draw("title", [giver, taker])
    assert 'id="step1/0-1"' in picture.svg(figure).decode()
    assert "rank 0 sends piece 0 to rank 1. Then" in figure.get_label()


def test_a_value_that_no_sum_gives_has_a_red_edge_and_the_legend_says_so():
    ranks = ring_of_two()
    assert "red edge" not in "".join(text.get_text() for text in texts(draw("right", ranks)))
    ranks[1].held[-1] = [12]
    figure = draw("wrong", ranks)
    assert "red edge" in "".join(text.get_text() for text in texts(figure))
    assert WRONG in picture.svg(figure).decode()


def test_steps_are_printed_as_the_messages_and_bytes_that_a_rank_has_sent():
    assert str(ring_of_two()[0]) == "1 message, 8 bytes"
    played = Played("broadcast", "binomial_tree", [[1], [None], [None], [None]])
    assert str(played) == "2 steps, 3 messages"
    assert [row[0] for row in played.held[-1]] == [1, 1, 1, 1]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "binomial_tree", "double_tree"])
def test_no_text_is_small_or_crossed_by_an_arrow(algorithm, n):
    pieces = {"ring": n, "halving_doubling": 1 << (n.bit_length() - 1), "double_tree": 4}
    memory = [
        [(piece + 1) * 10**rank for piece in range(pieces.get(algorithm, 1))] for rank in range(n)
    ]
    figure = draw("title", [Played("all_reduce", algorithm, memory)])
    assert figure.get_figwidth() * 96 <= 851
    assert too_small(figure) == []
    assert crossed(figure) == []
