"""The rules on made-up programs: a correct one is never accused, and in one with a single wrong call
the rank that makes it is named, and no other alone.

The slow tests make 1,000 of each; HISTORIES=10000 in the environment makes so many (20 minutes).
"""

import contextlib
import os
import random
from collections import Counter
from unittest import mock

import pytest
from histories import FAULTS, Program, Run, change, perform, small_logs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives import LaunchError, launch
from collectives.launcher import failure

MANY = int(os.environ.get("HISTORIES", "1000"))
# How many moves the ranks make between two looks.
MOVES = (1, 5, 30, 150, 600)
GUILT = ("hang", "mismatch", "raised", "died")


@pytest.fixture
def _small_logs():
    with contextlib.ExitStack() as patches:
        for patch in small_logs():
            patches.enter_context(patch)
        yield


def check_correct(program, draw):
    """Judge it at random moments, also while one rank computes and nothing else moves."""
    with contextlib.closing(Run(program, draw)) as run:
        while run.go_on(draw.choice(MOVES)):
            verdict = run.verdict(stalled=False)
            assert verdict.kind.verdict not in GUILT, verdict.says
            between = [rank for rank in range(program.n) if run.is_between_calls(rank)]
            if between and draw.random() < 0.3:
                computes = draw.choice(between)
                while run.go_on(600, held=[computes]):
                    pass
                verdict = run.verdict(stalled=True)
                assert verdict.kind.verdict not in GUILT, verdict.says
                assert {call.rank for call in verdict.guilty} <= {computes}, verdict.says
        assert run.has_ended(), "the program itself hangs"
        verdict = run.verdict(stalled=True)
        assert verdict.kind.verdict == "ok", verdict.says


@pytest.mark.usefixtures("_small_logs")
@pytest.mark.parametrize(
    "number", [50, pytest.param(MANY, marks=pytest.mark.weekly)], ids="{} programs".format
)
def test_a_correct_program_is_never_accused_at_whatever_moment(number):
    @settings(
        max_examples=number,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False), st.integers(0, 2**32))
    def check(draw, seed):
        check_correct(Program(draw), random.Random(seed))

    check()


def outcome(fault, seed):
    """What is said of a program in which one rank makes one wrong call."""
    draw = random.Random(seed)
    program = Program(draw)
    changed = change(program, fault, draw)
    with contextlib.closing(Run(program, draw)) as run:
        while run.go_on(draw.choice(MOVES[:-1])):  # so that it seldom outruns whoever looks
            verdict = run.verdict(stalled=False)
            if verdict.kind.verdict in GUILT:
                break
        else:
            verdict = run.verdict(stalled=True)
        guilty = {call.rank for call in verdict.guilty}
        if verdict.kind.verdict == "ok":
            return "harmless" if run.has_ended() else "unnoticed"
        if changed in guilty:
            return "named" if len(guilty) <= 2 else "among many"
        return "wrong" if guilty else "not judged"


@pytest.mark.usefixtures("_small_logs")
@pytest.mark.parametrize(
    "number",
    [16, pytest.param(MANY // len(FAULTS), marks=pytest.mark.weekly)],
    ids="{} of each kind".format,
)
def test_the_rank_of_one_wrong_call_is_named_and_no_other_instead(number):
    counts = Counter(outcome(fault, seed) for fault in FAULTS for seed in range(number))
    assert counts["wrong"] == counts["unnoticed"] == 0, counts
    assert counts["named"] >= 0.95 * (counts.total() - counts["harmless"]), counts


def in_a_world(rank, world_size, device, seed, fault):
    program = Program(random.Random(seed))
    if fault:
        change(program, fault, random.Random(seed))
    perform(program, rank)


def accused(program, seed, fault):
    """Whom the diagnosis accuses if the program really runs, and its report; None if nobody."""
    verdicts = []

    def from_verdict(verdict, *rest):
        verdicts.append(verdict)
        return real(verdict, *rest)

    real = failure.from_verdict
    with mock.patch.object(failure, "from_verdict", from_verdict):
        try:
            arguments = {"args": (seed, fault), "backend": "gloo", "timeout": 100}
            launch(in_a_world, program.n, diagnose=True, **arguments)
        except LaunchError as error:
            return {call.rank for verdict in verdicts for call in verdict.guilty}, str(error)
    return None


@pytest.mark.slow
def test_in_real_worlds_it_is_so_too():
    """Five correct programs, and five of each of two kinds with one wrong call."""
    counts = Counter()
    for fault in (None, *FAULTS[:2]):
        for seed in range(5):
            program = Program(random.Random(seed))
            changed = change(program, fault, random.Random(seed)) if fault else None
            if (found := accused(program, seed, fault)) is not None:
                guilty, says = found
                assert changed in guilty, f"seed {seed}: rank {changed} {fault} a call\n{says}"
                counts["named" if len(guilty) <= 2 else "among many"] += 1
            else:
                counts["correct" if fault is None else "harmless"] += 1
    assert counts["among many"] <= 1 < counts["named"], counts
    assert counts["correct"] == 5, counts
