"""Every lesson runs on every backend and world size, or is skipped with a reason."""

import re
import time

import pytest
import torch
import torch.distributed as dist

from collectives import LaunchError, launch, needs
from collectives.backends import availability as backends
from collectives.backends import claims
from collectives.course import chapters, files
from collectives.course.marks import world_of
from collectives.course.runner import run_step

TIMEOUT = 100.0


def run_steps(rank, world_size, device, steps):
    """Runs in a rank: all these steps in one world, by lesson. An error names its step in a note."""
    for lesson, functions in steps.items():
        for step in functions:
            try:
                step(rank, world_size, device)
            except Exception as error:
                error.add_note(f"in step {step.__name__} of {lesson}")
                raise
        # A receive from any rank must not take what the next lesson sends. On gloo a barrier may
        # raise the error of an earlier call, which error_at_wait makes on purpose.
        dist.all_reduce(torch.zeros(1, device=device))


def runnable(lesson, backend, device, world_size):
    """The steps that this world can run. Isolated ones start worlds of their own: test_start.py."""
    steps = [step for step in files.load(files.find(lesson)).STEPS if not world_of(step).isolated]
    return [
        step
        for step in steps
        if world_of(step).ranks <= world_size
        and world_of(step).backend in (None, backend)
        and not claims.refusal(step.__name__, backend, device)
    ]


def test_lessons(backend, device, world_size, record_property):
    """All lessons in one world. If one fails there, each runs by itself, to name all that fail."""
    if reason := backends.unavailable(backend, device, world_size):
        pytest.skip(reason)
    everywhere = [chapter for chapter in chapters.read().values() if chapter.runs_everywhere]
    names = [name for chapter in everywhere for name in chapter.names]
    steps = {name: runnable(name, backend, device, world_size) for name in names}
    faults = faults_of(steps, backend, device, world_size)
    if faults:
        faults |= {
            name: fault
            for name, functions in steps.items()
            for fault in faults_of({name: functions}, backend, device, world_size).values()
        }
    for name in names:
        outcome = "failed" if name in faults else "passed" if steps[name] else "skipped"
        record_property("lesson", (name, f"{backend}/{device}", outcome))
    assert not faults, "\n\n".join(faults.values())


def faults_of(steps, backend, device, world_size) -> dict[str, str]:
    """What went wrong in one world with these steps, by its name: nothing, or one error."""
    try:
        launch(
            run_steps, world_size, args=(steps,), backend=backend, device=device, timeout=TIMEOUT
        )
    except LaunchError as error:
        return {" + ".join(steps): str(error)}
    return {}


def every_step():
    paths = [path for chapter in chapters.read().values() for path in files.of_chapter(chapter)]
    return [step for path in paths for step in files.load(path).STEPS]


CLAIMED = [(claim, step) for claim in claims.table() for step in claim.steps]


@pytest.mark.parametrize(
    ("claim", "step"),
    CLAIMED,
    ids=[f"{claim.backend}-{claim.device}-{step}" for claim, step in CLAIMED],
)
def test_what_is_claimed_not_to_work_does_not_work(claim, step):
    """If the call works after all, the claim must go."""
    if reason := backends.unavailable(claim.backend, claim.device, 4):
        pytest.skip(reason)
    if not claims.holds(claim.torch, torch.__version__):
        pytest.skip(f"claimed of torch {claim.torch}: this is {torch.__version__}")
    (function,) = [function for function in every_step() if function.__name__ == step]
    with pytest.raises(LaunchError) as failure:
        launch(function, 4, backend=claim.backend, device=claim.device, timeout=20.0)
    assert failure.value.kind == {"hangs": "hung", "crashes": "died"}.get(claim.state, "raised")
    assert ("Mismatch" in str(failure.value)) == (claim.state == "wrong")


def test_every_claim_names_a_step_and_a_device_that_exist():
    steps = {step.__name__ for step in every_step()}
    for claim in claims.table():
        assert set(claim.steps) <= steps
        assert claim.device in backends.BACKENDS[claim.backend].devices
        assert claim.state != "works" or not claim.steps


def test_a_step_about_gloo_is_skipped_on_another_backend():
    step = files.load(files.find("broadcast")).who_waits
    assert "it shows what gloo does" in run_step(step, 2, backend="by_hand").text


@needs(ranks=1, seconds=TIMEOUT)
def takes_a_second(rank, world_size, device):
    time.sleep(1)


def test_a_step_that_starts_processes_has_more_time():
    assert run_step(takes_a_second, 1, timeout=0.5).text.startswith("takes_a_second: proved")


@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4)), 5])
def test_the_root_waits_for_its_children_and_a_rank_for_all_above_it(n):
    returned = launch(files.load(files.find("broadcast")).who_waits, n, timeout=TIMEOUT)
    lists = [result["had returned before it called"] for result in returned]
    # Measured with one rank a second late: not computed from the tree.
    assert (
        lists
        == {
            2: [[], []],
            3: [[], [2], [1]],
            4: [[], [2], [1, 3], [0, 2]],
            5: [[], [2, 4], [1, 3, 4], [0, 2, 4], [1, 2, 3]],
        }[n]
    )


def test_the_table_of_tokens_and_experts_is_what_the_run_does():
    """An answer of that step is the token, and behind it the digit of its expert."""
    path = files.find("all_to_all")
    rows = re.findall(r"^# \| \d \| ([\d, ]+) \| ([\d, ]+) \|$", path.read_text("utf-8"), re.M)
    results = launch(files.load(path).dispatch_and_return, 4, timeout=TIMEOUT)
    for (tokens, experts), result in zip(rows, results, strict=True):
        answers = result["answered"].tolist()
        assert tokens == ", ".join(str(answer // 10) for answer in answers)
        assert experts == ", ".join(str(answer % 10) for answer in answers)
