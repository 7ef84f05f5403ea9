"""What a lesson says beside its result is proved, too: each fault in the NAME.wrong.toml beside it
makes a sentence of the lesson false, most of them leave the result as it is, and the lesson notices.
"""

import shutil
from pathlib import Path

import pytest
from forked_lab import ForkedLab
from lesson_source import Source
from machines import needs_a_lab, needs_slurm
from planted import Planted, beside, by_proof, unnoticed

from collectives import LaunchError, Mismatch
from collectives.backends import claims
from collectives.course import chapters, files
from collectives.course.runner import run_step
from collectives.course.wrong import plant
from collectives.launcher.world import World

LESSONS = [lesson for chapter in chapters.read().values() for lesson in chapter.lessons]
FAULTS = {lesson.name: faults for lesson in LESSONS if (faults := beside(lesson.path))}
IN_FORKED_LAB = "machines/versions"  # its programs only meet at a store
# These hang when the claim comes true,
HANG = {"broadcast_is_no_barrier", "scatter_is_no_barrier"}
# and these import Accelerate.
SLOW_MYTHS = {*HANG, "accelerate_keeps_the_prefix", "accelerate_starts_one_process"}
# The steps of these start machines, or jobs that are killed.
STARTS_JOBS = ("machines/", "training/failover")


def refused(fault: Planted) -> str | None:
    """Why gloo of this torch cannot run its step."""
    return claims.refusal(fault.function, "gloo", "cpu")


def folder(name: str) -> str:
    """Its chapter's; the lessons of the calls lie in none."""
    return name.rpartition("/")[0] or "calls"


IN_ONE_WORLD = {
    chapter: [
        fault
        for name, faults in FAULTS.items()
        for fault in faults
        if folder(name) == chapter and not fault.alone and not refused(fault)
    ]
    for chapter in dict.fromkeys(map(folder, FAULTS))
}


def marks(name: str, fault: Planted) -> list[pytest.MarkDecorator]:
    if name == "hearsay" and fault.function not in SLOW_MYTHS:
        return []
    if not name.startswith(STARTS_JOBS):
        return [pytest.mark.slow]
    needs = [needs_a_lab, needs_slurm] if name.startswith("machines/") else []
    return [pytest.mark.weekly, *(needs if name != IN_FORKED_LAB else [])]


ALONE = [
    pytest.param(name, fault, id=f"{name}: {fault.claim}", marks=marks(name, fault))
    for name, faults in FAULTS.items()
    for fault in faults
    if fault.alone and not refused(fault)
]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [name for name, faults in IN_ONE_WORLD.items() if faults])
def test_the_proof_notices_what_makes_a_claim_false(chapter):
    missed = unnoticed(IN_ONE_WORLD[chapter], by_proof)
    assert {f"{fault.file.name}: {fault.claim}": told for fault, told in missed.items()} == {}


@pytest.mark.parametrize(("name", "fault"), ALONE)
def test_the_lesson_notices_what_makes_a_claim_false(name, fault, tmp_path):
    lesson = files.load(in_a_copy(fault, files.find(name), tmp_path))
    if name == IN_FORKED_LAB:
        use_forked_lab(lesson)
    limit = 20.0 if fault.function in HANG else 200.0
    with pytest.raises((LaunchError, Mismatch, RuntimeError, TimeoutError)) as error:
        run_step(vars(lesson)[fault.function], World.chosen(timeout=limit))
    assert fault.says in str(error.value)


def in_a_copy(fault: Planted, lesson: Path, folder: Path) -> Path:
    """The lesson in a copy of its folder and of examples/, with the fault: its programs are started
    from there.

    A training that a fault keeps from going on is waited for no longer than a minute.
    """
    root = chapters.folder().parent
    for part in (lesson.parent, root / "examples"):
        shutil.copytree(part, folder / part.relative_to(root))
    copy = folder / lesson.parent.relative_to(root)
    if (job := copy / "elastic_job.py").exists():
        job.write_text(plant(job.read_text("utf-8"), "limit=150", "limit=60"), "utf-8")
    (folder / fault.file.relative_to(root)).write_text(fault.text, "utf-8")
    return copy / lesson.name


def use_forked_lab(lesson) -> None:
    vars(lesson).update(Lab=ForkedLab, open_store=ForkedLab.open_store)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["versions", "an_engine_dies"])
def test_a_forked_lab_is_as_good_as_machines(step):
    lesson = files.load(files.find(IN_FORKED_LAB))
    use_forked_lab(lesson)
    vars(lesson)[step]()


# What no proof notices, and the lesson says so.
SAID = {
    "machines/elastic": "This proves neither the shares nor the rounding",
    "model_parallel/pipeline": (
        "They are what autograd keeps, so a result that travels is not among them."
    ),
    "model_parallel/ulysses": (
        "Operations are not counted, nor what `ctx` holds beside saved tensors."
    ),
}


@pytest.mark.parametrize("lesson", SAID)
def test_what_no_proof_notices_is_said(lesson):
    assert SAID[lesson] in " ".join(Source(lesson).text.replace("\n#", "\n").split())


def test_each_table_lies_beside_its_lesson():
    tables = set(chapters.folder().rglob("*.wrong.toml"))
    assert tables == {files.find(name).with_suffix(".wrong.toml") for name in FAULTS}
