"""How a rank is, or how it ended: the two tables by which the facts about processes are judged."""

import dataclasses
import signal

import pytest

from collectives.diagnosis.rules.rank_state import Facts, State, states
from collectives.diagnosis.timing import LAUNCHER_REACTS_NS as REACTS
from collectives.recording.call import Call
from collectives.recording.ending import Ending

HERE, EXIT, CRASH = ("train.py", 10, "step"), ("train.py", 20, "main"), ("train.py", 7, "load")
RAISED = {"type": "KeyError", "text": "KeyError: 1", "where": [*HERE], "at": 5, "is_guess": False}
GUESS = RAISED | {"is_guess": True}
# What a rank answered after its last call, and what it answered when it ended.
ANSWER = {"count": 3, "where": [*HERE], "exit": [*EXIT], "in_torch": True}
LAST = ANSWER | {"last": True}
TERM, KILL = -signal.SIGTERM, -signal.SIGKILL
UNSEEN = "died (killed, or left by os._exit)"


LEFT = State(Ending.RETURNED, "left by os._exit, or was ended by its launcher", at=9, unseen=True)


def raised(text="KeyError: 1", at=5):
    return State(Ending.RAISED, text, HERE, at, "KeyError")


def died(text, where=HERE, signal=0):
    return State(Ending.DIED, text, where, at=9, signal=signal, is_old=True)


def ended(exit_status=None, **facts):
    return {"gone_at": 9, "exit_status": exit_status, **facts}


# The first row that holds decides. So each case also has facts that a later row would take.
ALONE = {
    "noted an exception": (ended(0, exception=RAISED), raised()),
    "noted one, and runs": ({"exception": RAISED, "is_stopped": True}, raised()),
    "a guess, and it failed": (ended(1, exception=GUESS), raised()),
    "a guess, unseen": (ended(exception=GUESS), raised()),
    "a guess, but status 0": (ended(0, exception=GUESS), LEFT),
    "a signal or a debugger holds it": (
        {"is_stopped": True, "recorded_end": 4},
        State(text="is stopped", stopped=True),
    ),
    "noted that it ends": ({"recorded_end": 4}, State(Ending.RETURNED, where=EXIT, at=4)),
    "runs": ({}, State(where=HERE, in_torch=True)),
    "runs, in Python": ({"answer": ANSWER | {"in_torch": False}}, State(where=HERE)),
    "runs, has called since its answer": ({"calls": 4}, State()),
    "runs, inside a call": ({"is_inside_call": True}, State()),
    "last answer, then SIGTERM": (
        ended(TERM, answer=LAST, recorded_end=4),
        State(Ending.RETURNED, where=EXIT, at=9),
    ),
    "last answer, then unseen": (
        ended(answer=LAST, crash_signal=11),
        State(Ending.RETURNED, where=EXIT, at=9),
    ),
    "last answer, then SIGKILL": (
        ended(KILL, answer=LAST, recorded_end=4),
        died("was killed by SIGKILL (signal 9)", signal=9),
    ),
    "a signal": (ended(TERM, recorded_end=4), died("was killed by SIGTERM (signal 15)", signal=15)),
    "a signal without a name": (ended(-99), died("was killed by signal 99", signal=99)),
    "the stack of a crash": (
        ended(1, crash_signal=11, crash_place=CRASH, recorded_end=4),
        State(Ending.DIED, "was killed by SIGSEGV (signal 11)", CRASH, 9, signal=11),
    ),
    "noted that it ends, then status 0": (
        ended(0, recorded_end=4),
        State(Ending.RETURNED, where=EXIT, at=4),
    ),
    "noted that it ends, then unseen": (
        ended(recorded_end=4),
        State(Ending.RETURNED, where=EXIT, at=4),
    ),
    "status 0": (ended(0), LEFT),
    "noted that it ends, then status 3": (
        ended(3, recorded_end=4),
        State(Ending.RAISED, "ended with exit status 3", HERE, 9),
    ),
    "status 3": (ended(3), died("ended with exit status 3")),
    "unseen": (ended(), died(UNSEEN)),
    "unseen, inside a call": (ended(is_inside_call=True), died(UNSEEN, ("", 0, ""))),
}


@pytest.mark.parametrize("case", ALONE)
def test_one_rank_alone(case):
    facts, expected = ALONE[case]
    facts = Facts(**{"answer": ANSWER, "calls": 3} | facts)
    assert states({0: facts}, {}, are_all_known=True) == {0: expected}


def gone(at, exit_status=None, **facts):
    return Facts(gone_at=at, exit_status=exit_status, **facts)


def recorded(text, at):
    return Facts(exception=RAISED | {"text": text, "at": at})


LOST, TIMED_OUT = "RuntimeError: Connection closed by peer", "RuntimeError: Timed out after 4 s"
LATE = REACTS + 11  # a launcher can have ended what died then, for a failure at 10

