"""The reader's folder: the exercises, which of them are solved, and which hints were shown."""

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collectives.course.console import print_text
from collectives.course.practice import chinese, registry
from collectives.course.practice.checker import ExerciseVerdict, try_program
from collectives.course.practice.exercise import Exercise

_FILE = "progress.json"
LANGUAGES = ("en", "zh")


@dataclass
class Progress:
    """What the reader has done in `folder`."""

    folder: Path
    solved: list[str] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)  # how many were shown
    language: str = "en"

    def said(self, text: str) -> str:
        """In the language of the folder."""
        return chinese.said(text) if self.language == "zh" else text

    def file(self, wanted: Exercise) -> Path:
        """09_weighted_mean.py. A folder of an older version has other numbers, or it has none and a
        folder for each chapter.
        """
        numbered = sorted(self.folder.glob(f"[0-9][0-9]_{wanted.name}.py"))
        old = self.folder / wanted.chapter / f"{wanted.name}.py"
        if numbered or old.exists():
            return numbered[0] if numbered else old
        return self.folder / f"{registry.number(wanted):02}_{wanted.name}.py"

    @property
    def count(self) -> str:
        """How many exercises are solved: 3 of 58."""
        names = registry.read().keys()
        return f"{len(names & set(self.solved))} of {len(names)}"

    def save(self) -> None:
        recorded = {"solved": self.solved, "hints": self.hints}
        if self.language != "en":
            recorded["language"] = self.language
        text = json.dumps(recorded, indent=2)
        _write(self.folder / _FILE, f"{text}\n".encode())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Begin with what other commands have noted meanwhile, and save what is changed here."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self.solved, self.hints, self.language = _read(self.folder / _FILE)
            yield
            self.save()
        finally:
            os.close(folder)

    def next(self) -> Exercise | None:
        """The first exercise that is not solved."""
        return next((one for one in registry.read().values() if one.name not in self.solved), None)

    def note(self, name: str, is_solved: bool) -> None:
        with self._change():
            self.solved = [one for one in self.solved if one != name] + [name] * is_solved

    def try_file(
        self, wanted: Exercise, report: Callable[[str], None] = lambda text: None, prints=True
    ) -> ExerciseVerdict:
        """Try the reader's file, and note whether it is solved."""
        file = self.file(wanted)
        if not file.is_file():
            return ExerciseVerdict(
                "todo", f"{file} is missing: collectives practice reset {wanted.name}"
            )
        verdict = try_program(wanted.name, str(file), report, prints)
        with _saving("whether it is solved"):
            self.note(wanted.name, verdict.is_solved)
        return verdict

    def next_hint(self, wanted: Exercise) -> tuple[int, str]:
        """The next hint with its number, from 1; after the last one, the last one again."""
        number = min(self.hints.get(wanted.name, 0) + 1, len(wanted.hints))
        with _saving("which hints were shown"), self._change():
            self.hints[wanted.name] = number
        return number, self.said(wanted.hints[number - 1])

    def reset(self, wanted: Exercise) -> None:
        """The file is as it was at first, and the exercise is not solved. Raises OSError."""
        self.copy(wanted)
        with self._change():
            self.hints.pop(wanted.name, None)
            self.solved = [one for one in self.solved if one != wanted.name]

    def copy(self, wanted: Exercise) -> None:
        target = self.file(wanted)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = (wanted.folder / "task.py").read_text("utf-8")
        _write(target, (chinese.task(text) if self.language == "zh" else text).encode())


def _write(file: Path, data: bytes) -> None:
    """Whoever reads the file finds the old text or the new one; a symbolic link is replaced."""
    draft = file.with_name(f".{file.name}.new")
    draft.write_bytes(data)
    try:
        os.replace(draft, file)
    except OSError:
        draft.unlink()
        raise


@contextlib.contextmanager
def _saving(what: str) -> Iterator[None]:
    """Say that something cannot be saved, and go on."""
    try:
        yield
    except (OSError, ValueError) as error:
        print_text(f"Cannot save {what}: {error}", stderr=True)


def _read(file: Path) -> tuple[list[str], dict[str, int], str]:
    """What is solved, how many hints were shown, and the language. ValueError if it is odd."""
    try:
        found = json.loads(file.read_text("utf-8"))
        solved, hints, language = found["solved"], found["hints"], found.get("language", "en")
        is_odd = not all(isinstance(name, str) for name in [*solved, *hints])
        is_odd |= not all(type(number) is int and number >= 0 for number in hints.values())
        if is_odd or not isinstance(solved, list) or language not in LANGUAGES:
            raise ValueError("the types are wrong")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file} cannot be understood ({type(error).__name__}: {error}). It lists the "
            "exercises that are solved, and how many hints were shown. Correct it so that it looks "
            'like {"solved": ["neighbours"], "hints": {"shift_right": 1}}.'
        ) from error
    return solved, hints, language


def start(folder: Path, language: str = "en") -> Progress:
    """Copy the exercises into a new folder. ValueError if there is something in it already."""
    if language not in LANGUAGES:
        raise ValueError(f"there is no language {language!r}: say one of {', '.join(LANGUAGES)}.")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty: use a new folder, so that nothing is overwritten."
        )
    progress = Progress(folder, language=language)
    for wanted in registry.read().values():
        progress.copy(wanted)
    _write(folder / "README.md", (registry.folder() / "README.md").read_bytes())
    progress.save()
    return progress


def find(start: Path | None = None) -> Progress:
    """That of the current folder, or of one above it. ValueError if there is none.

    What is in there is executed. So a folder above is taken only if all of it is this user's: who
    stands below a stranger's folder, as in one for temporary files, has not asked for it.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if not (folder / _FILE).is_file() or not _has_exercises(folder):
            continue
        content = [folder, *folder.glob("*"), *folder.glob("*/*")]
        if folder != here and (stranger := next(filter(_is_a_strangers, content), None)):
            raise ValueError(
                f"the exercises in {folder} are left alone, because you are below that folder and "
                f"{stranger} is another user's. If you trust it: cd {shlex.quote(str(folder))}"
            )
        return Progress(folder, *_read(folder / _FILE))
    raise ValueError(
        "there are no exercises here: copy them with `collectives practice start FOLDER`, "
        "then `cd FOLDER`."
    )


def _has_exercises(folder: Path) -> bool:
    return any((*folder.glob("*.py"), *folder.glob("*/*.py")))


def _is_a_strangers(path: Path) -> bool:
    """A link is what it points at. What is not there, as behind an editor's lock, cannot run."""
    try:
        return path.stat().st_uid != os.getuid()
    except OSError:
        return False
