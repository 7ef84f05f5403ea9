"""What our commands share: `--import`, what they say of an error, the files that they leave, and
their status.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from collectives.backends.availability import IMPORT, IMPORT_HELP, Unavailable
from collectives.course.console import print_text
from collectives.launcher.worker import is_alone_or_rank

Modules = Annotated[list[str] | None, typer.Option(IMPORT, metavar="MODULE", help=IMPORT_HELP)]


def make_help_readable(commands: Iterable[typer.core.TyperCommand]) -> None:
    """Typer's help in colours that can be read on a white ground, too.

    Its lines end where the terminal does, and not where those of the docstring do.

    subtle: not at the import of this file. Rich's parts for it take as long as all else together.
    """
    from typer import rich_utils

    from collectives.course.rich_console import READABLE

    colours = READABLE | {"cyan": "color(26)"}
    for name, style in vars(rich_utils).items():
        if name.startswith("STYLE_") and isinstance(style, str):
            words = dict.fromkeys(colours.get(word, word) for word in style.split())
            setattr(rich_utils, name, " ".join(words))
    _join_lines(commands)


def _join_lines(commands: Iterable[typer.core.TyperCommand]) -> None:
    for command in commands:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
        _join_lines(getattr(command, "commands", {}).values())  # those of a group


def failed(command: str, error: Exception) -> int:
    """Say what went wrong, of a launcher's ranks once, and return the exit status.

    That is 1 if ranks failed, 2 for bad usage, 3 if a backend is not here.
    """
    if is_alone_or_rank(0):
        print_text(f"{command}: {error}", stderr=True)
    if isinstance(error, RuntimeError):
        return 1
    return 3 if isinstance(error, Unavailable) else 2


def write_all(command: str, files: Mapping[Path | None, Callable[[Path], None]]) -> bool:
    """Call each with its file, and say on stderr what cannot be written. Whether all was."""
    is_written = True
    for file, write in files.items():
        if file is not None:
            try:
                write(file)
            except ValueError as error:
                failed(command, error)
                is_written = False
    return is_written


def status_of_all(statuses: Iterable[int]) -> int:
    """A failure counts most; 3, nothing could be run, only if it is so for all."""
    found = set(statuses)
    return next((status for status in (1, 2, 0) if status in found), 3)
