"""A run as a picture of its order: a rank is a lane, a call a bar, a message an arrow.

    draw(calls, title="send_recv")

The horizontal axis is order, not time. A bar begins as many steps from the left as calls had to be
made one after the other before it (see happens_before.py), so a program gives the same picture in
every run. A call further right is later than another only if bars, arrows and dotted lines lead
from that one to it.
"""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from collectives.pictures import happens_before
from collectives.pictures.colours import DARK, LIGHT, PALETTE, tint
from collectives.pictures.happens_before import Order
from collectives.recording.call import Call
from collectives.spec.calls import ALL_TO_ALL

MOST_RANKS = 8
MOST_STEPS = 40

# In inches, which are also the units of the axes.
STEP, _LANE, _BAR = 0.78, 0.62, 0.44
_LEFT, _TOP, _BOTTOM, _RIGHT = 0.62, 0.42, 0.5, 0.12
_LEGEND = (
    "Order, not time: "
    "a call is later than another only where bars, arrows or dotted lines lead to it."
)
_FROM_ANY = " Dashed: in any order, all before the last of the receives is over."


def draw(calls: Sequence[Call], *, title: str = "") -> Figure:
    """The figure, for `picture.svg` and `picture.save`.

    If there is nothing to draw, or too much, the figure says so in words.

    The gid of a bar is r<rank>/c<number>, and that of an arrow names both ends: r0/c1-r1/c0. The
    dots where the members of a collective meet have the gid <name>/<group>/<seq>.
    """
    with matplotlib.style.context("default"):
        figure = _drawn(sorted(calls, key=lambda call: (call.rank, call.number)), title)
    # svg makes this the alternative text.
    figure.set_label(f"{title or 'What the ranks called, by order'}. {describe(calls)}")
    return figure


def describe(calls: Sequence[Call]) -> str:
    """The same in sentences, for readers who cannot see it."""
    sentences = []
    for rank in sorted({call.rank for call in calls}):
        mine = sorted((call for call in calls if call.rank == rank), key=lambda call: call.number)
        texts = (" ".join(happens_before.words(call)) for call in mine)
        sentences.append(f"Rank {rank}: {', then '.join(texts)}.")
    return " ".join(sentences) or _refusal([], 0)


def _drawn(calls: list[Call], title: str) -> Figure:
    messages = happens_before.in_every_run(calls, happens_before.messages(calls))
    flow = happens_before.data_flow(calls)
    steps = happens_before.steps(calls, messages + flow)
    ranks = sorted({rank for call in calls for rank in (call.rank, *call.members)})
    length = max((end for _, end in steps.values()), default=0)
    if refusal := _refusal(ranks, length):
        return _page(title, refusal, 7, 0)[0]
    has_any_source = any(order.after.peer is None for order in messages)
    legend = _LEGEND + _FROM_ANY * has_any_source
    figure, axes = _page(title, legend, length, len(ranks))
    lanes = {rank: _LANE * (index + 0.5) for index, rank in enumerate(ranks)}
    for rank, y in lanes.items():
        axes.plot([0, length * STEP], [y, y], color=DARK, linewidth=0.4, alpha=0.4, zorder=0)
        axes.text(-0.08, y, f"rank {rank}", ha="right", va="center", fontsize=9, color=DARK)
    for call in calls:
        _bar(axes, call, steps, lanes)
    among_all = [order for order in flow if order.before.name in ALL_TO_ALL]
    with_root = [order for order in flow if order.before.name not in ALL_TO_ALL]
    for order in messages + with_root:
        _arrow(axes, order, steps, lanes)
    _meetings(axes, [order.before for order in among_all], steps, lanes)
    return figure


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


