"""The lessons on algorithms are right at every world size, and what they draw is what they send."""

import functools
import re

import pytest
import torch
from drawn import ring_of_two
from figures import texts
from lesson_source import Source
from planted import note
from wrong_collectives import SENT_TOO_MUCH, send_also

from collectives import Mismatch, counting, launch
from collectives.algorithms import table as algorithms
from collectives.course import chapters, files
from collectives.course.marks import world_of
from collectives.pictures import picture
from collectives.pictures.colours import WRONG
from collectives.pictures.crossings import Times
from collectives.pictures.step_log import SchedulePlayback, StepLog
from collectives.process_groups.by_hand import choice
from collectives.recording.counts import note as note_sent
from tools.docs import SECTIONS

CHAPTER = chapters.read()["algorithms"]
SOURCES = {name: Source(name) for name in CHAPTER.names}

with files.imports_from(CHAPTER.lessons[0].path.parent):
    import latencies
    import measured
    from trees import Trees


def run_all(rank, world_size, device):
    """Runs in a rank: all steps of all lessons in one world. Returns those that draw a lie."""
    steps = [step for name in CHAPTER.names for step in files.load(files.find(name)).STEPS]
    here = [step for step in steps if world_of(step).ranks <= world_size]
    return [
        step.__name__ for step in here if not draws_what_it_sends(step, rank, world_size, device)
    ]


def draws_what_it_sends(step, rank, world_size, device):
    """Whether the messages of a picture go where the last messages of the step went.

    A step that calls nothing has proved nothing: its results must be marked as computed or looked
    up.
    """
    from collectives.recording import record

    with record.recording() as calls:
        result = step(rank, world_size, device)
    if world_size > 1:
        assert (world_of(step).how_known == "proved") == bool(calls), step.__name__
    drawn = [one for one in result.values() if isinstance(one, StepLog)]
    to = [peer for one in drawn for peer, sent, _ in one.sent if sent]
    sent = [call.peer for call in calls if call.name in ("send", "isend")]
    return not drawn or to == (sent[-len(to) :] if to else sent)


def unnoticed(rank, world_size, device, extra, paths):
    """Runs in a rank: the steps that send messages and do not notice that more are sent."""
    from collectives.pictures import step_log

    send_also(extra)
    found, mismatches = [], []
    step_log.check = functools.partial(note, mismatches)
    for path in paths:
        module = files.load(path)
        module.check = step_log.check
        for step in module.STEPS:
            mismatches.clear()
            with counting() as counts:
                step(rank, world_size, device)
            # double_tree hands its messages to the process group itself: they are not doubled.
            if counts["c10d.send"].calls and not mismatches and step.__name__ != "double_tree":
                found.append(step.__name__)
    return found


@pytest.mark.parametrize("extra", SENT_TOO_MUCH, ids=lambda extra: extra.replace(" ", "_"))
def test_every_step_notices_that_it_sends(extra):
    paths = [files.find(name) for name in CHAPTER.names if "with StepLog(" in SOURCES[name].text]
    found = launch(unnoticed, 4, args=(SENT_TOO_MUCH[extra], paths), backend="gloo", timeout=60.0)
    assert found == [[], [], [], []]


@pytest.mark.parametrize(
    "world_size", [3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5, 8))]
)
def test_every_step_is_proved_and_draws_the_messages_that_it_sends(world_size):
    assert launch(run_all, world_size, backend="gloo", timeout=300.0) == [[]] * world_size


def test_a_step_that_shows_measured_times_says_that_they_are_looked_up():
    for name in CHAPTER.names:
        for step in files.load(files.find(name)).STEPS:
            is_table = "measured" in step.__code__.co_names
            assert (world_of(step).how_known == "looked up") == is_table, step.__name__


def test_the_times_of_gloo_that_a_lesson_names_are_those_of_the_table():
    gloo = dict(measured.times(4, "gloo")["gloo"])
    said = f"gloo takes {1000 * gloo[2**16]:.1f} ms for 64 KiB and {1000 * gloo[2**20]:.1f} ms for 1 MiB"
    assert said in " ".join(SOURCES["algorithms/which_one_when"].prose.split())


def over_sockets(collective, nbytes):
    return choice.choose(choice.ByHandCall(collective, nbytes, 4, choice.SOCKETS), False)


def test_by_hand_takes_the_algorithm_up_to_the_size_that_the_lesson_names():
    for lesson, algorithm, words in (
        ("tree", "binomial_tree", r"`(\w+)` of up to (\d+) KiB"),
        ("doubling", "recursive_doubling", r"`(\w+)` of up to (\d+) KiB"),
        (
            "doubling",
            "halving_doubling",
            r"()then halving and doubling up to (\d+) KiB, and a ring",
        ),
    ):
        prose = " ".join(SOURCES[f"algorithms/{lesson}"].section("What libraries do").split())
        said = re.findall(words, prose)
        assert said
        for collective, kib in said:
            largest = int(kib) * 1024
            assert over_sockets(collective or "all_reduce", largest) == algorithm
            assert over_sockets(collective or "all_reduce", largest + 1) != algorithm
    assert over_sockets("all_reduce", largest + 1) == "ring"


