"""What each rank has or does: a row for each rank, a column for each step, unit or sample.

>>> print(dealt({"sampler": ([0, 1, 2, 3], [1, 3])}))
sampler: 2 of 4
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectives.pictures.colours import GREY, LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_LEFT, _WIDEST_CELL, _ROW, _BETWEEN = 0.8, 0.6, 0.3, 0.4
_MOST, _AT_AN_END = 32, 11  # columns


@dataclass(frozen=True)
class RankGrid:
    """The rows of one rank, by name; each name is a panel, in which each rank has its row.

    A cell that is true is filled; a number or text is written into it. `columns` says what a column
    is, and `legend` what a filled cell is. The columns are numbered from `first` on. Of a long row
    the two ends are drawn. `shows` is the title of the picture.
    """

    rows: Mapping[str, Sequence[bool | int | str]]
    columns: str
    legend: str
    first: int = 1
    shows: str = "What each rank has"

    def __str__(self) -> str:
        return ", ".join(f"{name}: {_text(row)}" for name, row in self.rows.items())

    @default_style
    def draw(self, title: str, ranks: Sequence["RankGrid"]) -> Canvas:
        """Panels stand side by side if they fit. A cell has the gid <name>/r<rank>/<column>."""
        shown = {name: _shown(len(row)) for name, row in self.rows.items()}
        longest = max(map(len, shown.values()))
        cell = min(_WIDEST_CELL, (WIDEST - _LEFT - 2 * MARGIN) / longest)
        width = _LEFT + cell * longest + _BETWEEN
        across = min(len(self.rows), int((WIDEST - 2 * MARGIN + _BETWEEN) / width))
        height = 3 * LINE + _ROW * len(ranks)
        canvas = Canvas(title, max(2 * MARGIN + width * across - _BETWEEN, 6.5))
        told = []
        for number, name in enumerate(self.rows):
            x, y = MARGIN + width * (number % across), TOP + height * (number // across)
            canvas.write(x, y + LINE / 2, name, 10, weight="bold")
            canvas.write(x, y + 1.8 * LINE, self.columns)
            for place, column in enumerate(shown[name]):
                middle = x + _LEFT + cell * (place + 0.5)
                head = "..." if column is None else str(column + self.first)
                canvas.write(middle, y + 1.8 * LINE, head, ha="center")
            for rank, one in enumerate(ranks):
                top = y + 2.5 * LINE + _ROW * rank
                canvas.chip(x, top + _ROW / 2, rank)
                for place, column in enumerate(shown[name]):
                    if column is None:
                        continue
                    value = one.rows[name][column]
                    box = x + _LEFT + cell * place, top + 0.03, cell, _ROW - 0.06
                    text = "" if isinstance(value, bool) else str(value)
                    colour, gid = colour_of(rank) if value else LIGHT, f"{name}/r{rank}/{column}"
                    canvas.cell(box, text, colour, gid, edgecolor=GREY)
                told.append(f"{name}, rank {rank}: {_text(one.rows[name])}.")
        bottom = TOP + height * -(-len(self.rows) // across)
        return canvas.end_with(self.legend, bottom, f"{title}. {self.legend} {' '.join(told)}")


def dealt(rows: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> RankGrid:
    """Which samples this rank takes: by name, all samples in order, and its own."""
    cells = {}
    for name, (whole, mine) in rows.items():
        own = {*mine}
        cells[name] = [sample in own and str(sample) for sample in whole]
    legend = "Filled: the rank takes the sample with this number."
    return RankGrid(cells, "place", legend, first=0, shows="Which samples each rank takes")


def _shown(count: int) -> list[int | None]:
    """The columns that are drawn; None for those that are left out."""
    if count <= _MOST:
        return [*range(count)]
    return [*range(_AT_AN_END), None, *range(count - _AT_AN_END, count)]


def _text(row: Sequence[bool | int | str]) -> str:
    """The numbers; of a row with empty cells, how many are filled."""
    if any(isinstance(value, bool) for value in row):
        return f"{sum(map(bool, row))} of {len(row)}"
    return ", ".join(map(str, row))
