"""A run as a picture of its order: a rank is a lane, a call a bar, a message an arrow.

    draw(calls, title="send_recv")

The horizontal axis is order, not time. A bar begins as many steps from the left as calls had to be
made one after the other before it (see happens_before.py), so a program gives the same picture in
every run. A call further right is later than another only if bars, arrows and dotted lines lead
from that one to it. What a rank has started and not waited for yet is a thin bar below its lane, if
the rank does something else meanwhile. Calls that only make or end groups are ticks, unless one of
them went wrong. A collective that its group makes again and again is one bar.

Lines keep clear of the words: ticks stand before the bars, and dotted lines at the left of a bar.
An arrow has the colour of its sender. To the next lane it is straight. To another one it leaves its
bar at the right, goes between the lanes, or outside of all from the first and the last one, and
between the columns, and arrives from the right.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from collectives.pictures import happens_before
from collectives.pictures.colours import DARK, LIGHT, PAGE, WRONG, colour_of, edge, tint
from collectives.pictures.happens_before import Order
from collectives.pictures.page import (
    LINE,
    MARGIN,
    SMALL,
    WIDEST,
    Canvas,
    breadth,
    default_style,
    split_name,
)
from collectives.recording.call import SPAN, Call
from collectives.semantics.calls import ALL_TO_ALL, FROM_ROOT, GROUPS

MOST_RANKS = 8
MOST_STEPS = 40
_LETTERS = 14  # of a line in a bar
_MARKERS = "osD^"  # for the groups that meet at the same step
_STEP = 1.27
_LEFT, _TOP = MARGIN + 0.8, MARGIN + 0.3
_PER_ROW = int((WIDEST - _LEFT - MARGIN) / _STEP)
_PAD, _END, _MIDDLE = 0.14, 0.13, 0.64  # of a bar: before it, after it; the middle of its words
_DOTS, _APART = 0.2, 0.05  # dotted lines: their places in the column
_TRACKS = (0, 0.06, -0.06, 0.11)  # where arrows go up or down between two columns
_GAP = 0.27  # between two lanes: arrows pass there

Steps = dict[tuple[int, int], tuple[int, int]]
# The steps at which the ranks enter a collective, by the collective's group, index and name.
Meetings = dict[tuple[str, int | None, str], dict[int, int]]

# The rank that sends, and the steps with which its bar begins and ends.
Sender = tuple[int, int, int]


@dataclass(frozen=True)
class Lanes:
    """Where everything goes: a lane for each rank, a column for each step, rows of both.

    `places`: the lane of each rank, from 0. `height`: of a bar.
    """

    places: dict[int, int]
    length: int
    height: float

    @property
    def rows(self) -> int:
        return -(-max(1, self.length) // _PER_ROW)

    @property
    def per_row(self) -> int:
        return -(-max(1, self.length) // self.rows)

    @property
    def bottom(self) -> float:
        return self._top(self.rows)

    @property
    def right(self) -> float:
        return _LEFT + self.per_row * _STEP

    def row(self, step: int) -> int:
        """The row in which this step begins."""
        return min(step // self.per_row, self.rows - 1)

    def x(self, step: int, row: int) -> float:
        """Where a step begins; the edge of the row if it lies in another one."""
        return _LEFT + _STEP * min(max(step - row * self.per_row, 0), self.per_row)

    def y(self, rank: int, row: int) -> float:
        """The middle of a rank's lane."""
        return self._top(row) + (self.height + _GAP) * (self.places[rank] + 0.5)

    def parts(self, begin: int, end: int) -> list[tuple[int, float, float]]:
        """(row, left, right) of each row in which a bar lies."""
        return [
            (row, self.x(begin, row) + _PAD, self.x(end, row) - _END)
            for row in range(self.row(begin), self.row(end - 1) + 1)
        ]

    def route(
        self, sender: Sender, receiver: int, end: int, track: int
    ) -> list[tuple[float, float]]:
        """The points of an arrow to the bar of the receiver that ends with this step."""
        row, (rank, begin, until) = self.row(end - 1), sender
        down = 1 if self.places[receiver] > self.places[rank] else -1
        y, to = self.y(rank, row), self.y(receiver, row)
        x = self.x(end, row)
        start = self.x(begin, row) + (_PAD + 0.12) * (self.row(begin) == row)
        rim = y + down * self.height / 2
        if abs(self.places[receiver] - self.places[rank]) == 1:
            return [(start, rim), (x - 0.3, to - down * self.height / 2)]
        beside = _TRACKS[track % len(_TRACKS)]
        arrives = [(x + beside, to), (x - _END, to)]
        if until == end:
            return [(x - _END, y), (x + beside, y), *arrives]
        along = rim + down * 0.09
        if self.places[rank] in (0, len(self.places) - 1):
            # Outside there is room. Between the lanes it would lie beside straight arrows.
            along = y - down * (self.height / 2 + 0.09)
        if until > end or self.row(until - 1) < row:  # it leaves in the middle of its bar
            begins = [(start, y + (along - y) * 0.6), (start, along)]
        else:
            leaves = self.x(until, row) + beside
            begins = [(self.x(until, row) - _END, y), (leaves, y), (leaves, along)]
        return [*begins, (x + beside, along), *arrives]

    def _top(self, row: int) -> float:
        return _TOP + row * (len(self.places) * (self.height + _GAP) + LINE)


