"""`--import MODULE`: backends of others, which register themselves when their module is imported.

Ranks are processes of their own. So what is imported here is imported in each rank that this
process starts, too.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable

from collectives.backends.availability import known_backends

# The same option of every command, lesson and of pytest.
OPTION = "--import"
HELP = "Import it in every rank: it registers a backend of your own. Repeatable."

# What was imported here, by name.
modules: list[str] = []


def add_option(add: Callable) -> None:
    """To a parser, by what it adds options with."""
    add(OPTION, action="append", default=[], dest="modules", metavar="MODULE", help=HELP)


def import_modules(names: Iterable[str]) -> None:
    """Import modules, from the current folder too, here and in the ranks that start from now on.

    ValueError, in one sentence, for a module that is missing, that raises, or that registers no
    backend.
    """
    # By itself the `collectives` command does not look in the current folder.
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if name not in modules:
            _import(name)
            modules.append(name)


def _import(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f"{OPTION} {name}: that is no name of a module: write it as behind `import` in Python."
        )
    # What was imported before has registered its backend before.
    is_new, before = name not in sys.modules, known_backends()
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{OPTION} {name}: {_reason(name, error)}") from error
    if is_new and known_backends() == before:
        raise ValueError(
            f"{OPTION} {name}: it registers no backend: it should call "
            "torch.distributed.Backend.register_backend when it is imported."
        )


def _reason(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        without = f": leave out the ending, as in {name[:-3]}" if name.endswith(".py") else ""
        return f"there is no such module, here or where this Python looks for packages{without}."
    *_, frame = traceback.extract_tb(error.__traceback__)
    # The message of a SyntaxError names the place itself; nothing of the module has run.
    place = f" ({frame.filename}, line {frame.lineno})" if frame.filename[0] != "<" else ""
    return f"its import raised {type(error).__name__}: {' '.join(str(error).split())}{place}."
