"""Ring attention in rounds: whose keys and values each rank has, and what it computes with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collectives.pictures.colours import LIGHT, colour_of, edge
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

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

    shows = "Whose keys each rank has in each round, and what it computes"

    @default_style
    def draw(self, title: str, ranks: Sequence["TravellingBlocks"]) -> Canvas:
        """The pair of queries i and keys j has the gid <name>/r<rank>/<i>-<j>."""
        count, left, top = len(self.rounds), MARGIN + 1.15, TOP + 1.7 * LINE
        step = min(1.3, (WIDEST - left - 0.85 - MARGIN) / count)
        canvas, told = Canvas(title), []
        for number in range(count):
            canvas.write(left + step * number + _SIDE, top - 0.1, f"round {number}", ha="center")
        for rank, rounds in enumerate(self.rounds):
            y = top + _PITCH * rank + 0.28
            canvas.chip(MARGIN, y + _SIDE, rank)
            for line, query in enumerate(self.queries[rank]):
                canvas.write(left - 0.08, y + _SIDE * (line + 0.5), str(query), ha="right")
            for number, one in enumerate(rounds):
                colour, gid = colour_of(one.owner), f"{self.name}/r{rank}"
                for column, key in enumerate(one.keys):
                    x = left + step * number + _SIDE * column
                    canvas.write(x + _SIDE / 2, y - 0.1, str(key), ha="center")
                    for line, query in enumerate(self.queries[rank]):
                        fill, line_colour = LIGHT, edge(colour)
                        if (query, key) in one.pairs:
                            fill, line_colour = colour, LIGHT
                        box = x, y + _SIDE * line, _SIDE, _SIDE
                        canvas.cell(box, "", fill, f"{gid}/{query}-{key}", edgecolor=line_colour)
                pairs = ", ".join(f"{i} with {j}" for i, j in one.pairs) or "nothing"
                told.append(
                    f"Rank {rank} has in round {number} the keys of rank {one.owner} and computes "
                    f"{pairs}."
                )
            canvas.write(left + step * count, y + _SIDE, f"{self.pairs[rank]} boxes")
        return canvas.end_with(_LEGEND, top + _PITCH * count, f"{title}. {' '.join(told)}")