def test_latencies_hold_no_transfer():
    """The comment that NCCL has above its table, and what it means for the two constants."""
    words = " ".join(latencies.__doc__.split()).replace("// ", "")
    assert "Tree/Simple is the latency a 256kB chunk, which is ~ base lat + 256k/12GB/s" in words
    rows = re.findall(r"Tree .*?\) ([\d. ]+) Ring .*?\) ([\d. ]+)", words)
    (_, _, inside), (_, _, between) = (map(float, tree.split()) for tree, _ in rows)
    transfer = 256 * 1024 / 12e9 * 1e6
    assert pytest.approx((inside - transfer, between - 2 * transfer)) == latencies.TREE_SIMPLE
    said = re.findall(
        r"([\d.]+) and ([\d.]+) µs are left", SOURCES["algorithms/ring_or_tree"].prose
    )
    assert said == [tuple(f"{latency:.1f}" for latency in latencies.TREE_SIMPLE)]


def test_measured_curves_are_told_apart_by_ratios():
    times = Times(measured.times(4, "gloo", "ring"), "gloo", measured.where(4))
    row = next(
        line for line in SECTIONS["times"].read().splitlines() if line.startswith("| `ring`")
    )
    drawn = [text.get_text() for text in texts(draw([times]))]
    assert [text for text in drawn if text.endswith("x")] == re.findall(r"[\d.]+x", row)
    assert times.shows == "How long each algorithm takes, by size, 4 ranks on 2 cores"
    faster = {"old": [(4, 3.0), (8, 3.0)], "new": [(4, 2.0), (8, 4.0)]}
    drawn = [text.get_text() for text in texts(draw([Times(faster, "old")]))]
    assert [text for text in drawn if text.endswith("x")] == ["1.5x"]


def test_what_by_hand_takes_over_sockets_is_near_the_fastest_in_the_table_of_the_docs():
    times = measured.times(4, *algorithms.names("all_reduce", 4)[:-1])
    for k, (size, _) in enumerate(times["ring"]):
        known = {name: curve[k][1] for name, curve in times.items()}
        assert known[over_sockets("all_reduce", size)] <= 1.25 * min(known.values()), size


# The picture.


def draw(ranks):
    return ranks[0].draw("title", ranks)


def test_the_steps_of_a_run_are_drawn_and_told():
    figure = draw(ring_of_two())
    assert figure.get_label() == (
        "title. Before, rank 0 holds 1; rank 1 holds 10. "
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
    figure = draw([SchedulePlayback("all_reduce", "ring", memory)])
    assert [text.get_text() for text in texts(figure)][: len(words)] == words


def test_an_arrow_leads_from_the_sender_to_the_receiver():
    giver, taker = StepLog([torch.tensor([1])]), StepLog([None])
    giver.add([torch.tensor([1])], sent=0, to=1)
    taker.add([torch.tensor([1])])
    figure = draw([giver, taker])
    assert 'id="step1/0-1"' in picture.svg(figure).decode()
    assert "rank 0 sends piece 0 to rank 1. Then" in figure.get_label()


def test_a_value_that_no_sum_gives_has_a_red_edge_and_the_legend_says_so():
    ranks = ring_of_two()
    assert "red edge" not in "".join(text.get_text() for text in texts(draw(ranks)))
    ranks[1].held[-1] = [12]
    figure = draw(ranks)
    assert "red edge" in "".join(text.get_text() for text in texts(figure))
    assert WRONG in picture.svg(figure).decode()


def test_a_tree_is_drawn_with_its_links_and_the_steps_in_which_they_are_used():
    figure = draw([Trees("binomial_tree", 4)])
    assert figure.get_label() == (
        "title. Tree 1: rank 0 sends to rank 2 in step 1. Tree 1: rank 0 sends to rank 1 in step 2. "
        "Tree 1: rank 2 sends to rank 3 in step 2."
    )
    assert [text.get_text() for text in texts(figure)][1:8] == [*"122", *"2301"]
    assert 'id="tree0/2-3"' in picture.svg(figure).decode()


@pytest.mark.parametrize(("n", "both"), [(5, []), (8, [7]), (9, []), (16, [15])])
def test_no_rank_is_a_leaf_of_both_trees_but_one_if_they_cannot_be_paired(n, both):
    first, second = Trees("double_tree", n, number=2).leaves()
    assert sorted({*first} & {*second}) == both


def logged(*messages):
    """The log of a program that tells of a message of 8 bytes, and sends messages of these sizes."""
    number = [torch.tensor([1])]
    with StepLog(number) as steps:
        steps.add(number, sent=0, to=1)
        for nbytes in messages:
            note_sent("c10d.send", nbytes)
    return steps


@pytest.mark.parametrize("messages", [(), (8, 8), (8, 4000), (4008,)])
def test_messages_that_are_not_told_are_a_failure(messages):
    with pytest.raises(Mismatch, match=r"should be \[1, 8\] \[messages and bytes sent"):
        logged(*messages)


def test_steps_are_printed_as_the_messages_and_bytes_that_a_rank_has_sent():
    assert str(logged(8)) == "1 message, 8 bytes"
    played = SchedulePlayback("broadcast", "binomial_tree", [[1], [None], [None], [None]])
    assert str(played) == "2 steps, 3 messages"
    assert [row[0] for row in played.held[-1]] == [1, 1, 1, 1]
