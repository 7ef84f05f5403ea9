"""Where commands and lessons print: a terminal, or a file or pipe.

What they print may be somebody else's: the text of an exception, what a step returned, a file. So a
control character is shown here and never obeyed.
"""

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from collectives.semantics.printable import printable


class _Console(Console):
    def render_str(self, text: str, **options) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Of what is no str, a Text for instance."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))


def console(stderr: bool = False, width: int = 1000) -> Console:
    """As wide as the terminal; else `width`, by default so wide that no line is wrapped or cut."""
    found = _Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else _Console(stderr=stderr, highlight=False, width=width)


def print_text(text: object, *, end: str = "\n", stderr: bool = False, flush: bool = False) -> None:
    print(printable(text), end=end, file=sys.stderr if stderr else sys.stdout, flush=flush)


def print_block(block: RenderableType) -> None:
    """Print a table or a group of them, without the blanks that fill the last column."""
    out = console()
    if out.is_jupyter:
        out.print(block)
        return
    with out.capture() as text:
        out.print(block)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


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