# The facts about some ranks -> what each is, and who had destroyed its groups. In each case a rank
# died by SIGTERM or unseen: by itself, or by its launcher for the sake of another rank.
TOGETHER = {
    "nothing else failed": ([gone(10, TERM), Facts()], "died running"),
    "SIGTERM after another raised": ([recorded("KeyError", 10), gone(20, TERM)], "raised ended"),
    "SIGTERM before another raised": ([recorded("KeyError", 20), gone(10, TERM)], "raised ended"),
    "both by SIGTERM": ([gone(10, TERM), gone(20, TERM)], "died died"),
    "another returned, and nobody failed": ([gone(10, 0), gone(LATE)], "returned died"),
    "SIGTERM after its last answer": (
        [recorded("KeyError", 10), gone(20, TERM, answer={"last": True})],
        "raised returned",
    ),
    "unseen, long after another raised": (
        [recorded("KeyError", REACTS), gone(2 * REACTS + 1)],
        "raised ended",
    ),
    "unseen, when a launcher reacts": (
        [recorded("KeyError", REACTS), gone(2 * REACTS)],
        "raised died",
    ),
    "unseen, soon after another raised": ([recorded("KeyError", 10), gone(20)], "raised died"),
    "unseen, after the first of two": (
        [recorded("KeyError", 10), recorded("KeyError", LATE), gone(LATE)],
        "raised raised ended",
    ),
    "unseen, soon after another timed out": ([recorded(TIMED_OUT, 10), gone(11)], "raised ended"),
    "unseen, when another timed out": ([recorded(TIMED_OUT, 10), gone(10)], "raised died"),
    "another died by itself": ([gone(10, KILL), gone(LATE)], "died ended"),
    "unseen, before one that crashed": (
        [gone(10, is_inside_call=True), gone(LATE, crash_signal=11)],
        "died died",
    ),
    "another exited": ([gone(10, 3), gone(20, TERM)], "died ended"),
    "another exited, which it had noted": (
        [gone(10, 3, recorded_end=4), gone(20, TERM)],
        "raised ended",
    ),
    "another returned": (
        [gone(10, 0), recorded(LOST, 20), gone(30, TERM)],
        "returned raised ended",
    ),
    "another only lost it: SIGTERM": ([recorded(LOST, 10), gone(20, TERM)], "raised died"),
    "another only lost it: SIGTERM too late": (
        [recorded(LOST, 10), gone(LATE, TERM)],
        "raised ended",
    ),
    "another only lost it: unseen": ([recorded(LOST, 10), gone(LATE)], "raised died"),
    "both unseen: the first": ([gone(LATE + 5), gone(10)], "ended died"),
    "both unseen in one look: who was in no call": (
        [gone(10, is_inside_call=True), gone(REACTS + 10)],
        "died died",
    ),
    "all unseen in one look: who was in no call, not who was first": (
        [recorded(LOST, 1), gone(LATE, is_inside_call=True), gone(LATE + REACTS)],
        "raised ended died",
    ),
    "after one look: who was first": (
        [recorded(LOST, 1), gone(LATE, is_inside_call=True), gone(LATE + REACTS + 1)],
        "raised died ended",
    ),
    "had destroyed its groups": ([recorded("KeyError", 10), gone(LATE)], "raised returned"),
    "another had destroyed its groups": (
        [recorded(LOST, 10), gone(20, TERM), Facts()],
        "raised ended running",
    ),
}
DESTROYED = {"had destroyed its groups": 1, "another had destroyed its groups": 2}


@pytest.mark.parametrize("case", TOGETHER)
def test_ranks_together(case):
    ranks, expected = TOGETHER[case]
    destroyed = [DESTROYED[case]] if case in DESTROYED else []
    calls = {rank: Call("destroy_process_group", rank=rank, entered=7) for rank in destroyed}
    found = states(dict(enumerate(ranks)), calls, are_all_known=True)
    ended = State(Ending.RUNNING, "was ended by its launcher")
    for one, status in zip(found.values(), expected.split(), strict=True):
        assert (
            dataclasses.replace(one, where=ended.where, is_old=False) == ended
            or one.status == status
        )
        assert (one.text == ended.text) == (status == "ended")


def test_a_rank_that_had_destroyed_its_groups_returned_then():
    calls = {1: Call("destroy_process_group", rank=1, entered=7)}
    found = states({0: recorded("KeyError", 10), 1: gone(LATE)}, calls, are_all_known=True)
    assert found[1] == State(Ending.RETURNED, at=7)


def test_while_ranks_are_unknown_nobody_is_blamed_for_what_they_may_have_done():
    ranks = {0: recorded(LOST, 10), 1: gone(20, TERM)}
    assert states(ranks, {}, are_all_known=False)[1].text == "was ended by its launcher"


@pytest.mark.parametrize(
    ("facts", "failed", "current"),
    [
        ({}, False, True),
        ({"exception": RAISED}, True, False),
        ({"exception": RAISED, "answer": {"count": 3, "destroyed": True}}, True, True),
        ({"exception": RAISED, "answer": {"count": 2, "destroyed": True}}, True, False),
        ({"gone_at": 9}, True, False),
        ({"gone_at": 9, "answer": LAST}, True, True),
        ({"gone_at": 9, "exit_status": 1}, True, False),
        ({"gone_at": 9, "exit_status": 0}, False, False),
        ({"gone_at": 9, "exit_status": 1, "recorded_end": 4}, False, False),
    ],
    ids=str,
)
def test_whether_a_rank_has_failed_and_its_answer_is_current(facts, failed, current):
    facts = Facts(**{"answer": ANSWER, "calls": 3} | facts)
    assert (facts.has_failed, facts.answer_is_current) == (failed, current)
