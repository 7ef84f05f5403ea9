"""Where everything on a timeline goes: a lane for each rank, a column for each step, rows of both.

A column has room for the ends of the lines that meet in it, and they keep clear of its words:
ticks stand before the bars, dotted lines at the left of a bar, and arrows arrive at its right.
"""

from dataclasses import dataclass

from collectives.pictures.page import LINE, MARGIN, WIDEST

STEP = 1.24
LEFT, TOP = MARGIN + 0.8, MARGIN + 0.3
PER_ROW = int((WIDEST - LEFT - MARGIN) / STEP)
PAD, END, MIDDLE = 0.08, 0.03, 0.62  # of a bar: before it, after it; the middle of its words
DOTS, TRACK, APART = 0.14, 0.07, 0.05  # dotted lines and arrows: their places in the column
_GAP = 0.27  # between two lanes: arrows pass there


@dataclass(frozen=True)
class Lanes:
    """`places`: the lane of each rank, from 0. `height`: of a bar."""

    places: dict[int, int]
    length: int
    height: float

    @property
    def rows(self) -> int:
        return -(-max(1, self.length) // PER_ROW)

    @property
    def per_row(self) -> int:
        return -(-max(1, self.length) // self.rows)

    @property
    def bottom(self) -> float:
        return self._top(self.rows)

    @property
    def right(self) -> float:
        return LEFT + self.per_row * STEP

    def row(self, step: int) -> int:
        """The row in which this step begins."""
        return min(step // self.per_row, self.rows - 1)

    def x(self, step: int, row: int) -> float:
        """Where a step begins; the edge of the row if it lies in another one."""
        return LEFT + STEP * min(max(step - row * self.per_row, 0), self.per_row)

    def y(self, rank: int, row: int) -> float:
        """The middle of a rank's lane."""
        return self._top(row) + (self.height + _GAP) * (self.places[rank] + 0.5)

    def parts(self, begin: int, end: int) -> list[tuple[int, float, float]]:
        """(row, left, right) of each row in which a bar lies."""
        return [
            (row, self.x(begin, row) + PAD, self.x(end, row) - END)
            for row in range(self.row(begin), self.row(end - 1) + 1)
        ]

    def route(
        self, tail: tuple[int, int], head: tuple[int, int], track: int
    ) -> list[tuple[float, float]]:
        """The points of an arrow from a bar's beginning to another's end, as (rank, step).

        Between neighbours it is straight. Otherwise it goes along the sender's lane, and then down
        or up at the right of a column, where no words are.
        """
        (sender, begin), (receiver, end) = tail, head
        row = self.row(end - 1)
        from_here = self.row(begin) == row
        down = 1 if self.places[receiver] > self.places[sender] else -1
        start = self.x(begin, row) + (PAD + 0.12) * from_here
        leave = self.y(sender, row) + down * self.height / 2
        arrive = self.y(receiver, row) - down * self.height / 2
        right = self.x(end, row)
        if abs(self.places[receiver] - self.places[sender]) == 1:
            return [(start, leave), (right - 0.24, arrive)]
        x, along = right - TRACK - APART * (track % 3), leave + down * _GAP * 0.4
        return [(start, leave), (start + 0.06, along), (x, along), (x, arrive)]

    def _top(self, row: int) -> float:
        return TOP + row * (len(self.places) * (self.height + _GAP) + LINE)
