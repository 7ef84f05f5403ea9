"""The trees of a broadcast, drawn as trees: who sends to whom, and in which step first."""

from collections.abc import Sequence

from collectives.algorithms import lockstep, table
from collectives.pictures.colours import DARK, colour_of, edge, ink
from collectives.pictures.page import MARGIN, TOP, Canvas, default_style

_ACROSS, _DOWN, _RADIUS = 0.47, 0.72, 0.17
_LEGEND = "The number at an arrow is the step in which it is first used."
_EVEN_AND_ODD = " Dark arrows: odd steps. Light arrows: even steps."


class Trees:
    """The trees along which an algorithm broadcasts from rank 0 to the other ones of `n`.

    They are read from its schedule: nothing is sent. Each of the `number` trees carries one piece
    of the tensor. Printed as the number of trees and of links, and drawn side by side.
    """

    def __init__(self, algorithm: str, n: int, number: int = 1):
        chosen = table.find("broadcast", algorithm, n)
        steps = lockstep.messages(lambda rank: chosen.steps(rank, n, number, n), n, number)
        # For each tree: by rank, from which other one the piece comes, and in which step.
        self.parents: list[dict[int, tuple[int, int]]] = [{} for _ in range(number)]
        for step, messages in enumerate(steps, 1):
            for message in messages:
                for piece in message.received:
                    self.parents[piece][message.to] = message.source, step

    def leaves(self) -> list[list[int]]:
        """For each tree, the ranks that send nothing in it."""
        inner = [{source for source, _ in parents.values()} for parents in self.parents]
        pairs = zip(self.parents, inner, strict=True)
        return [sorted(parents.keys() - used) for parents, used in pairs]

    def __str__(self) -> str:
        trees, links = len(self.parents), sum(map(len, self.parents))
        return f"{trees} tree{'s' * (trees > 1)}, {links} links"

    shows = "Who sends to whom: the trees of a broadcast"

    @default_style
    def draw(self, title: str, ranks: Sequence["Trees"]) -> Canvas:
        """Every rank returned the same."""
        places = [_places(parents) for parents in self.parents]
        widths = [_ACROSS * len(found) for found in places]
        depth = max(level for found in places for _, level in found.values())
        left, top = MARGIN, TOP + 0.4
        canvas = Canvas(title, max(2 * MARGIN + sum(widths) + 0.4 * (len(widths) - 1), 4.6))
        has_several, told = len(self.parents) > 1, []
        for tree, (parents, found) in enumerate(zip(self.parents, places, strict=True)):
            at = {
                rank: (left + _ACROSS * (column + 0.5), top + _DOWN * level)
                for rank, (column, level) in found.items()
            }
            if has_several:
                canvas.write(left, top - 0.36, f"tree {tree + 1}")
            for rank, (source, step) in parents.items():
                colour = DARK if step % 2 or not has_several else "#9a9a9a"
                _link(canvas, at[source], at[rank], step, colour, f"tree{tree}/{source}-{rank}")
                told.append(f"Tree {tree + 1}: rank {source} sends to rank {rank} in step {step}.")
            for rank, (x, y) in at.items():
                _node(canvas, x, y, rank)
            left += widths[tree] + 0.4
        legend = _LEGEND + _EVEN_AND_ODD * has_several
        return canvas.end_with(legend, top + depth * _DOWN + 0.3, f"{title}. {' '.join(told)}")


def _places(parents: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """A column of its own for each rank, between those of its children, and its level."""
    order: list[tuple[int, int]] = []

    def visit(rank: int, level: int) -> None:
        children = [child for child, (source, _) in parents.items() if source == rank]
        half = len(children) // 2
        for child in children[:half]:
            visit(child, level + 1)
        order.append((rank, level))
        for child in children[half:]:
            visit(child, level + 1)

    visit(0, 0)
    return {rank: (column, level) for column, (rank, level) in enumerate(order)}


def _link(canvas: Canvas, start, end, step: int, colour: str, gid: str) -> None:
    (x, y), (to_x, to_y) = start, end
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along_x, along_y = (to_x - x) * _RADIUS / length, (to_y - y) * _RADIUS / length
    points = [(x + along_x, y + along_y), (to_x - along_x, to_y - along_y)]
    canvas.arrow(points, gid, color=colour, linewidth=1.4, mutation_scale=8)
    side = 0.1 if to_x > x else -0.1
    middle = x + 0.62 * (to_x - x) + side, y + 0.62 * (to_y - y) - 0.08
    canvas.write(*middle, str(step), ha="center")


def _node(canvas: Canvas, x: float, y: float, rank: int) -> None:
    from matplotlib.patches import Circle

    colour = colour_of(rank)
    look = {"facecolor": colour, "edgecolor": edge(colour), "linewidth": 1}
    canvas.axes.add_patch(Circle((x, y), _RADIUS, zorder=3, **look))
    canvas.write(x, y, str(rank), 10, ink(colour), ha="center", weight="bold", zorder=4)
