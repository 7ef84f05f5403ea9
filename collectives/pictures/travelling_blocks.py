"""Ring attention in rounds: whose keys and values each rank has, and what it computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives.pictures.colours import PALETTE, edge
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _PITCH = 0.24, 0.8
_LEGEND = (
    "In each round a rank has the keys and values of two chunks. A box is a chunk of queries, at "
    "its left, with a chunk of keys, above it. It has the colour of the rank that the keys belong "
    "to if the rank computed it, and is white if the causal mask left nothing to compute."
)


class Round(NamedTuple):
    """The owner of the keys and values, their chunks, and the pairs (queries, keys) computed."""

    owner: int
    keys: list[int]
    pairs: list[tuple[int, int]]


@dataclass(frozen=True)
class TravellingBlocks:
    """By rank, the chunks of its queries, and what it did in each round."""

    name: str
    queries: list[list[int]]
    rounds: list[list[Round]]

    @property
    def pairs(self) -> list[int]:
        """How many pairs each rank computed."""
        return [sum(len(one.pairs) for one in rounds) for rounds in self.rounds]

    @property
    def longest(self) -> int:
        """The pairs of the busiest rank of each round, added up: the others wait for it."""
        return sum(max(len(one.pairs) for one in ranks) for ranks in zip(*self.rounds, strict=True))

    def __str__(self) -> str:
        return f"pairs of each rank {self.pairs}, one after the other {self.longest}"

    @default_style
    def draw(self, title: str, ranks: Sequence[TravellingBlocks]) -> Figure:
        """The pair of queries i and keys j has the gid <name>/r<rank>/<i>-<j>."""
        count = len(self.rounds)
        left, right = MARGIN + 1.15, 0.85
        step = min(1.3, (WIDEST - left - right - MARGIN) / count)
        top = MARGIN + 0.5 + LINE
        bottom = top + _PITCH * count
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 0.8) + MARGIN)
        canvas.title(f"{title}: {self.name}")
        for number in range(count):
            canvas.write(left + step * number + _SIDE, top - 0.1, f"round {number}", ha="center")
        for rank, rounds in enumerate(self.rounds):
            y = top + _PITCH * rank + 0.28
            canvas.chip(MARGIN, y + _SIDE, rank)
            for line, query in enumerate(self.queries[rank]):
                middle = y + _SIDE * (line + 0.5)
                canvas.write(left - 0.08, middle, str(query), SMALL, ha="right")
            for number, one in enumerate(rounds):
                corner = left + step * number, y
                self._draw_round(canvas, rank, one, corner)
            x = left + step * count
            canvas.write(x, y + _SIDE, f"{self.pairs[rank]} boxes")
        canvas.lines(MARGIN, bottom + 0.9 * LINE, legend)
        canvas.figure.set_label(f"{title}: {self.name}. {self._describe()}")
        return canvas.figure

    def _draw_round(
        self, canvas: Canvas, rank: int, one: Round, corner: tuple[float, float]
    ) -> None:
        colour = PALETTE[one.owner]
        for column, key in enumerate(one.keys):
            x = corner[0] + _SIDE * column
            canvas.write(x + _SIDE / 2, corner[1] - 0.1, str(key), SMALL, ha="center")
            for line, query in enumerate(self.queries[rank]):
                is_computed = (query, key) in one.pairs
                fill, line_colour = (
                    (colour, "#ffffff") if is_computed else ("#ffffff", edge(colour))
                )
                gid = f"{self.name}/r{rank}/{query}-{key}"
                look: dict[str, Any] = {"edgecolor": line_colour, "linewidth": 0.8}
                canvas.box(x, corner[1] + _SIDE * line, _SIDE, _SIDE, fill, gid, **look)

    def _describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        found = []
        for rank, rounds in enumerate(self.rounds):
            words = (
                f"in round {number} it has the keys of rank {one.owner} "
                f"and computes {', '.join(f'{i} with {j}' for i, j in one.pairs) or 'nothing'}"
                for number, one in enumerate(rounds)
            )
            found.append(f"Rank {rank}: {'; '.join(words)}.")
        return " ".join(found)
