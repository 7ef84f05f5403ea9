"""Who waits for a rank that calls late: a grid with a row for each rank that is late once."""

from collections.abc import Sequence

from collectives.pictures.colours import GREY, LIGHT, colour_of, tint
from collectives.pictures.page import CHIP, LINE, MARGIN, TOP, Canvas, Look, default_style

_LEFT, _TOP, _CELL, _ROW = MARGIN + 1.1, TOP + 2 * LINE, 0.9, 0.4
_LEGEND = (
    "In each row one rank is late. Before it calls, every other rank has returned, or waits. "
    "Colour: the rank that it waits for."
)


class ReturnedBefore(list[int]):
    """The ranks that had returned before this rank, which was late, made the same call."""

    @default_style
    def draw(self, title: str, ranks: Sequence["ReturnedBefore"]) -> Canvas:
        """A cell has the gid <late rank>-<rank>."""
        canvas, told = Canvas(title, max(_LEFT + _CELL * len(ranks) + MARGIN, 4.0)), []
        for late, returned in enumerate(ranks):
            y = _TOP + _ROW * late
            canvas.chip(_LEFT + _CELL * late + (_CELL - CHIP) / 2, _TOP - 0.9 * LINE, late)
            canvas.write(MARGIN, y + _ROW / 2, f"rank {late} is late", weight="bold")
            told.append(f"When rank {late} is late:")
            for rank in range(len(ranks)):
                text, colour, waits = "waits", tint(colour_of(late)), True
                if rank == late or rank in returned:
                    text, colour, waits = "late" if rank == late else "returned", LIGHT, False
                box = _LEFT + _CELL * rank, y, _CELL, _ROW
                look: Look = {"edgecolor": GREY, "size": 10, "bold": waits}
                canvas.cell(box, text, colour, f"{late}-{rank}", **look)
                told.append(f"rank {rank} {text}.")
        return canvas.end_with(_LEGEND, _TOP + _ROW * len(ranks), f"{title}. {' '.join(told)}")
