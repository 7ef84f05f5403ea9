"""What `collectives matrix` shows in the terminal: the progress, then the tables."""

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collectives.backends.claims import BROKEN
from collectives.matrix import grid
from collectives.matrix.measured import by_column, is_measured

# The lines of the tables are no longer than this in a pipe.
_WIDTH = 120


def show_progress(cells: Iterator[dict], count: int) -> Iterator[dict]:
    """Pass the cells on as they are measured; show how many there are, and each broken one."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    is_quiet = not console.is_terminal
    broken = 0
    with Progress(*columns, console=console, transient=True, disable=is_quiet) as progress:
        task = progress.add_task("cells", total=count)
        for cell in cells:
            if cell["state"] in BROKEN:
                broken += 1
                text = f"{escape(grid.short_name(cell))}: {escape(cell['detail'])}"
                console.print(f"[red]{cell['state']}[/] {text}", soft_wrap=True)
            progress.update(
                task, advance=1, description=f"cells, {broken} bad" if broken else "cells"
            )
            yield cell


def print_grid(cells: list[dict]) -> None:
    """Print the tables of each column, and of a column that is not here the reason."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    for (backend, device, world_size), column in by_column(cells).items():
        if not any(map(is_measured, column)):
            reasons = "; ".join(sorted({cell["detail"] for cell in column}))
            text = f"\n{backend}/{device}: unavailable here: {escape(reasons)}"
            console.print(text, soft_wrap=True)
            continue
        for table in (grid.by_dtype(column), grid.by_variant(column)):
            if table is not None:
                table.title = f"\n{backend}/{device}, {world_size} ranks"
                table.title_justify = "left"
                with console.capture() as text:
                    console.print(table)
                # Without the blanks that fill the last column.
                sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))
    console.print()
    console.print(grid.legend())
    for line in grid.reasons(cells):
        console.print(escape(line), soft_wrap=True)
    console.print(grid.counts(cells), soft_wrap=True)
