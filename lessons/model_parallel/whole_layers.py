"""When each layer is whole: it arrives by an all_gather, perhaps while another one is computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collectives.pictures.colours import LIGHT, PALETTE
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_HEIGHT, _PITCH, _LEFT = 0.26, 0.34, MARGIN + 0.8
_COLOURS = {"is gathered": PALETTE[1], "is whole": PALETTE[3], "is computed": PALETTE[5]}
_LEGEND = (
    "The same on every rank. Where a lane is white, the rank has only its shard of the layer. Each "
    "gather and each pass is drawn one slot wide: these are no seconds. Where nothing is computed "
    "in a slot, the ranks wait for a layer."
)


class Stay(NamedTuple):
    """A layer from its gather to the end of the pass that needs it: three slots."""

    layer: int
    gathered: int
    computed: int


@dataclass(frozen=True)
class WholeLayers:
    """By name, how many gathers have been made when each layer begins its pass, in order.

    The layers are passed forward, and then backward.

    >>> print(WholeLayers({"one by one": [1, 2, 3, 4], "ahead": [2, 2, 4, 4]}))
    one by one: 8 slots, ahead: 6 slots
    """

    gathers: Mapping[str, Sequence[int]]

    def stays(self, name: str) -> list[Stay]:
        """A gather begins with the pass before which it was made, at the earliest after another."""
        counts = self.gathers[name]
        layers = [*range(len(counts) // 2), *reversed(range(len(counts) // 2))]
        gathered: list[int] = []
        found: list[Stay] = []
        free = 0  # the slot in which the next pass can begin
        for place, count in enumerate(counts):
            while len(gathered) < count:
                # What a pass needs itself is waited for; what comes after it travels meanwhile.
                begin = max(free, gathered[-1] + 1 if gathered else 0)
                gathered.append(begin)
                if len(gathered) == place + 1:
                    free = begin + 1
            found.append(Stay(layers[place], gathered[place], max(free, gathered[place] + 1)))
            free = found[-1].computed + 1
        return found

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {self.stays(name)[-1].computed + 1} slots" for name in self.gathers
        )

    shows = "When a rank has each layer as a whole"

    @default_style
    def draw(self, title: str, ranks: Sequence["WholeLayers"]) -> Canvas:
        """A box has the gid <name>/<layer>/<slot>."""
        canvas, told = Canvas(title), []
        drawn = {name: self.stays(name) for name in self.gathers}
        waits = any(stay.computed - stay.gathered > 1 for stays in drawn.values() for stay in stays)
        canvas.key(
            {kind: colour for kind, colour in _COLOURS.items() if waits or kind != "is whole"}
        )
        longest = max(stays[-1].computed + 1 for stays in drawn.values())
        step = min(0.62, (WIDEST - _LEFT - MARGIN) / longest)
        y = TOP + 1.6 * LINE
        for name, stays in drawn.items():
            slots = stays[-1].computed + 1
            canvas.write(MARGIN, y + 0.1, f"{name}: {slots} slots", 9.5, weight="bold")
            y += 0.27
            for layer in range(len(stays) // 2):
                canvas.write(MARGIN, y + _PITCH * layer + _HEIGHT / 2, f"layer {layer}")
                canvas.box((_LEFT, y + _PITCH * layer, step * slots, _HEIGHT), LIGHT)
            for number, (layer, gathered, computed) in enumerate(stays):
                what = "forward" if number < len(stays) / 2 else "backward"
                for slot in range(gathered, computed + 1):
                    kind = "is gathered" if slot == gathered else "is whole"
                    kind = "is computed" if slot == computed else kind
                    box = _LEFT + step * slot, y + _PITCH * layer, step, _HEIGHT
                    text = {"is gathered": "gather", "is computed": what}.get(kind, "")
                    canvas.cell(box, text, _COLOURS[kind], f"{name}/{layer}/{slot}")
                told.append(
                    f"{name}: layer {layer} is gathered in slot {gathered} and computed {what} in "
                    f"slot {computed}."
                )
            y += _PITCH * len(stays) / 2 + 0.18
        return canvas.end_with(_LEGEND, y - 0.2, f"{title}. {' '.join(told)}")
