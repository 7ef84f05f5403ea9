"""A hang as a picture: the ranks on a circle, and an arrow from each rank to those it waits for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collectives.diagnosis.rules.matching import Matching, waits_for
from collectives.diagnosis.rules.suspects import find_cycle
from collectives.pictures import happens_before
from collectives.pictures.colours import WRONG
from collectives.pictures.page import CHIP, LINE, MARGIN, Canvas, breadth, default_style
from collectives.recording.call import SPAN, Call
from collectives.semantics.calls import GROUPS
from collectives.words import ranks as named

_NODE = 0.36  # the room that a rank takes on the circle
_ARROW = {"mutation_scale": 14, "linewidth": 1.8, "joinstyle": "round", "color": WRONG}
Point = tuple[float, float]


@dataclass(frozen=True)
class Wait:
    """A rank that is still inside a call, and the ranks that must act before it can return."""

    call: Call
    ranks: tuple[int, ...]

    def words(self) -> list[str]:
        """What stands beside its arrow: the call, and where the program makes it."""
        name, *rest = (word for word in happens_before.words(self.call) if word != "never returned")
        found = [" ".join([name, *rest[:1]]), *rest[1:]]
        return [*found, f"line {self.call.line}"] if self.call.line else found


def waits(calls: Sequence[Call]) -> list[Wait]:
    """Every rank that waits for others, by rank."""
    calls = sorted((call for call in calls if call.name != SPAN), key=lambda call: call.key)
    matching, found = Matching(calls), []
    for call in calls:
        if call.left is None and (ranks := waits_for(matching, call) or _elsewhere(calls, call)):
            found.append(Wait(call, tuple(ranks)))
    return found


def _elsewhere(calls: Sequence[Call], call: Call) -> list[int]:
    """The ranks that are in another call of the group, at the place of this one."""
    return sorted(
        other.rank
        for other in calls
        if call.seq is not None
        and call.name not in GROUPS
        and other.left is None
        and (other.group, other.seq) == (call.group, call.seq)
        and (other.name, other.peer) != (call.name, call.peer)
    )


def describe(calls: Sequence[Call]) -> str:
    """The same in sentences, for readers who cannot see it."""
    found = waits(calls)
    sentences = [
        f"Rank {one.call.rank} waits for {_names(one.ranks)} in {', '.join(one.words())}."
        for one in found
    ]
    return " ".join([*sentences, _moral(found)])


def _names(ranks: Sequence[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def _title(waiting: list[Wait]) -> str:
    if _cycle(waiting):
        return "Who waits for whom: ranks that wait for each other"
    last = {rank for wait in waiting for rank in wait.ranks} - {wait.call.rank for wait in waiting}
    return f"Who waits for whom: in the end all for {named(last)}"


def _cycle(waiting: list[Wait]) -> Sequence[int]:
    edges = {wait.call.rank: list(wait.ranks) for wait in waiting}
    every = edges | {rank: [] for wait in waiting for rank in wait.ranks if rank not in edges}
    return find_cycle(every)


def _moral(waiting: list[Wait]) -> str:
    if cycle := _cycle(waiting):
        circle = " -> ".join(str(rank) for rank in (*cycle, cycle[0]))
        return f"The arrows close a circle, {circle}: no rank can continue."
    return "An arrow leads from a rank that waits to the rank that it waits for."


@default_style
def draw(calls: Sequence[Call], *, title: str = "") -> Canvas:
    """An arrow has the gid waits/r0-r1."""
    waiting = waits(calls)
    ranks = sorted({rank for call in calls for rank in (call.rank, *call.members)})
    radius = 0.85 if len(ranks) <= 4 else 1.6
    side = max([0.6, *(breadth(line) for wait in waiting for line in wait.words())])
    title = title or _title(waiting)
    width = max(4.6, 2 * (radius + side + 0.3 + MARGIN), 2 * MARGIN + breadth(title, 11))
    middle = MARGIN + 0.35 + 3 * LINE + radius
    canvas = Canvas(title, width)
    circle = _Circle((width / 2, middle), radius, ranks)
    asks = {wait.call.rank: wait.ranks for wait in waiting}
    for wait in waiting:
        rank, on_arrow = wait.call.rank, len(wait.ranks) == 1
        for other in wait.ranks:
            # Of two ranks that wait for each other, one takes the short way across.
            crossing = len(ranks) > 2 and rank > other and rank in asks.get(other, ())
            along = circle.step(rank, other) != 0 and not crossing
            points = circle.along(rank, other) if along else circle.across(rank, other)
            canvas.arrow(points, f"waits/r{rank}-r{other}", **_ARROW)
            on_arrow = on_arrow and along
        turn = circle.middle(rank, wait.ranks[0]) if on_arrow else circle.turn(rank)
        outside = 0.12 if on_arrow else 0.3 + 0.12 * abs(math.cos(turn))
        _words(canvas, circle.on(turn, outside), turn, wait)
    for rank in ranks:
        x, y = circle.on(circle.turn(rank))
        canvas.chip(x - CHIP / 2, y, rank)
    bottom = middle + radius + 3.7 * LINE
    below = canvas.paragraph(_moral(waiting), bottom - LINE)
    return canvas.end(below + LINE + MARGIN / 2, f"{title}. {describe(calls)}")


def _words(canvas: Canvas, at: Point, turn: float, wait: Wait) -> None:
    """The lines of a call outside of the circle: at its side, above or below it."""
    (x, y), lines = at, wait.words()
    across, down = math.cos(turn), math.sin(turn)
    side = "left" if across > 0 else "right"
    ha = "center" if abs(across) < 0.3 else side
    middle = LINE * (len(lines) - 1) / 2
    top = y - middle + (down * (middle + 0.05) if ha == "center" else 0)
    x += 0 if ha == "center" else math.copysign(0.12, across)
    for number, line in enumerate(lines):
        canvas.write(x, top + number * LINE, line, ha=ha, gid=f"words/r{wait.call.rank}/{number}")


class _Circle:
    """Ranks on a circle, clockwise: two side by side, else the first on top."""

    def __init__(self, centre: Point, radius: float, ranks: list[int]):
        self.centre, self.radius, self.ranks = centre, radius, ranks
        self.apart = 2 * math.pi / len(ranks)

    def turn(self, rank: int) -> float:
        first = math.pi if len(self.ranks) == 2 else -math.pi / 2
        return first + self.apart * self.ranks.index(rank)

    def on(self, turn: float, outside: float = 0.0) -> Point:
        """A point of the circle, or so far outside of it."""
        x, y = self.centre
        radius = self.radius + outside
        return x + radius * math.cos(turn), y + radius * math.sin(turn)

    def step(self, rank: int, other: int) -> int:
        """1 if the other rank is the next one clockwise, -1 if it is the one before, else 0."""
        count = len(self.ranks)
        ahead = (self.ranks.index(other) - self.ranks.index(rank)) % count
        if ahead == 1:
            return 1
        return -1 if ahead == count - 1 else 0

    def middle(self, rank: int, other: int) -> float:
        return self.turn(rank) + self.step(rank, other) * self.apart / 2

    def along(self, rank: int, other: int) -> list[Point]:
        """The way along the circle to a rank beside this one."""
        way, room = self.step(rank, other), _NODE / self.radius
        begin = self.turn(rank) + way * room
        length = self.apart - 2 * room
        return [self.on(begin + way * length * part / 24) for part in range(25)]

    def across(self, rank: int, other: int) -> list[Point]:
        (x0, y0), (x1, y1) = self.on(self.turn(rank)), self.on(self.turn(other))
        share = _NODE / math.dist((x0, y0), (x1, y1))
        return [(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part) for part in (share, 0.5, 1 - share)]
