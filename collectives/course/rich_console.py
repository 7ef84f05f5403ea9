"""Tables and blocks in a terminal, a file or a pipe.

Apart from console.py, because rich takes long to import, and most lessons print plain text alone.
"""

import io
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from collectives.words import printable

# Yellow and green can hardly be read on white, and what is dim cannot; these can, on black, too.
READABLE = {"green": "color(28)", "yellow": "color(130)", "dim": "color(243)"}


class _Console(Console):
    def __init__(self, **options):
        super().__init__(theme=Theme(READABLE), **options)

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


def print_block(block: RenderableType) -> None:
    """Print a table or a group of them, without the blanks that fill the last column."""
    out = console()
    if out.is_jupyter:
        out.print(block)
        return
    with out.capture() as text:
        out.print(block)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def plain(block: RenderableType, width: int) -> str:
    """The block without colours and without blanks at the ends of its lines."""
    text = io.StringIO()
    out = _Console(file=text, force_jupyter=False, color_system=None, highlight=False, width=width)
    out.print(block)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
