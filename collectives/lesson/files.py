"""Where the lessons are, and how to load one."""

import difflib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from collectives.spec.catalogue import COLLECTIVES

_PACKAGE = Path(__file__).parents[1]

# The files of lessons/mistakes, in reading order.
MISTAKES = ("messages", "order", "arguments", "buffers", "groups", "processes", "data", "start_up")


def folder(start: Path | None = None) -> Path:
    """The lessons of the checkout that one stands in; else those in the wheel; else, in an editable install, those beside it."""
    start = (start or Path.cwd()).resolve()
    wheel, editable = _PACKAGE / "lessons", _PACKAGE.parent / "lessons"
    checkout = next(
        (place / "lessons" for place in (start, *start.parents) if _is_checkout(place)), None
    )
    return checkout or (wheel if wheel.is_dir() else editable)


def _is_checkout(place: Path) -> bool:
    project = place / "pyproject.toml"
    if not (place / "lessons").is_dir() or not project.is_file():
        return False
    try:
        return (
            tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("name")
            == "collectives"
        )
    except (OSError, ValueError):  # somebody else's, and broken
        return False


def choose(names: list[str], every: bool) -> list[Path]:
    """The files of the lessons named, or of every lesson in reading order. ValueError if that is no choice."""
    if every and names:
        raise ValueError("--all means every lesson: leave out the names, or leave out --all.")
    if not every and not names:
        raise ValueError(f"name a lesson ({', '.join(COLLECTIVES)}), or say --all.")
    if every:
        return [find(name) for name in COLLECTIVES]
    return [path for name in names for path in (mistakes() if name == "mistakes" else [find(name)])]


def mistakes() -> list[Path]:
    """The files of all mistakes."""
    return [find(f"mistakes/{name}") for name in MISTAKES]


def find(name: str) -> Path:
    """The file of a lesson, by its name (all_reduce, mistakes/order) or by a path that ends in .py. ValueError if there is none."""
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            hint = f" The lesson of that name is {path.stem!r}." if path.stem in COLLECTIVES else ""
            raise ValueError(f"there is no file {name}.{hint}")
        return path
    known = [*COLLECTIVES, *(f"mistakes/{mistake}" for mistake in MISTAKES)]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"there is no lesson {name!r}: {hint}There are {', '.join(known)}; or give the path of a .py file."
        )
    path = folder() / f"{name}.py"
    if not path.is_file():
        raise ValueError(f"the lesson {name!r} is missing from {path.parent}.")
    return path


def load(path: Path) -> ModuleType:
    """The module of a lesson, under its file's name, without the guarded cells that run it; it does not stay in sys.modules.

    ValueError if the file has no steps; ImportError, with its cause, if it cannot be executed.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    module = importlib.util.module_from_spec(spec)
    stays = sys.modules.setdefault(path.stem, module) is not module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        if not stays:
            sys.modules.pop(path.stem, None)
    steps = getattr(module, "STEPS", None)
    if (
        not isinstance(steps, list | tuple)
        or not steps
        or not all(callable(step) for step in steps)
    ):
        signature = "step(rank, world_size, device)"
        raise ValueError(
            f"{path} is not a lesson: it needs STEPS = [...], the list of its functions {signature} in reading order."
        )
    return module
