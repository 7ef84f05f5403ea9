"""What a rank holds in memory: a bar for each way to train, cut into parts of one kind.

>>> print(MemoryBars({"DDP": {"weights": 4000, "gradients": 4000}}))
DDP: 8,000
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import DARK, PALETTE
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, breadth, default_style

_BAR, _PITCH = 0.36, 0.62
_MANY = 1e10  # bytes, from which on they are given in GB
_KINDS = (PALETTE[4], PALETTE[1], PALETTE[3], PALETTE[0], PALETTE[6])


@dataclass(frozen=True)
class MemoryBars:
    """The bytes of a rank: for each name of a bar, those of each kind. It prints the totals.

    A line stands at `limit`, the bytes that a rank has. `names`: what the name of a bar says.
    """

    bars: dict[str, dict[str, int]]
    whose: str = "rank 0"
    limit: int = 0
    names: str = ""

    def __str__(self) -> str:
        totals = {name: sum(parts.values()) for name, parts in self.bars.items()}
        if self._most > _MANY:
            return ", ".join(f"{name}: {size / 1e9:,.0f} GB" for name, size in totals.items())
        return ", ".join(f"{name}: {size:,}" for name, size in totals.items())

    @property
    def _most(self) -> int:
        return max(self.limit, *(sum(parts.values()) for parts in self.bars.values()))

    def _text(self, size: int) -> str:
        return f"{size / 1e9:,.0f} GB" if self._most > _MANY else f"{size / 1e3:,.0f} kB"

    @property
    def shows(self) -> str:
        return f"What {self.whose} holds in memory"

    @default_style
    def draw(self, title: str, ranks: Sequence["MemoryBars"]) -> Canvas:
        """The bars of rank 0, all on one scale. A part has the gid <bar>/<kind>.

        What has no room for its number has it below the bar.
        """
        canvas, sentences = Canvas(title), []
        kinds = dict.fromkeys(kind for parts in self.bars.values() for kind in parts)
        colours = dict(zip(kinds, _KINDS, strict=False))
        canvas.key(colours)
        left = MARGIN + max(breadth(name, 12.5) for name in self.bars) + 0.1
        scale = (WIDEST - left - MARGIN - breadth("10,000 GB in all") - 0.1) / self._most
        limit, top = left + scale * self.limit, TOP + (2.6 if self.limit else 1.6) * LINE
        for number, (name, parts) in enumerate(self.bars.items()):
            x, y, below = left, top + _PITCH * number, []
            canvas.write(MARGIN, y + _BAR / 2, name, 10, weight="bold")
            for kind, size in parts.items():
                width, text = scale * size, self._text(size)
                if breadth(text) + 0.1 >= width:
                    below += [f"{kind} {text}"] * (not text.startswith("0 "))
                    text = ""
                canvas.cell((x, y, width, _BAR), text, colours[kind], f"{name}/{kind}")
                x += width
            total = f"{self._text(sum(parts.values()))} in all"
            if x < limit < x + 0.2 + breadth(total):  # behind the line
                x = limit
            canvas.write(x + 0.1, y + _BAR / 2, total)
            canvas.write(left, y + _BAR + 0.11, ", ".join(below))
            held = ", ".join(f"{kind} {size:,} bytes" for kind, size in parts.items())
            sentences.append(f"{name}: {held}.")
        bottom = top + _PITCH * len(self.bars) - 0.15
        legend = "All bars are on one scale, in bytes."
        if self.limit:
            for number in range(len(self.bars)):  # not through the words between them
                mark = limit, top + _PITCH * number - 0.05, 0.02, _BAR + 0.1
                canvas.box(mark, DARK, f"limit/{number}")
            text = self._text(self.limit)
            canvas.write(limit, top - 0.16, text, ha="center", weight="bold")
            legend += f" The line stands at {text}, all that there is."
        legend += f" {self.names}" * bool(self.names)
        return canvas.end_with(legend, bottom, f"{title}. {' '.join(sentences)}")
