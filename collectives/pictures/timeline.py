"""A run as a picture of its order: a lane for each rank, a bar for each call, an arrow for each message.

    draw(calls, title="send_recv")

Across the page runs order, not time: a bar begins as many steps from the left as calls had to be made one after the other before
it (see happens_before.py), so the picture of a program is the same in every run. Of two calls the one further right is the later
one only where bars, arrows and dotted lines lead from the one to the other.
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
_LEGEND = "Order, not time: a call is later than another only where bars, arrows or dotted lines lead to it."
_FROM_ANY = " Dashed: in any order, all before the last of the receives is over."


def draw(calls: Sequence[Call], *, title: str = "") -> Figure:
    """The figure, for `picture.svg` and `picture.save`; where there is nothing to draw, or too much, it says so in words.

    Bars have the gid r<rank>/c<number>, arrows that of both their ends, as in r0/c1-r1/c0, and the dots where the members of a
    collective meet <name>/<group>/<seq>.
    """
    with matplotlib.style.context("default"):
        figure = _drawn(sorted(calls, key=lambda call: (call.rank, call.number)), title)
    figure.set_label(
        f"{title or 'What the ranks called, by order'}. {describe(calls)}"
    )  # the alternative text
    return figure


def describe(calls: Sequence[Call]) -> str:
    """The same in sentences, for those who cannot see it."""
    sentences = []
    for rank in sorted({call.rank for call in calls}):
        mine = sorted((call for call in calls if call.rank == rank), key=lambda call: call.number)
        sentences.append(
            f"Rank {rank}: {', then '.join(' '.join(happens_before.words(call)) for call in mine)}."
        )
    return " ".join(sentences) or _refusal([], 0)


def _drawn(calls: list[Call], title: str) -> Figure:
    messages = happens_before.in_every_run(calls, happens_before.messages(calls))
    flow = happens_before.data_flow(calls)
    at = happens_before.steps(calls, messages + flow)
    ranks = sorted({rank for call in calls for rank in (call.rank, *call.members)})
    length = max((end for _, end in at.values()), default=0)
    if refusal := _refusal(ranks, length):
        return _page(title, refusal, 7, 0)[0]
    figure, axes = _page(
        title,
        _LEGEND + _FROM_ANY * any(order.after.peer is None for order in messages),
        length,
        len(ranks),
    )
    lanes = {rank: _LANE * (index + 0.5) for index, rank in enumerate(ranks)}
    for rank, y in lanes.items():
        axes.plot([0, length * STEP], [y, y], color=DARK, linewidth=0.4, alpha=0.4, zorder=0)
        axes.text(-0.08, y, f"rank {rank}", ha="right", va="center", fontsize=9, color=DARK)
    for call in calls:
        _bar(axes, call, at, lanes)
    for order in messages + [order for order in flow if order.before.name not in ALL_TO_ALL]:
        _arrow(axes, order, at, lanes)
    _fences(
        axes,
        [order.before for order in flow if order.before.name in ALL_TO_ALL],
        at,
        lanes,
    )
    return figure


def _refusal(ranks: list[int], length: int) -> str:
    """Why there is no picture, in a sentence; empty if there is one."""
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
    axes.text(
        0,
        -_TOP / 2,
        title,
        ha="left",
        va="center",
        fontsize=10,
        fontweight="bold",
        color=DARK,
        gid="title",
    )
    below = textwrap.fill(below, int((width - _LEFT) / 0.062))
    axes.text(
        0,
        height - _TOP - _BOTTOM / 2,
        below,
        ha="left",
        va="center",
        fontsize=7.5,
        color=DARK,
        gid="below",
    )
    return figure, axes


def _bar(axes: Axes, call: Call, at: dict, lanes: dict[int, float]) -> None:
    begin, end = (STEP * step for step in at[call.rank, call.number])
    y, gid = lanes[call.rank], f"r{call.rank}/c{call.number}"
    colour = PALETTE[call.rank % len(PALETTE)]
    went_wrong = call.error is not None or call.left is None
    look = {"facecolor": tint(colour), "edgecolor": "#b00000" if went_wrong else colour}
    look |= {"linewidth": 1.6 if went_wrong else 1.2, "linestyle": "--" if went_wrong else "-"}
    axes.add_patch(
        Rectangle((begin + 0.03, y - _BAR / 2), end - begin - 0.06, _BAR, gid=gid, **look)
    )
    name, *rest = happens_before.words(call)
    words = "\n".join(
        [*(line.replace(" ", "") for line in textwrap.wrap(name.replace("_", "_ "), 14)), *rest]
    )
    # In a long bar the words stand where the call begins: what follows is its wait for others.
    axes.text(
        begin + STEP / 2,
        y,
        words,
        ha="center",
        va="center",
        fontsize=6.5,
        linespacing=1.1,
        zorder=4,
        color=DARK,
    )


def _fences(axes: Axes, calls: list[Call], at: dict, lanes: dict[int, float]) -> None:
    """For each collective among all, a dotted line that no member passes before the last one has come to it."""
    together, beside = defaultdict(dict), Counter()
    for call in calls:
        together[call.group, call.seq, call.name][call.rank] = at[call.rank, call.number][0]
    for (group, seq, name), entered in together.items():
        step = max(entered.values())
        x = STEP * step + 0.055 + 0.06 * beside[step]
        beside[step] += 1
        places = sorted(lanes[rank] for rank in entered)
        axes.plot(
            [x, x], [places[0], places[-1]], color=DARK, linewidth=1.2, linestyle=":", zorder=0.5
        )
        axes.plot(
            [x] * len(places),
            places,
            color=DARK,
            linestyle="",
            marker="o",
            markersize=3,
            gid=f"{name}/{group}/{seq}",
            zorder=3,
        )


def _arrow(axes: Axes, order: Order, at: dict, lanes: dict[int, float]) -> None:
    before, after = order.before, order.after
    down = 1 if lanes[after.rank] > lanes[before.rank] else -1
    start = at[before.rank, before.number][0] * STEP + 0.12, lanes[before.rank] + down * _BAR / 2
    end = at[after.rank, after.number][1] * STEP - 0.12, lanes[after.rank] - down * _BAR / 2
    gid = f"r{before.rank}/c{before.number}-r{after.rank}/c{after.number}"
    look = {
        "color": DARK,
        "linewidth": 1.2,
        "linestyle": "--" if after.peer is None else "-",
        "arrowstyle": "-|>",
        "mutation_scale": 9,
    }
    arrow = FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, gid=gid, zorder=3, **look)
    arrow.set_path_effects([withStroke(linewidth=3, foreground=LIGHT)])
    axes.add_patch(arrow)
