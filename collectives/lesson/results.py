"""The results of a step as text: a line for each rank, a column for each value it returned."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A number after each step of a training: printed as the first and the last, drawn as a line.

    `label` says what the numbers are, and `done` how many steps were made before the first of them.
    On a `log` scale nothing is printed but how many there are: a rounding error differs from
    machine to machine.
    """

    values: list[float]
    label: str = "loss"
    log: bool = False
    done: int = 0

    def __str__(self) -> str:
        if self.log:
            return f"{len(self.values)} values"
        return f"{self.values[0]:.4f} ... {self.values[-1]:.4f}"


@dataclass(frozen=True)
class Times:
    """Seconds by bytes, for each algorithm: printed as which one is the fastest from which size on.

    `curves` has (bytes, seconds) of the same sizes for each name. They must not be measured by the
    step: what is printed should be the same on every machine. `against` is the curve that the
    picture compares the fastest one with.
    """

    curves: dict[str, list[tuple[float, float]]]
    against: str | None = None

    def __str__(self) -> str:
        from collectives.pictures import crossings

        return crossings.in_words(self.curves)


@dataclass(frozen=True)
class Pairs:
    """Rows of a table, and which machines are slow: all together, and two of them alone.

    `pairs` has a key for each two machines, (0, 2).
    """

    rows: list[dict]
    together: list[bool]
    pairs: dict[tuple[int, int], bool]


@dataclass(frozen=True)
class Cables:
    """Rows of a table, and who sends to whom on two machines.

    `panels` are arguments of `collectives.pictures.cables.Wiring`.
    """

    rows: list[dict]
    panels: list[tuple]


def table(name: str, results: list) -> str:
    """What a lesson prints: the step's name, the number of ranks, and what each rank returned.

    A dict that a rank returns has a column for each key; anything else is the column `result`.
    """
    ranks = "1 rank" if len(results) == 1 else f"all {len(results)} ranks"
    return aligned(f"{name}: proved on {ranks}", cells(results))


def aligned(title: str, rows: list[list[str]]) -> str:
    """The title, and below it the cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join([title, *lines]) + "\n"


def cells(results: list) -> list[list[str]]:
    """The cells of that table. The first row is its header."""
    rows = [result if isinstance(result, dict) else {"result": result} for result in results]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    header = ["rank", *keys]
    return [header] + [
        [str(rank), *(_text(row.get(key)) for key in keys)] for rank, row in enumerate(rows)
    ]


def _text(value, inside_list: bool = False) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if value is None:
        return "-"
    if isinstance(value, float):
        return str(round(value, 4))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, inside_list=True) for item in value) + "]"
    return repr(value) if inside_list else str(value)