def describe(calls: Sequence[Call]) -> str:
    """The same in sentences, for readers who cannot see it."""
    sentences = []
    calls, times = _once(sorted(calls, key=lambda call: call.key))
    for rank in sorted({call.rank for call in calls}):
        mine = sorted((call for call in calls if call.rank == rank), key=lambda call: call.number)
        texts = (" ".join([*happens_before.words(call), *_how_often(call, times)]) for call in mine)
        sentences.append(f"Rank {rank}: {', then '.join(texts)}.")
    return " ".join(sentences) or _refusal([], 0)


@default_style
def draw(calls: Sequence[Call], *, title: str = "") -> Canvas:
    """A lane for each rank, or, if there is nothing to draw, or too much, words that say so.

    The gid of a bar is r<rank>/c<number>, and that of an arrow names both ends: r0/c1-r1/c0. A bar
    that goes on in another row has /row1 after it there. The thin bar of a transfer has the gid
    r<rank>/c<number>/transfer. The dots where the members of a collective meet have the gid
    <name>/<group>/<seq>.
    """
    words = describe(calls)
    calls, times = _once(sorted(calls, key=lambda call: call.key))
    messages = happens_before.in_every_run(calls, happens_before.messages(calls))
    title = title or _title(calls, messages)
    description = f"{title}. {words}"
    flow = happens_before.data_flow(calls)
    ticks, has_spans = _ticks(calls), any(call.name == SPAN for call in calls)
    steps = happens_before.steps(calls, messages + flow, {call.key for call in ticks})
    ranks = sorted({rank for call in calls for rank in (call.rank, *call.members)})
    length = max((end for _, end in steps.values()), default=0)
    if refusal := _refusal(ranks, length):
        return _page(title, [refusal], 5, _TOP, description)
    # subtle: which of them gets which message differs from run to run, so they are one bar.
    any_source = {
        call.key: row
        for row in happens_before.rows_from_any(calls)
        if all(call.name != "wait" for call in row)
        for call in row
    }
    bars = [call for call in calls if call not in ticks]
    often = times | {row[0].key: len(row) for row in any_source.values() if len(row) > 1}
    most = max(len(_bar_lines(call)) + (call.key in often) for call in bars)
    lanes = Lanes({rank: at for at, rank in enumerate(ranks)}, length, 0.14 * max(most, 2) + 0.12)
    together = [order.before for order in flow if order.before.name in ALL_TO_ALL]
    met = _met(together, steps)
    with_root = [order for order in flow if order.before.name not in ALL_TO_ALL]
    transfers = _transfers(calls)
    legend = _legend(messages, together, met, ticks)
    legend += ["Thin bar: a transfer, from its start to its wait."] * bool(transfers)
    legend += ["Arrows of a call with a root: whose data a rank gets."] * bool(with_root)
    legend += ["White: the rank's own work."] * has_spans
    places = Counter(max(entered.values()) for entered in met.values())
    legend += ["Dots of one shape: one call."] * any(count > 1 for count in places.values())
    canvas = _page(title, legend, lanes.right, lanes.bottom, description)
    for row in range(lanes.rows):
        for rank in ranks:
            y = lanes.y(rank, row)
            canvas.axes.plot([_LEFT, lanes.right], [y, y], color="#aaaaaa", linewidth=0.6, zorder=0)
            canvas.chip(MARGIN, y, rank)
    for call in bars:
        receives = any_source.get(call.key, [call])
        if call is receives[0]:
            at = steps[call.key][0], steps[receives[-1].key][1]
            _bar(canvas, call, at, lanes, _how_often(call, often))
    _draw_ticks(canvas, ticks, steps, lanes)
    _draw_transfers(canvas, transfers, steps, lanes)
    _arrows(canvas, messages + with_root, steps, lanes, transfers)
    _meetings(canvas, met, lanes)
    return canvas


def _title(calls: list[Call], messages: list[Order]) -> str:
    found = "What each rank calls, in order" + ", and who sends to whom" * bool(messages)
    if any(call.error is not None for call in calls):
        return f"{found}, until a call fails"
    return found + ", and which calls never return" * any(call.left is None for call in calls)


