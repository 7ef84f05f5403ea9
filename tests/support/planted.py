"""Planted faults, by one engine: a change in a file, and what must be said of it.

Who says it differs: the proof in a lesson (`by_proof`, `by_any_error`), or the checker of an
exercise, or a test (`by_tests`). A table of faults is a list of `Planted`, and its test says `unnoticed(...) == {}`.
"""

import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from xml.etree import ElementTree

import torch.distributed as dist
from repository import ROOT

from collectives import LaunchError, Mismatch, check, launch
from collectives.backends import claims
from collectives.course import files
from collectives.course.marks import world_of
from collectives.course.wrong import plant


class Planted(NamedTuple):
    """In `file`, `old` becomes `new`. `says` is part of what must be said; "" is part of anything.

    `function` names the step to run, and the cell of a lesson in which `old` stands, if it stands in
    others, too. If the file is no lesson, `lesson` is one that imports it. `claim` is
    what the fault makes false. A fault is tried `alone` if its ranks cannot go on to the next one.
    """

    file: Path
    old: str
    new: str
    says: str = ""
    function: str = ""
    lesson: Path | None = None
    claim: str = ""
    alone: bool = False

    @property
    def text(self) -> str:
        """The file with its fault. ValueError unless `old` stands there exactly once."""
        text = part = self.file.read_text("utf-8")
        if self.function and not self.lesson and text.count(self.old) > 1:
            defined = re.compile(rf"^(def|class) {self.function}\b", re.MULTILINE)
            (part,) = filter(defined.search, re.split(r"^# %%.*\n", text, flags=re.MULTILINE))
        return plant(text, part, plant(part, self.old, self.new))

    def module(self) -> ModuleType:
        """The lesson with its fault."""
        module, where = files.load(self.lesson or self.file), f"{self.file}, changed"
        with files.imports_from(self.file.parent):
            if self.lesson:  # it imports the changed module
                imported = importlib.import_module(self.file.stem)
                exec(compile(self.text, where, "exec"), vars(imported))
            text = self.lesson.read_text("utf-8") if self.lesson else self.text
            exec(compile(text, where, "exec"), vars(module))
        return module

    def steps(self, module: ModuleType) -> list[Callable]:
        """The step that `function` names, or in whose cell the change is, if nothing else is there
        that other steps may use; all that gloo can run here if there is none.
        """
        steps = [
            step
            for step in module.STEPS
            if not world_of(step).isolated and not claims.refusal(step.__name__, "gloo", "cpu")
        ]
        cells = re.split(r"^# %%.*\n", self.file.read_text("utf-8"), flags=re.MULTILINE)
        changed = "".join(cell for cell in cells if self.old in cell)
        names = (
            [self.function] if self.function else re.findall(r"^(?:def|class) (\w+)", changed, re.M)
        )
        chosen = [step for step in steps if step.__name__ in names]
        return chosen if 0 < len(chosen) == len(names) else steps


def beside(lesson: Path) -> list[Planted]:
    """The faults that lie beside a lesson, in NAME.wrong.toml; none if there is no such file."""
    table = lesson.with_suffix(".wrong.toml")
    rows = tomllib.loads(table.read_text("utf-8"))["wrong"] if table.exists() else []
    return [_row(lesson, **row) for row in rows]


def _row(lesson: Path, claim: str, old: str, new: str, **row) -> Planted:
    row = {"file": lesson.name, "step": "", "says": "", "alone": False} | row
    module = None if row["file"] == lesson.name else lesson  # another file, or a program
    file = (lesson.parent / row["file"]).resolve()
    return Planted(file, old, new, row["says"], row["step"], module, claim, row["alone"])


def unnoticed(
    faults: Sequence[Planted], tell: Callable[[Sequence[Planted]], list[str]]
) -> dict[Planted, str]:
    """The faults of which the wrong words are said, or none; with the words."""
    told = zip(faults, tell(faults), strict=True)
    return {fault: words for fault, words in told if not words or fault.says not in words}


def by_proof(faults: Sequence[Planted], timeout: float = 400.0) -> list[str]:
    """What the proofs of lessons say of each fault on any rank. Four ranks try all, in one world."""
    return ["\n".join(filter(None, texts)) for texts in _proofs(faults, timeout)]


