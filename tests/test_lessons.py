"""Every lesson runs on every backend and world size, or is skipped with a reason."""

import re
from pathlib import Path

import nbformat
import pytest
import torch

from collectives import LaunchError, launch
from collectives.backends import availability as backends
from collectives.backends import claims
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make import notebooks
from collectives.lesson.step import world_of

TIMEOUT = 100.0


def run_steps(rank, world_size, device, steps):
    """Runs in a rank: all steps of a lesson in one world.

    An error has a note that names the step.
    """
    results = {}
    for step in steps:
        try:
            results[step.__name__] = step(rank, world_size, device)
        except Exception as error:
            error.add_note(f"in step {step.__name__}")
            raise
    return results


def test_lesson(lesson, backend, device, world_size):
    if reason := backends.unavailable(backend, device, world_size):
        pytest.skip(reason)
    # Isolated steps start worlds of their own: test_start.py runs them.
    steps = [step for step in files.load(files.find(lesson)).STEPS if not world_of(step).isolated]
    needs = {step: world_of(step).ranks for step in steps}
    if world_size < min(needs.values()):
        pytest.skip(
            f"{lesson} needs at least {min(needs.values())} ranks: this world has {world_size}"
        )
    refused = {step.__name__: claims.refusal(step.__name__, backend, device) for step in steps}
    runnable = [step for step in steps if needs[step] <= world_size and not refused[step.__name__]]
    if not runnable:
        pytest.skip(f"{lesson}: {'; '.join(filter(None, refused.values()))}")
    results = launch(
        run_steps, world_size, args=(runnable,), backend=backend, device=device, timeout=TIMEOUT
    )
    assert [list(result) for result in results] == [
        [step.__name__ for step in runnable]
    ] * world_size


def every_step():
    paths = [path for chapter in CHAPTERS.values() for path in files.of_chapter(chapter)]
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


def test_every_claim_names_a_step_that_exists_and_a_reason():
    steps = {step.__name__ for step in every_step()}
    for claim in claims.table():
        assert set(claim.steps) <= steps
        assert claim.reason or not claim.steps
        assert claim.device in backends.DEVICES[claim.backend]
        assert claim.state != "works" or not claim.steps


def worked_numbers(text: str) -> list[list[str]]:
    """The cells of the table below the first step."""
    section = text.split("    run(", 1)[1].split("\n# %% [markdown]\n", 2)[1].split("\n# %%")[0]
    lines = [
        line.lstrip("# ") for line in section.splitlines() if line.lstrip("# ").startswith("|")
    ]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if not line.startswith("|---")
    ]


def printed(table: str) -> list[list[str]]:
    """The cells of a table that a step prints; they stand two or more spaces apart."""
    return [re.split(" {2,}", line.strip()) for line in table.splitlines()[1:]]


@pytest.mark.parametrize("name", CHAPTERS["collectives"].names)
def test_the_worked_numbers_are_those_that_the_lesson_prints(name):
    """What the lesson prints stands in its notebook: see test_doors.py."""
    path = Path(files.find(name))
    notebook = nbformat.read(notebooks.path_of(path), as_version=4)
    first = next(cell for cell in notebook.cells if cell.get("outputs"))
    assert worked_numbers(path.read_text(encoding="utf-8")) == printed(first.outputs[0].text)


def test_the_table_of_tokens_and_experts_is_what_the_run_does():
    """An answer of that step is the token, and behind it the digit of its expert."""
    path = files.find("all_to_all")
    rows = re.findall(r"^# \| \d \| ([\d, ]+) \| ([\d, ]+) \|$", path.read_text("utf-8"), re.M)
    results = launch(files.load(path).dispatch_and_return, 4, timeout=TIMEOUT)
    for (tokens, experts), result in zip(rows, results, strict=True):
        answers = result["answered"].tolist()
        assert tokens == ", ".join(str(answer // 10) for answer in answers)
        assert experts == ", ".join(str(answer % 10) for answer in answers)