def _once(calls: list[Call]) -> tuple[list[Call], dict[tuple[int, int], int]]:
    """Without repetitions of a collective that would fill more than a row, and their numbers.

    All members of its group must make it as often in a row.
    """
    together: dict[tuple, list[list[Call]]] = defaultdict(list)
    for _, row in groupby(calls, _repeats):
        first, *rest = row
        together[first.group, first.seq, first.name, len(rest)].append([first, *rest])
    left_out: set[tuple[int, int]] = set()
    times: dict[tuple[int, int], int] = {}
    for (*_, again), rows in together.items():
        if again >= _PER_ROW and len(rows) == len(rows[0][0].members):
            times |= {row[0].key: len(row) for row in rows}
            left_out |= {call.key for row in rows for call in row[1:]}
    return [call for call in calls if call.key not in left_out], times


def _how_often(call: Call, times: Mapping[tuple[int, int], int]) -> list[str]:
    return [f"{times[call.key]} times"] if call.key in times else []


def _repeats(call: Call) -> tuple:
    """Equal for what one rank calls again; only collectives that returned are."""
    is_done = call.left is not None and call.error is None and not call.is_async
    if is_done and call.seq is not None and call.name != "wait":
        return call.rank, call.name, call.op, call.peer, call.group
    return call.key


def _ticks(calls: list[Call]) -> list[Call]:
    """The calls that are drawn as ticks; none if there are no others."""
    found = [
        call
        for call in calls
        if call.name in GROUPS and call.left is not None and call.error is None
    ]
    return found if len(found) < len(calls) else []


def _transfers(calls: list[Call]) -> dict[tuple[int, int], Call]:
    """What runs while its rank does something else: by the key of its start, the wait for it."""
    starts = {call.key: call for call in calls if call.is_async}
    found: dict[tuple[int, int], Call] = {}
    for wait in calls:
        start = starts.get((wait.rank, wait.of or 0)) if wait.name == "wait" else None
        if start and start.key not in found:
            meanwhile = [
                call
                for call in calls
                if call.rank == wait.rank and start.number < call.number < wait.number
            ]
            if any(not call.is_async and call.name != "wait" for call in meanwhile):
                found[start.key] = wait
    return found


def _draw_transfers(
    canvas: Canvas, transfers: dict[tuple[int, int], Call], steps: Steps, lanes: Lanes
) -> None:
    ends: dict[int, list[int]] = defaultdict(list)  # by rank and track, the last step that is taken
    for (rank, number), wait in sorted(transfers.items()):
        begin, end = steps[rank, number][0], steps[wait.key][1]
        track = next((at for at, last in enumerate(ends[rank]) if last <= begin), len(ends[rank]))
        ends[rank][track : track + 1] = [end]
        for row, left, right in lanes.parts(begin, end):
            y = lanes.y(rank, row) + lanes.height / 2 + 0.04 + 0.08 * track
            gid = f"r{rank}/c{number}/transfer" + (f"/row{row}" if row > lanes.row(begin) else "")
            canvas.box((left, y, right - left, 0.05), edge(colour_of(rank)), gid)


def _refusal(ranks: list[int], length: int) -> str:
    """Why there is no picture, as a sentence; empty if there is one."""
    instead = "`collectives run NAME --trace FILE.json` shows it all in Perfetto."
    if not length:
        return "No calls were recorded: nothing was asked of torch.distributed."
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks)} ranks are too many for a picture ({MOST_RANKS} at most): {instead}"
    if length > MOST_STEPS:
        return f"{length} steps are too many for a picture ({MOST_STEPS} at most): {instead}"
    return ""


def _legend(
    messages: list[Order], together: list[Call], met: Meetings, ticks: list[Call]
) -> list[str]:
    found = ["Left to right shows order, not duration."]
    if any(call.is_async for call in together):
        found.append("Dotted: no rank has the result before the last one has called.")
    elif met:
        found.append("Dotted: no rank returns before the last one has called.")
    if any(order.after.peer is None for order in messages):
        found.append("Dashed: in any order.")
    if ticks:
        names = ", ".join(sorted({call.name for call in ticks}))
        found.append(f"Grey ticks: {names}.")
    return found


def _page(title: str, legend: list[str], right: float, bottom: float, words: str) -> Canvas:
    right = max(right, _LEFT + 2 * _STEP, MARGIN + breadth(title, 11))
    canvas = Canvas(title, right + MARGIN)
    return canvas.end_with(" ".join(legend), bottom - 0.6 * LINE, words)


