"""Memory that all ranks share: which part of which row each rank writes and reads, and when."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from collectives.pictures.colours import DARK, LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

if TYPE_CHECKING:
    from torch import Tensor

_LEGEND = "In each row: above, who writes; below, who reads. The colours are those of the ranks."
_LEFT, _BETWEEN, _WRITE, _GAP, _READ, _APART = 0.5, 0.3, 0.16, 0.04, 0.07, 0.12


class SharedRows:
    """Rows of memory, and a note of what this rank writes and reads.

    `calls` is what `counting` counts: each barrier in it begins another panel. It prints how many
    elements the rank writes and reads from barrier to barrier.
    """

    def __init__(self, rows: "Tensor", calls: Mapping[str, Any]):
        self.rows, self.calls, self.shape = rows, calls, tuple(rows.shape)
        self.touched: dict[tuple[int, str], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the memory, which nobody else can use."""
        return self.__dict__ | {"rows": None}

    def __getitem__(self, key: Any) -> "Tensor":
        self._note("reads", key)
        return self.rows[key]

    def __setitem__(self, key: Any, value: "Tensor") -> None:
        self._note("writes", key)
        self.rows[key] = value

    def _note(self, what: str, key: Any) -> None:
        stage = self.calls["c10d.barrier"].calls
        new = self.rows.new_zeros(self.shape).bool()
        self.touched.setdefault((stage, what), new)[key] = True

    def __str__(self) -> str:
        by_stage = itertools.groupby(self.touched.items(), lambda one: one[0][0])
        return "; ".join(
            ", ".join(f"{what} {int(cells.sum())}" for (_, what), cells in stage)
            for _, stage in by_stage
        )

    shows = "Who writes and who reads which part of the shared memory"

    @default_style
    def draw(self, title: str, ranks: Sequence["SharedRows"]) -> Canvas:
        """A panel from barrier to barrier. A box: <what>/<stage>/<row>/<first column>/r<rank>."""
        stages = 1 + max(stage for one in ranks for stage, _ in one.touched)
        count, length = self.shape
        pitch = _WRITE + _GAP + _READ * len(ranks) + _APART
        width = (WIDEST - 2 * MARGIN - _LEFT - _BETWEEN * (stages - 1)) / stages
        canvas, top, told = Canvas(title), TOP + 2.8 * LINE, []
        canvas.chips(len(ranks))
        for row in range(count):
            canvas.write(MARGIN, top + pitch * row + (pitch - _APART) / 2, f"row {row}")
        for stage in range(stages):
            left = MARGIN + _LEFT + (width + _BETWEEN) * stage
            if stage:
                line = left - _BETWEEN / 2
                canvas.box((line - 0.01, top - 0.05, 0.02, pitch * count), DARK)
                canvas.write(line, top - 0.8 * LINE, "barrier", ha="center")
            for row in range(count):
                canvas.box((left, top + pitch * row, width, pitch - _APART), LIGHT)
            for rank, what, row, first, last in _spans(ranks, stage):
                y, height = top + pitch * row, _WRITE
                if what == "reads":
                    y, height = y + _WRITE + _GAP + _READ * rank, _READ
                box = left + width * first / length, y, width * (last + 1 - first) / length, height
                canvas.cell(box, "", colour_of(rank), f"{what}/{stage}/{row}/{first}/r{rank}")
                told.append(f"Part {stage + 1}: rank {rank} {what} {first} to {last} of row {row}.")
        bottom = top + pitch * count
        return canvas.end_with(_LEGEND, bottom - LINE / 2, f"{title}. {' '.join(told)}")


def _spans(ranks: Sequence[SharedRows], stage: int) -> Iterator[tuple[int, str, int, int, int]]:
    """What ranks touch after so many barriers: rank, what it does, row, first and last column."""
    for (rank, one), what in itertools.product(enumerate(ranks), ("writes", "reads")):
        if (stage, what) in one.touched:
            for row, cells in enumerate(one.touched[stage, what].tolist()):
                for is_touched, run in itertools.groupby(enumerate(cells), itemgetter(1)):
                    columns = [column for column, _ in run]
                    if is_touched:
                        yield rank, what, row, columns[0], columns[-1]
