"""Tables on the terminal, and in a pipe."""

from rich.console import Console
from rich.table import Table


def console(stderr: bool = False) -> Console:
    found = Console(stderr=stderr, highlight=False)
    # Not on a screen lines may be long: nothing is wrapped or cut.
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=1000)


def print_table(table: Table) -> None:
    """Print a table, without the blanks that fill its last column."""
    out = console()
    with out.capture() as text:
        out.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))
