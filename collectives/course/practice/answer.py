"""What the reader is told about a program: a sentence, the smallest case that fails, and lines."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collectives.course.practice.checker import ExerciseVerdict
from collectives.course.practice.exercise import Exercise
from collectives.recording.ending import Ending

# How a verdict of a kind begins, and in which colour.
_TITLES = {
    "solved": ("green", "solved"),
    "todo": ("yellow", "to do"),
    Ending.WRONG: ("red", "wrong"),
    "refused": ("red", "not allowed"),
    Ending.RAISED: ("red", "an exception"),
    Ending.HUNG: ("red", "a hang"),
    Ending.SLOW: ("yellow", "no end"),
    Ending.DIED: ("red", "a rank died"),
}

_WIDTH = 80
_Columns = dict[str, list[Text]]  # the cells of all ranks, by the column's name


def title(exercise: Exercise) -> str:
    return f"{exercise.name} {'*' * exercise.stars}"


def block(exercise: Exercise, verdict: ExerciseVerdict, said: Callable[[str], str] = str) -> Group:
    """`said` puts each sentence into the reader's language."""
    colour, kind = _TITLES[verdict.kind]
    case = said(f" with {verdict.case}") if verdict.case else ""
    parts: list[RenderableType] = [
        f"[bold]{title(exercise)}[/]: [{colour}]{said(kind)}[/]{case}",
        Text(f"  {said(verdict.says)}"),
    ]
    if any("given" in row for row in verdict.rows):
        parts += tables(verdict, said)
    parts += [Text(f"  {said(line)}") for line in verdict.lines]
    if verdict.sent:
        parts.append(Text(f"  {said(verdict.sent)}"))
    if verdict.is_solved:
        compare = said(f"compare: collectives practice solution {exercise.name}")
        parts.append(Text(f"  {compare}"))
    elif exercise.rule:
        parts.append(Text(f"  {said(f'The rule: {exercise.rule}.')}"))
    return Group(*parts)


def tables(verdict: ExerciseVerdict, said: Callable[[str], str] = str) -> list[Table]:
    """A row for each rank: what it was given, what it got, and what it should have got. Arguments
    and results that do not fit side by side are in tables of their own.
    """
    given = list(dict.fromkeys(name for row in verdict.rows for name in row.get("given", {})))
    results = list(dict.fromkeys(name for row in verdict.rows for name in row.get("results", {})))
    parts = [_given(verdict, name) for name in given if name != "rank"]  # it is the first column
    parts += [_result(verdict, name, said) for name in results]
    rows: list[list[_Columns]] = [[]]
    for part in parts:
        if rows[-1] and _width([*rows[-1], part]) > _WIDTH:
            rows.append([])
        rows[-1].append(part)
    return [_table(columns, len(verdict.rows)) for columns in rows]


def _given(verdict: ExerciseVerdict, name: str) -> _Columns:
    return {name: [Text(row.get("given", {}).get(name, "")) for row in verdict.rows]}


def _result(verdict: ExerciseVerdict, name: str, said: Callable[[str], str]) -> _Columns:
    both = [row.get("results", {}).get(name, ("", "")) for row in verdict.rows]
    got = [Text(got, style="" if got == wanted else "bold red") for got, wanted in both]
    return {said(name): got, said("should be"): [Text(wanted) for _, wanted in both]}


def _width(parts: list[_Columns]) -> int:
    columns = [(name, cells) for part in parts for name, cells in part.items()]
    return 6 + sum(
        2 + max(len(name), *(cell.cell_len for cell in cells)) for name, cells in columns
    )


def _table(parts: list[_Columns], ranks: int) -> Table:
    is_wide = _width(parts) > _WIDTH  # it has one part alone, whose columns are folded
    table = Table(
        box=None,
        header_style="dim",
        padding=(0, 1),
        width=_WIDTH if is_wide else None,
    )
    table.add_column("rank")
    for part in parts:
        for name in part:
            table.add_column(name, overflow="fold")
    for rank in range(ranks):
        table.add_row(str(rank), *(cells[rank] for part in parts for cells in part.values()))
    return table
