"""The reader's folder: the exercises, which of them are solved, and which hints were shown."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from collectives.course import chapters
from collectives.course.practice import registry
from collectives.course.practice.checker import Verdict, examine
from collectives.course.practice.exercise import Exercise

_FILE = "progress.json"


def originals(kind: str = "exercises") -> Path:
    """The folder exercises/ or solutions/: that of the checkout, or that in the wheel."""
    lessons = chapters.folder()
    beside = lessons.parent / kind
    return beside if beside.is_dir() else lessons.parent / f"collectives_{kind}"


@dataclass
class Progress:
    """What the reader has done in `folder`."""

    folder: Path
    solved: list[str] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)  # how many were shown

    def file(self, wanted: Exercise) -> Path:
        return self.folder / wanted.chapter / f"{wanted.name}.py"

    def save(self) -> None:
        text = json.dumps({"solved": self.solved, "hints": self.hints}, indent=2)
        (self.folder / _FILE).write_text(f"{text}\n", encoding="utf-8")

    def next(self) -> Exercise | None:
        """The first exercise that is not solved."""
        return next((one for one in registry.read().values() if one.name not in self.solved), None)

    def note(self, name: str, is_solved: bool) -> None:
        self.solved = [one for one in self.solved if one != name] + [name] * is_solved
        self.save()

    def attempt(
        self, wanted: Exercise, report: Callable[[int], None] = lambda size: None
    ) -> Verdict:
        """Try the reader's file, and note whether it is solved."""
        file = self.file(wanted)
        if not file.is_file():
            return Verdict("todo", f"{file} is missing: collectives practice reset {wanted.name}")
        verdict = examine(wanted.name, str(file), report)
        self.note(wanted.name, verdict.is_solved)
        return verdict

    def next_hint(self, wanted: Exercise) -> tuple[int, str]:
        """The next hint with its number, from 1; after the last one, the last one again."""
        number = min(self.hints.get(wanted.name, 0) + 1, len(wanted.hints))
        self.hints[wanted.name] = number
        self.save()
        return number, wanted.hints[number - 1]

    def reset(self, wanted: Exercise) -> None:
        """The file is as it was at first, and the exercise is not solved."""
        self.copy(wanted)
        self.hints.pop(wanted.name, None)
        self.note(wanted.name, False)

    def copy(self, wanted: Exercise) -> None:
        target = self.file(wanted)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(originals() / wanted.chapter / target.name, target)


def start(folder: Path) -> Progress:
    """Copy the exercises into a new folder. ValueError if there is something in it already."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty: use a new folder, so that nothing is overwritten."
        )
    progress = Progress(folder)
    for wanted in registry.read().values():
        progress.copy(wanted)
    progress.save()
    return progress


def find(start: Path | None = None) -> Progress:
    """That of the current folder, or of one above it. ValueError if there is none."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / _FILE).is_file() and (folder / registry.CHAPTERS[0]).is_dir():
            try:
                return Progress(folder, **json.loads((folder / _FILE).read_text("utf-8")))
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{folder / _FILE} cannot be read ({error}): remove it, and start anew in "
                    "another folder."
                ) from error
    raise ValueError(
        "there are no exercises here: copy them with `collectives practice start FOLDER`, "
        "then `cd FOLDER`."
    )
