"""Where the files of the lessons are, and how to load one."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from collectives.lesson import chapters
from collectives.lesson.chapters import CHAPTERS, Chapter

_PACKAGE = Path(__file__).parents[1]


def folder(start: Path | None = None) -> Path:
    """The folder lessons/ of the checkout around `start` (default: the current folder).

    Outside a checkout: the lessons in the wheel, or, in an editable install, those beside the
    package.
    """
    start = (start or Path.cwd()).resolve()
    for place in (start, *start.parents):
        if _is_checkout(place):
            return place / "lessons"
    in_wheel = _PACKAGE / "lessons"
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / "lessons"


def _is_checkout(place: Path) -> bool:
    file = place / "pyproject.toml"
    if not (place / "lessons").is_dir() or not file.is_file():
        return False
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):  # the broken file of another project
        return False
    return project.get("name") == "collectives"


def choose(names: list[str], every: bool) -> list[Path]:
    """The files of the lessons, chapters and paths named, or with `every` of all that are proved.

    ValueError for a name that does not exist, for none at all, and for names together with `every`.
    """
    if every and names:
        raise ValueError("--all means every lesson: leave out the names, or leave out --all.")
    if not every and not names:
        lessons = ", ".join(name for chapter in CHAPTERS.values() for name in chapter.names)
        raise ValueError(
            f"name a lesson ({lessons}) or a chapter ({', '.join(CHAPTERS)}), or say --all."
        )
    if every:
        names = [
            chapter.name for chapter in CHAPTERS.values() if not (chapter.isolated or chapter.extra)
        ]
    found: list[Path] = []
    for name in names:
        found += of_chapter(CHAPTERS[name]) if name in CHAPTERS else [find(name)]
    return found


def of_chapter(chapter: Chapter) -> list[Path]:
    """The files of a chapter's lessons, in reading order."""
    return [find(name) for name in chapter.names]


def find(name: str) -> Path:
    """The file of a lesson, by its name (all_reduce, mistakes/order) or a path that ends in .py.

    ValueError if there is none.
    """
    lessons = [name for chapter in CHAPTERS.values() for name in chapter.names]
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            hint = f" The lesson of that name is {path.stem!r}." if path.stem in lessons else ""
            raise ValueError(f"there is no file {name}.{hint}")
        return path
    if name not in lessons:
        hint = chapters.nearest(name, [*lessons, *CHAPTERS])
        raise ValueError(
            f"there is no lesson or chapter {name!r}: {hint}The lessons are {', '.join(lessons)}; "
            f"the chapters are {', '.join(CHAPTERS)}; or give the path of a .py file."
        )
    path = folder() / f"{name}.py"
    if not path.is_file():
        raise ValueError(f"the lesson {name!r} is missing from {path.parent}.")
    return path


def summary(path: Path) -> str:
    """The summary of the lesson in this file; the path itself for a file that is in no chapter."""
    lessons = folder()
    for chapter in CHAPTERS.values():
        for lesson in chapter.lessons:
            if path == lessons / chapter.folder / f"{lesson.name}.py":
                return lesson.summary
    return str(path)


def load(path: Path) -> ModuleType:
    """The module of a lesson, without the guarded cells that run it. It is not in sys.modules.

    ValueError if the file has no steps; ImportError, with its cause, if it cannot be executed.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    module = importlib.util.module_from_spec(spec)
    was_loaded = sys.modules.setdefault(path.stem, module) is not module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        if not was_loaded:
            sys.modules.pop(path.stem, None)
    steps = getattr(module, "STEPS", None)
    if not isinstance(steps, list | tuple) or not steps or not all(map(callable, steps)):
        raise ValueError(
            f"{path} is not a lesson: it needs STEPS = [...], the list of its functions "
            "step(rank, world_size, device) in reading order."
        )
    return module
