"""Which rank takes which sample: a row of boxes for each batch, in the colours of the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, TOP, Canvas, default_style

_WIDTH, _HEIGHT, _AT_AN_END = 0.36, 0.28, 11
_TAKEN = "A box is a sample, in the colour of the rank that takes it."
_TWICE = " A box below it: another rank takes the same sample."
_LEFT_OUT = " White: no rank takes it."


@dataclass(frozen=True)
class Shards:
    """For each name of a row: its samples in order, and those of them that this rank takes.

    It prints how many the rank takes.
    """

    rows: dict[str, tuple[Sequence[int], Sequence[int]]]

    def __str__(self) -> str:
        return ", ".join(f"{len(mine)} of {len(whole)}" for whole, mine in self.rows.values())

    @default_style
    def draw(self, title: str, ranks: Sequence["Shards"]) -> Canvas:
        """Of a long row its two ends. A box has the gid <row>/<place>/r<rank>."""
        canvas, y, told = Canvas(title), TOP + 2 * LINE, []
        canvas.chips(len(ranks))
        most, least = 1, 1
        for name in self.rows:
            takers = _takers([one.rows[name] for one in ranks])
            canvas.write(MARGIN, y + LINE / 2, name, weight="bold")
            _draw_row(canvas, name, takers, y + 1.2 * LINE)
            counts = [len(taken) for taken in takers.values()]
            most, least = max(most, *counts), min(least, *counts)
            y += 2.2 * LINE + _HEIGHT * max(1, *counts)
            first = [" and ".join(map(str, one)) or "none" for one in takers.values()]
            twice, left_out = sum(count > 1 for count in counts), counts.count(0)
            told.append(
                f"{name}: {len(counts)} samples, the first ones of ranks {', '.join(first[:6])}, "
                f"the last one of rank {first[-1]}; {twice} of several ranks, {left_out} of none."
            )
        legend = _TAKEN + _TWICE * (most > 1) + _LEFT_OUT * (least == 0)
        return canvas.end_with(legend, y - LINE, f"{title}. {' '.join(told)}")


def _takers(ranks: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[int, list[int]]:
    """For each sample of the row, the ranks that take it."""
    found: dict[int, list[int]] = {sample: [] for sample in ranks[0][0]}
    for rank, (_, mine) in enumerate(ranks):
        for sample in mine:
            found[sample].append(rank)
    return found


def _draw_row(canvas: Canvas, name: str, takers: dict[int, list[int]], y: float) -> None:
    samples = [*enumerate(takers.items())]
    is_long = len(samples) > 2 * _AT_AN_END + 1
    if is_long:
        canvas.write(MARGIN + _WIDTH * (_AT_AN_END + 0.5), y + _HEIGHT / 2, "...", ha="center")
        samples = [*samples[:_AT_AN_END], *samples[-_AT_AN_END:]]
    for number, (place, (sample, ranks)) in enumerate(samples):
        x = MARGIN + _WIDTH * (number + (is_long and number >= _AT_AN_END))
        for level, rank in enumerate(ranks or [None]):
            colour = LIGHT if rank is None else colour_of(rank)
            box = x, y + _HEIGHT * level, _WIDTH, _HEIGHT
            canvas.cell(box, str(sample), colour, f"{name}/{place}/r{rank}")