def _page(title: str, below: str, length: int, lanes: int) -> tuple[Figure, Axes]:
    width, height = _LEFT + max(5, length) * STEP + _RIGHT, _TOP + lanes * _LANE + _BOTTOM
    figure = Figure(figsize=(width, height), facecolor=LIGHT)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-_LEFT, width - _LEFT), ylim=(height - _TOP, -_TOP))
    axes.axis("off")
    style = {"ha": "left", "va": "center", "color": DARK}
    axes.text(0, -_TOP / 2, title, fontsize=10, fontweight="bold", gid="title", **style)
    below = textwrap.fill(below, int((width - _LEFT) / 0.062))
    axes.text(0, height - _TOP - _BOTTOM / 2, below, fontsize=7.5, gid="below", **style)
    return figure, axes


def _bar(axes: Axes, call: Call, steps: dict, lanes: dict[int, float]) -> None:
    begin, end = (STEP * step for step in steps[call.rank, call.number])
    y, gid = lanes[call.rank], f"r{call.rank}/c{call.number}"
    colour = PALETTE[call.rank % len(PALETTE)]
    went_wrong = call.error is not None or call.left is None
    look = {"facecolor": tint(colour), "edgecolor": "#b00000" if went_wrong else colour}
    look |= {"linewidth": 1.6 if went_wrong else 1.2, "linestyle": "--" if went_wrong else "-"}
    axes.add_patch(
        Rectangle((begin + 0.03, y - _BAR / 2), end - begin - 0.06, _BAR, gid=gid, **look)
    )
    # In a long bar the text stands at the beginning. The rest of the bar is its wait for others.
    style = {"ha": "center", "va": "center", "color": DARK}
    axes.text(
        begin + STEP / 2, y, _bar_text(call), fontsize=6.5, linespacing=1.1, zorder=4, **style
    )


def _bar_text(call: Call) -> str:
    """A long name is wrapped after its underscores."""
    name, *rest = happens_before.words(call)
    lines = textwrap.wrap(name.replace("_", "_ "), 14)
    return "\n".join([*(line.replace(" ", "") for line in lines), *rest])


def _meetings(axes: Axes, calls: list[Call], steps: dict, lanes: dict[int, float]) -> None:
    """For each collective in which all wait for all, a dotted line from member to member.

    It is where the last member enters; no member leaves before it.
    """
    members, lines_at = defaultdict(dict), Counter()
    for call in calls:
        begin, _ = steps[call.rank, call.number]
        members[call.group, call.seq, call.name][call.rank] = begin
    for (group, seq, name), entered in members.items():
        step = max(entered.values())
        x = STEP * step + 0.055 + 0.06 * lines_at[step]
        lines_at[step] += 1
        ys = sorted(lanes[rank] for rank in entered)
        line = {"linewidth": 1.2, "linestyle": ":", "zorder": 0.5}
        dots = {"linestyle": "", "marker": "o", "markersize": 3, "zorder": 3}
        axes.plot([x, x], [ys[0], ys[-1]], color=DARK, **line)
        axes.plot([x] * len(ys), ys, color=DARK, gid=f"{name}/{group}/{seq}", **dots)


def _arrow(axes: Axes, order: Order, steps: dict, lanes: dict[int, float]) -> None:
    before, after = order.before, order.after
    down = 1 if lanes[after.rank] > lanes[before.rank] else -1
    begin, _ = steps[before.rank, before.number]
    _, end = steps[after.rank, after.number]
    tail = begin * STEP + 0.12, lanes[before.rank] + down * _BAR / 2
    head = end * STEP - 0.12, lanes[after.rank] - down * _BAR / 2
    gid = f"r{before.rank}/c{before.number}-r{after.rank}/c{after.number}"
    look = {"color": DARK, "linewidth": 1.2, "arrowstyle": "-|>", "mutation_scale": 9}
    look["linestyle"] = "--" if after.peer is None else "-"
    arrow = FancyArrowPatch(tail, head, shrinkA=0, shrinkB=0, gid=gid, zorder=3, **look)
    arrow.set_path_effects([withStroke(linewidth=3, foreground=LIGHT)])
    axes.add_patch(arrow)