def by_the_proof_of_every_rank(faults: Sequence[Planted]) -> list[str]:
    """The same, but nothing if a rank does not notice the fault."""
    return ["\n".join(texts) if all(texts) else "" for texts in _proofs(faults, timeout=400.0)]


def _proofs(faults: Sequence[Planted], timeout: float) -> Iterable[tuple[str, ...]]:
    """For each fault what the proof says on each rank."""
    ranks = launch(
        _prove, 4, args=(faults,), backend="gloo", device="cpu", timeout=timeout, diagnose=False
    )
    return zip(*ranks, strict=True)


def _prove(rank, world_size, device, faults):
    """In a rank. `check` may fail on some ranks only, so it does not end a step: the ranks stay
    together, and leave a lesson after a step that one of them found wrong.
    """
    real, found = dict(vars(dist)), []
    for fault in faults:
        module, mismatches = fault.module(), []
        module.check = functools.partial(note, mismatches)
        for step in fault.steps(module):
            try:
                step(rank, world_size, device)
            except Mismatch as error:  # of `check_training`, which fails on all ranks
                mismatches.append(str(error))
            except Exception:
                if not mismatches:  # what follows a `check` that failed may fail, too
                    raise
            counts = [0] * world_size
            real["all_gather_object"](counts, len(mismatches))
            if any(counts):
                break
        found.append("\n".join(mismatches))
        vars(dist).update(real)
    return found


def note(mismatches, *args, **options):
    """The `check` of a lesson whose failures do not end its step."""
    try:
        check(*args, **options)
    except Mismatch as error:
        mismatches.append(str(error))


def by_any_error(
    faults: Sequence[Planted],
    timeout: float,
    ranks: int = 4,
    backend: str = "gloo",
    device: str = "cpu",
) -> list[str]:
    """The error of each fault. Each has a world of its own: some leave ranks that wait, or die."""
    world = {"nproc": ranks, "backend": backend, "device": device}
    return [_error(fault, world | {"timeout": timeout, "diagnose": False}) for fault in faults]


def _error(fault: Planted, options: dict) -> str:
    try:
        launch(_run_steps, args=(fault,), **options)
    except LaunchError as error:
        return str(error)
    return ""


def _run_steps(rank, world_size, device, fault):
    for step in fault.steps(fault.module()):
        step(rank, world_size, device)


def by_tests(tests: Sequence[str], faults: Sequence[Planted], timeout: float) -> list[str]:
    """How the test of each fault fails in a copy of the repository; "" if it passes.

    Faults with the same test are planted one by one. The others, in different files, share a run.
    """
    pairs = list(zip(faults, tests, strict=True))
    rounds = [{fault: test} for fault, test in pairs if tests.count(test) > 1]
    rounds.append({fault: test for fault, test in pairs if tests.count(test) == 1})
    told: dict[Planted, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("collectives", "examples", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("conftest.py", "constraints.txt", "pyproject.toml"):
            shutil.copy2(ROOT / name, folder)
        for planted in rounds:
            told |= _together(planted, Path(folder), timeout)
    return [told[fault] for fault in faults]


def _together(planted: dict[Planted, str], folder: Path, timeout: float) -> dict[Planted, str]:
    for fault in planted:
        (folder / fault.file.relative_to(ROOT)).write_text(fault.text)
    # subtle: a .pyc is told from its source by seconds and size, which a fault may not change.
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(folder)])
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "--junitxml", "found.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *planted.values()],
        cwd=folder,
        env=environ,
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    for fault in planted:
        shutil.copy2(fault.file, folder / fault.file.relative_to(ROOT))
    if done.returncode not in (0, 1):  # pytest itself failed, or a test was not found
        raise RuntimeError(done.stdout + done.stderr)
    failed = {
        case.get("name"): "".join(failure.itertext())
        for case in ElementTree.parse(folder / "found.xml").iter("testcase")
        for failure in case.iter("failure")
    }
    return {
        fault: "\n".join(text for name, text in failed.items() if name.startswith(test))
        for fault, test in ((fault, test.rpartition("::")[2]) for fault, test in planted.items())
    }
