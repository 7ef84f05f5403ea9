"""Find the file of a lesson by its name, and load it."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from collectives.course import chapters
from collectives.words import did_you_mean


def choose(names: list[str], every: bool, route: bool = False) -> list[Path]:
    """The files of the lessons, chapters and paths named, or with `every` of all that are proved,
    or those of the `route`.

    ValueError for a name that does not exist, and unless exactly one of the three is asked for.
    """
    known = chapters.read()
    if every and names:
        raise ValueError("--all means every lesson: leave out the names, or leave out --all.")
    if route and (every or names):
        raise ValueError("--route names its lessons itself: leave out the other names and --all.")
    if route:
        return [lesson.path for lesson in chapters.route()]
    if not every and not names:
        lessons = ", ".join(name for chapter in known.values() for name in chapter.names)
        raise ValueError(
            f"name a lesson ({lessons}) or a chapter ({', '.join(known)}), or say --route or --all."
        )
    if every:
        names = [chapter.name for chapter in known.values() if chapter.runs_everywhere]
    files: list[Path] = []
    for name in names:
        files += of_chapter(known[name]) if name in known else [find(name)]
    return files


def of_chapter(chapter: chapters.Chapter) -> list[Path]:
    """The files of a chapter's lessons, in reading order."""
    return [lesson.path for lesson in chapter.lessons]


def find(name: str) -> Path:
    """The file of a lesson, by its name (all_reduce, mistakes/order), its name within its chapter
    (order), if no other has that, or a path that ends in .py.

    ValueError if there is none.
    """
    known = chapters.read()
    lessons = {lesson.name: lesson for chapter in known.values() for lesson in chapter.lessons}
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            hint = f" The lesson of that name is {path.stem!r}." if path.stem in lessons else ""
            raise ValueError(f"there is no file {name}.{hint}")
        return path
    matches = [
        lessons[full_name]
        for full_name in lessons
        if name in (full_name, full_name.rpartition("/")[2])
    ]
    if len(matches) != 1:
        hint = did_you_mean(name, [*lessons, *known])
        raise ValueError(
            f"there is no lesson or chapter {name!r}: {hint}`collectives list` shows all. "
            "Or give the path of a .py file."
        )
    return matches[0].path


def summary(path: Path) -> str:
    """The summary of the lesson in this file; the path itself for a file that is in no chapter."""
    for chapter in chapters.read().values():
        for lesson in chapter.lessons:
            if path == lesson.path:
                return lesson.summary
    return str(path)


def program_runs_lessons() -> bool:
    """Whether this process is `python lessons/NAME.py` or `collectives ...`."""
    program = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if "collectives" in (program.name, program.parent.name):
        return True
    return program.is_file() and "\nSTEPS = [" in program.read_text("utf-8", errors="replace")


@contextlib.contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Inside, `import model` loads model.py of this folder, as in a program that is started there.

    Afterwards sys.modules is as before: another chapter may have another `model`. What a lesson
    imported this way travels to the ranks by value, because no module of sys.modules has it.
    """
    names = {path.stem for path in folder.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names & sys.modules.keys():
            del sys.modules[name]
        sys.modules.update(before)


def import_modules_of_notebook() -> None:
    """In notebooks/NAME, let `import model` load model.py of our lessons/NAME, as in the lesson.

    Of the notebook's own checkout nothing is loaded, unless it is that of this package.
    """
    here = Path.cwd()
    chapter = chapters.folder() / here.name
    if here.parent.name == "notebooks" and chapter.is_dir():
        sys.path.insert(0, str(chapter))


def load(path: Path) -> ModuleType:
    """The module of a lesson, without the guarded cells that run it. It is not in sys.modules.

    ValueError if the file has no steps; ImportError, with its cause, if it cannot be executed.
    """
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with imports_from(path.parent):
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ImportError(
                f"{path} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
    steps = getattr(module, "STEPS", None)
    if not isinstance(steps, list | tuple) or not steps or not all(map(inspect.isfunction, steps)):
        raise ValueError(
            f"{path} is not a lesson: it needs STEPS = [...], the list of its functions, each made "
            "by def step(rank, world_size, device), in reading order."
        )
    return module
