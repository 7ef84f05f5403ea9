"""The rules on made-up programs: a correct one is never accused, and in one with a single wrong call
the rank that makes it is named, and no other alone.
"""

import contextlib
import random
from collections import Counter

import pytest
from histories import FAULTS, Program, Run, change, small_logs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# How many moves the ranks make between two looks.
MOVES = (1, 5, 30, 150, 600)
GUILT = ("hang", "mismatch", "raised", "died")


@pytest.fixture(scope="module", autouse=True)
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
            assert verdict.kind not in GUILT, verdict.says
            between = [rank for rank in range(program.n) if run.is_between_calls(rank)]
            if between and draw.random() < 0.3:
                computes = draw.choice(between)
                while run.go_on(600, held=[computes]):
                    pass
                verdict = run.verdict(stalled=True)
                assert verdict.kind not in GUILT, verdict.says
                assert {call.rank for call in verdict.guilty} <= {computes}, verdict.says
        assert run.has_ended(), "the program itself hangs"
        verdict = run.verdict(stalled=True)
        assert verdict.kind == "ok", verdict.says


@pytest.mark.parametrize(
    "number", [80, pytest.param(10_000, marks=pytest.mark.slow)], ids="{} programs".format
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
            if verdict.kind in GUILT:
                break
        else:
            verdict = run.verdict(stalled=True)
        guilty = {call.rank for call in verdict.guilty}
        if verdict.kind == "ok":
            return "harmless" if run.has_ended() else "unnoticed"
        if changed in guilty:
            return "named" if len(guilty) <= 2 else "among many"
        return "wrong" if guilty else "not judged"


@pytest.mark.parametrize(
    "number", [25, pytest.param(3_400, marks=pytest.mark.slow)], ids="{} of each kind".format
)
def test_the_rank_of_one_wrong_call_is_named_and_no_other_instead(number):
    counts = Counter(outcome(fault, seed) for fault in FAULTS for seed in range(number))
    assert counts["wrong"] == counts["unnoticed"] == 0, counts
    assert counts["named"] >= 0.95 * (counts.total() - counts["harmless"]), counts
