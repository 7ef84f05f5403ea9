"""Where commands and lessons print: a terminal, or a file or pipe."""

from rich.console import Console, RenderableType


def console(stderr: bool = False, width: int = 1000) -> Console:
    """As wide as the terminal; else `width`, by default so wide that no line is wrapped or cut."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=width)


def print_block(block: RenderableType) -> None:
    """Print a table or a group of them, without the blanks that fill the last column."""
    out = console()
    if out.is_jupyter:
        out.print(block)
        return
    with out.capture() as text:
        out.print(block)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))
