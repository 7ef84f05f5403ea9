"""Where commands and lessons print: a terminal, or a file or pipe.

What they print may be somebody else's: the text of an exception, what a step returned, a file. So a
control character is shown here and never obeyed.
"""

import os
import sys

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
