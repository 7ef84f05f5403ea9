"""Where commands and lessons print: a terminal, or a file or pipe.

What they print may be somebody else's: the text of an exception, what a step returned, a file. So a
control character is shown here and never obeyed.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from collectives.words import printable


def print_text(text: object, *, end: str = "\n", stderr: bool = False, flush: bool = False) -> None:
    print(printable(text), end=end, file=sys.stderr if stderr else sys.stdout, flush=flush)


def check_stdout(error: OSError) -> None:
    """Raises ValueError, in one sentence, if standard output is why this error was raised."""
    try:
        print(flush=True)  # subtle: a flush alone succeeds, as what failed before is gone
    except OSError:
        drop_stdout()
        why = f"standard output cannot be written: {error.strerror}."
        raise ValueError(why) from None


def drop_stdout() -> None:
    """Let all that is still to be printed go nowhere.

    subtle: else Python tries to write it again when it ends, and complains.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_files(*files: Path | None) -> None:
    """Raises ValueError if one cannot be written. What stands in a file stays there for now."""
    for file in filter(None, files):
        with writing(file), file.open("a"):
            pass


def write_file(file: Path, text: str) -> None:
    """Raises ValueError if it cannot be written."""
    with writing(file):
        # A lone surrogate cannot be encoded: it becomes \udc80, which JSON reads as itself.
        file.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Inside, what the system says against writing this file is a ValueError in one sentence."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{file} cannot be written: {error.strerror or error}.") from None
