"""What lessons claim of backends, and that every rank trains the model of one process."""

import re
import time

import pytest
import torch
from lesson_source import QUICK

from collectives import LaunchError, launch, needs
from collectives.backends import availability as backends
from collectives.backends import claims
from collectives.course import chapters, files, runner
from collectives.course.marks import WorldSpec
from collectives.course.runner import run_step
from collectives.launcher.world import World
from collectives.verify.lessons import faults_of

TIMEOUT = 100.0
CHAPTERS = chapters.read()


# The lessons say that they stay as far below the limit of check_training.
LIMITS = {"training": 1e-12, "model_parallel": 1e-9}


def other_than(names, chapter):
    return [name for name in CHAPTERS[chapter].names if name not in names]


LONG = [f"model_parallel/{name}" for name in ("fully_sharded", "saving", "schedules", "experts")]
MESHES = [f"model_parallel/{name}" for name in ("hybrid", "redistribute", "reshard", "mesh")]


# With 4 ranks every lesson runs in test_notebooks.py. A lesson on training has as many parts as
# ranks, and nothing else depends on their number: three do not divide a batch. But half of eight
# ranks are a group, a mesh of them has more axes, and each has one expert and one micro-batch.
@pytest.mark.parametrize(
    ("names", "world_size"),
    [
        pytest.param(QUICK, 3, id="some-training-3"),
        pytest.param(other_than(LONG, "model_parallel"), 2, id="model_parallel-2"),
        pytest.param(LONG, 2, id="long-model_parallel-2", marks=pytest.mark.slow),
        pytest.param([*LONG, *MESHES], 8, id="model_parallel-8", marks=pytest.mark.weekly),
        pytest.param(CHAPTERS["training"].names, 1, id="training-1", marks=pytest.mark.slow),
        pytest.param(other_than(QUICK, "training"), 3, id="training-3", marks=pytest.mark.slow),
    ],
)
def test_every_rank_trains_the_model_of_one_process(names, world_size):
    limit = LIMITS[names[0].partition("/")[0]]
    assert faults_of(names, "gloo", "cpu", world_size, limit) == {}


def test_a_lesson_is_not_at_fault_for_a_call_that_it_never_makes(monkeypatch):
    monkeypatch.setattr(backends, "imported", [])
    backends.import_modules(["refusing_backends"])
    assert [*faults_of(["gather", "all_reduce"], "unfinished", "cpu", 2)] == ["all_reduce"]


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
        launch(function, 4, backend=claim.backend, device=claim.device, timeout=TIMEOUT)
    assert failure.value.kind == {"hangs": "hung", "crashes": "died"}.get(claim.state, "raised")
    said = str(failure.value)
    # A step may report what a call raised that should have raised nothing.
    is_wrong = "Mismatch" in said and "'no error'" not in said
    assert is_wrong == (claim.state == "wrong")


def test_every_claim_names_a_step_and_a_device_that_exist():
    steps = {step.__name__ for step in every_step()}
    for claim in claims.table():
        assert set(claim.steps) <= steps
        assert claim.device in backends.BACKENDS[claim.backend].devices
        assert claim.state != "works" or not claim.steps


def test_a_step_about_gloo_is_skipped_on_another_backend():
    step = files.load(files.find("algorithms/every_size")).one_more_row
    assert "it shows what gloo does" in run_step(step, World.chosen(3, "by_hand")).text


def test_an_isolated_step_is_skipped_for_what_its_own_backend_refuses():
    world = World(4, "nccl", "cuda", asked=frozenset({"backend"}))
    reason = runner._reason_to_skip("receive_from_any", WorldSpec(isolated=True), world)
    assert reason.startswith("nccl on cuda: ")


@needs(ranks=1, seconds=TIMEOUT)
def takes_a_second(rank, world_size, device):
    time.sleep(1)


def test_a_step_that_starts_processes_has_more_time():
    report = run_step(takes_a_second, World.chosen(1, timeout=0.5))
    assert report.text.startswith("takes_a_second: proved")


def test_the_table_of_tokens_and_experts_is_what_the_run_does():
    """An answer of that step is the token, and behind it the digit of its expert."""
    path = files.find("all_to_all")
    rows = re.findall(r"^# \| \d \| ([\d, ]+) \| ([\d, ]+) \|$", path.read_text("utf-8"), re.M)
    results = launch(files.load(path).dispatch_and_return, 4, timeout=TIMEOUT)
    for (tokens, experts), result in zip(rows, results, strict=True):
        answers = result["answered"].tolist()
        assert tokens == ", ".join(str(answer // 10) for answer in answers)
        assert experts == ", ".join(str(answer % 10) for answer in answers)