def _bar(
    canvas: Canvas, call: Call, at: tuple[int, int], lanes: Lanes, more: Sequence[str] = ()
) -> None:
    gid = f"r{call.rank}/c{call.number}"
    colour = colour_of(call.rank)
    look = {"edgecolor": edge(colour), "linewidth": 1.3}
    ground = LIGHT if call.name == SPAN else tint(colour)
    if call.error is not None or call.left is None:
        look = {"edgecolor": WRONG, "linewidth": 1.6, "linestyle": "--"}
    first = lanes.row(at[0])
    for row, left, right in lanes.parts(*at):
        y = lanes.y(call.rank, row) - lanes.height / 2
        name = gid if row == first else f"{gid}/row{row}"
        canvas.box((left, y, right - left, lanes.height), ground, name, **look)
    # In a long bar the text stands at the beginning. The rest of the bar is its wait for others.
    x, y = lanes.x(at[0], first) + _MIDDLE, lanes.y(call.rank, first)
    style: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.05, "zorder": 4}
    canvas.write(x, y, "\n".join([*_bar_lines(call), *more]), SMALL, gid=f"{gid}/words", **style)


def _bar_lines(call: Call) -> list[str]:
    return [line for part in happens_before.words(call) for line in split_name(part, _LETTERS)]


def _draw_ticks(canvas: Canvas, ticks: list[Call], steps: Steps, lanes: Lanes) -> None:
    drawn: Counter[tuple[int, int]] = Counter()
    for call in ticks:
        step, _ = steps[call.key]
        row = lanes.row(step)
        x = lanes.x(step, row) + 0.025 * min(drawn[call.rank, step], 3)
        drawn[call.rank, step] += 1
        y = lanes.y(call.rank, row)
        ys = [y - lanes.height / 2, y + lanes.height / 2]
        gid = f"r{call.rank}/c{call.number}"
        canvas.axes.plot([x, x], ys, color="#8a8a8a", linewidth=1.2, gid=gid, zorder=0.6)


def _met(calls: list[Call], steps: Steps) -> Meetings:
    """The collectives in which all wait for all, without those to which only one rank came.

    No rank leaves one before the last has entered. A call that only starts it is where it is.
    """
    members: Meetings = defaultdict(dict)
    waits = set()
    for call in calls:
        key = call.group, call.seq, call.name
        members[key][call.rank] = steps[call.key][0]
        if not call.is_async:
            waits.add(key)
    return {
        key: dict.fromkeys(entered, max(entered.values())) if key in waits else entered
        for key, entered in members.items()
        if len(entered) > 1
    }


def _meetings(canvas: Canvas, met: Meetings, lanes: Lanes) -> None:
    """For each collective in which all wait for all, a dotted line from member to member."""
    lines_at: Counter[int] = Counter()
    for (group, seq, name), entered in met.items():
        step = max(entered.values())
        row, track = lanes.row(step), lines_at[step]
        lines_at[step] += 1
        points = sorted(
            (lanes.y(rank, row), lanes.x(at, row) + _DOTS + _APART * track)
            for rank, at in entered.items()
        )
        ys, xs = zip(*points, strict=True)
        line: dict[str, Any] = {"linewidth": 1.3, "linestyle": ":", "zorder": 0.5}
        dots: dict[str, Any] = {
            "linestyle": "",
            "marker": _MARKERS[track % 4],
            "markersize": 4,
            "zorder": 3,
        }
        canvas.axes.plot(xs, ys, color=DARK, **line)
        canvas.axes.plot(xs, ys, color=DARK, gid=f"{name}/{group}/{seq}", **dots)


def _arrows(
    canvas: Canvas,
    orders: list[Order],
    steps: Steps,
    lanes: Lanes,
    transfers: dict[tuple[int, int], Call],
) -> None:
    """Arrows that leave one broadcast share their way up or down.

    That of a transfer leaves when the other rank calls `recv`: until then the data may wait.
    """
    from matplotlib.patheffects import withStroke

    tracks: dict[int, dict] = defaultdict(dict)

    def length(order: Order) -> int:
        return abs(lanes.places[order.before.rank] - lanes.places[order.after.rank])

    for order in sorted(orders, key=length, reverse=True):  # the heads of short ones lie on top
        before, after = order.before.key, order.after.key
        end = steps[after][1]
        begin, until = steps[before]
        if before in transfers and order.after.name == "recv":
            begin = max(begin, min(steps[after][0], steps[transfers[before].key][1] - 1))
            until = max(until, begin + 1)
        track = 0
        if length(order) > 1:
            trunk = before if order.before.name in FROM_ROOT else (before, after)
            track = tracks[end].setdefault(trunk, len(tracks[end]))
        points = lanes.route((before[0], begin, until), after[0], end, track)
        gid = f"r{before[0]}/c{before[1]}-r{after[0]}/c{after[1]}"
        colour = edge(colour_of(before[0]))
        look = {"color": colour, "linewidth": 1.5, "joinstyle": "round", "zorder": 3}
        look["linestyle"] = "--" if order.after.peer is None else "-"
        arrow = canvas.arrow(points, gid, mutation_scale=10, **look)
        arrow.set_path_effects([withStroke(linewidth=3, foreground=PAGE)])
