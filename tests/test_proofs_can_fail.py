"""The proofs in the lessons work: with a wrong collective in its place, every lesson that uses it
fails.
"""

import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from wrong_collectives import WRONG

from collectives import LaunchError, Mismatch, check, launch
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS


def sabotaged(rank, world_size, device, call, make_wrong, steps):
    """In a rank: every step of a lesson, with one function of torch.distributed replaced."""
    setattr(dist, call, make_wrong(getattr(dist, call)))
    for step in steps:
        step(rank, world_size, device)


def code(lesson: str) -> str:
    """The lesson without its prose, where the solution of an exercise may make other calls."""
    return re.sub(r"^#.*$", "", files.find(lesson).read_text(encoding="utf-8"), flags=re.MULTILINE)


def uses(lesson: str, wrong: str) -> bool:
    source = code(lesson)
    if wrong == "all_reduce that sums whatever is asked" and not re.search(
        r"all_reduce\([^\n]*ReduceOp\.(?!SUM)", source
    ):
        return False  # nothing else was asked
    return re.search(rf"\bdist\.{WRONG[wrong][0]}\(", source) is not None


LESSONS = CHAPTERS["collectives"].names
PAIRS = [(wrong, lesson) for wrong in WRONG for lesson in LESSONS if uses(lesson, wrong)]


# The lesson fails, but not by its proof: it needs what the wrong call left undone.
RED_WITHOUT_A_PROOF = {
    ("new_group that is the whole world", "broadcast"): {
        "raised",
        "hung",
    },  # rank 0 is no member, so it stays away from a broadcast that now needs it
    ("new_group that is the whole world", "barrier"): {
        "raised",
        "hung",
    },  # the last rank meets the others in another call, or they wait for it
}


@pytest.mark.parametrize(
    ("wrong", "lesson"),
    PAIRS,
    ids=[f"{lesson}-{wrong.replace(' ', '_')}" for wrong, lesson in PAIRS],
)
def test_a_lesson_turns_red_with_a(wrong, lesson):
    call, make_wrong = WRONG[wrong]
    expects_a_hang = "hung" in RED_WITHOUT_A_PROOF.get((wrong, lesson), ())
    steps = files.load(files.find(lesson)).STEPS
    with pytest.raises(LaunchError) as caught:
        launch(
            sabotaged,
            4,
            args=(call, make_wrong, steps),
            backend="gloo",
            device="cpu",
            timeout=8.0 if expects_a_hang else 25.0,
        )
    if (wrong, lesson) in RED_WITHOUT_A_PROOF:
        assert caught.value.kind in RED_WITHOUT_A_PROOF[wrong, lesson]
    else:
        assert "Mismatch: rank" in str(caught.value), "noticed, but not by the proof"


@pytest.mark.parametrize(
    "lesson", [lesson for lesson in LESSONS if lesson in {call for call, _ in WRONG.values()}]
)
def test_the_first_step_of_a_lesson_proves_its_call_by_itself(lesson):
    """Not only the steps after it, whose proofs turn the lesson red as well."""
    call, make_wrong = next(wrong for wrong in WRONG.values() if wrong[0] == lesson)
    step = files.load(files.find(lesson)).STEPS[0]
    with pytest.raises(LaunchError, match="Mismatch: rank"):
        launch(sabotaged, 4, args=(call, make_wrong, [step]), backend="gloo", timeout=25.0)


def test_every_call_of_the_lessons_has_a_wrong_version():
    """A lesson that starts to use another call needs a wrong one here."""
    called = set()
    for lesson in LESSONS:
        called |= set(re.findall(r"\bdist\.([a-z_]+)\(", code(lesson)))
    facts_about_a_group = {
        "get_rank",
        "get_world_size",
        "get_group_rank",
        "get_global_rank",
        "get_process_group_ranks",
        "get_backend",
    }
    assert called - facts_about_a_group - {"destroy_process_group"} <= {
        call for call, _ in WRONG.values()
    }


# The check itself.


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])),
        (torch.tensor([float("nan")]), torch.tensor([1.0])),
        ([torch.tensor(1)], [torch.tensor(1), torch.tensor(2)]),
        ([torch.tensor(1), torch.tensor(3)], [torch.tensor(1), torch.tensor(2)]),
        ([1, 2], torch.tensor([1, 2])),
        (1, True),
        ("a", "b"),
        (None, torch.tensor(1)),
    ],
    ids=str,
)
def test_check_refuses_a_wrong_value_dtype_shape_or_type(got, expected):
    with pytest.raises(Mismatch):
        check(got, expected, "call")


def test_check_accepts_what_is_equal_and_what_is_within_the_tolerance():
    check([torch.tensor([1, 2]), "a"], [torch.tensor([1, 2]), "a"], "call")
    check(torch.tensor([1.0]), torch.tensor([1.0 + 1e-7]), "call", rtol=1e-6)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([1e-9]), torch.tensor([0.0])),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(2), torch.ones(1)),
        (torch.ones(2, dtype=torch.float64), torch.ones(2)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    ],
    ids=str,
)
def test_a_tolerance_is_relative_and_excuses_no_other_shape_or_dtype(got, expected):
    with pytest.raises(Mismatch):
        check(got, expected, "call", rtol=1e-6)


def test_a_failed_check_has_one_shape():
    def fn(rank, world_size, device):
        check(torch.tensor([rank]), torch.tensor([0]), "all_reduce(SUM)")

    with pytest.raises(LaunchError) as caught:
        launch(fn, 2)
    assert "Mismatch: rank 1/2: got [1], should be [0] [all_reduce(SUM), int64[1], gloo]" in str(
        caught.value
    )


def test_proofs_hold_under_python_o():
    program = "import torch; from collectives import check; check(torch.tensor([1]), torch.tensor([2]), 'call')"
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Mismatch: rank 0/1: got [1], should be [2] [call, int64[1]]" in done.stderr
