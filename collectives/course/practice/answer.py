"""What the reader is told about a program: a sentence, the smallest case that fails, and lines."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collectives.course.practice.checker import ExerciseVerdict
from collectives.course.practice.exercise import Exercise

# How a verdict of a kind begins.
_TITLES = {
    "solved": "[green]solved[/]",
    "todo": "[yellow]to do[/]",
    "wrong": "[red]wrong[/]",
    "refused": "[red]not allowed[/]",
    "raised": "[red]an exception[/]",
    "hung": "[red]a hang[/]",
    "slow": "[yellow]no end[/]",
    "died": "[red]a rank died[/]",
}


def title(exercise: Exercise) -> str:
    return f"{exercise.name} {'*' * exercise.stars}"


def block(exercise: Exercise, verdict: ExerciseVerdict) -> Group:
    case = f" with {verdict.case}" if verdict.case else ""
    found: list[RenderableType] = [
        f"[bold]{title(exercise)}[/]: {_TITLES[verdict.kind]}{case}",
        Text(f"  {verdict.says}"),
    ]
    if any("given" in row for row in verdict.rows):
        found.append(picture(verdict))
    found += [Text(f"  {line}") for line in verdict.lines]
    return Group(*found)


def picture(verdict: ExerciseVerdict) -> Table:
    """A row for each rank: what it was given, what it got, and what it should have got."""
    given = list(dict.fromkeys(name for row in verdict.rows for name in row.get("given", {})))
    given = [name for name in given if name != "rank"]  # it is the first column
    results = list(dict.fromkeys(name for row in verdict.rows for name in row.get("results", {})))
    table = Table(box=None, pad_edge=True, header_style="dim", padding=(0, 1))
    table.add_column("rank")
    for name in given:
        table.add_column(name, overflow="fold")
    for name in results:
        table.add_column(name, overflow="fold")
        table.add_column("should be", overflow="fold")
    for rank, row in enumerate(verdict.rows):
        cells = [Text(str(rank)), *(Text(row.get("given", {}).get(name, "")) for name in given)]
        for name in results:
            got, wanted = row.get("results", {}).get(name, ("", ""))
            cells += [Text(got, style="" if got == wanted else "bold red"), Text(wanted)]
        table.add_row(*cells)
    return table
