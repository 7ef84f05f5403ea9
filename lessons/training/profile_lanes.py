"""A step of training by the clock: what each rank computes, and which calls are under way."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import DARK, LIGHT, PALETTE
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_COLOURS = {
    "forward": PALETTE[6],
    "backward": PALETTE[7],
    "optimizer": PALETTE[4],
    "all_reduce": PALETTE[1],
}
_CALL = "all_reduce"
_LEFT, _BAR, _PITCH = MARGIN + 0.8, 0.24, 0.29

Span = tuple[str, float, float]  # what, from and to in milliseconds


@dataclass(frozen=True)
class ProfileLanes:
    """`steps`: by name, for each rank its spans. Their times begin with the step."""

    steps: dict[str, list[list[Span]]]

    def __str__(self) -> str:
        return ", ".join(self.steps)

    shows = "What each rank computes in a step, and which calls are under way"

    @default_style
    def draw(self, title: str, ranks: Sequence["ProfileLanes"]) -> Canvas:
        """A span has the gid <step>/r<rank>/<what>/<number>."""
        canvas, y, told = Canvas(title), TOP + 0.4, []
        canvas.key(_COLOURS)
        for name, ranks_spans in self.steps.items():
            end = max(stop for spans in ranks_spans for _, _, stop in spans)
            scale = (WIDEST - _LEFT - MARGIN - 0.1) / end
            canvas.write(MARGIN, y + LINE / 2, name, weight="bold")
            y += 2 * LINE
            for rank, spans in enumerate(ranks_spans):
                rows = _rows(spans)
                canvas.chip(MARGIN, y + _BAR / 2, rank)
                canvas.box((_LEFT, y, scale * end, len(rows) * _PITCH), LIGHT)
                for place, row in enumerate(rows):
                    for number, (what, begin, stop) in enumerate(row):
                        width = scale * (stop - begin)
                        box = _LEFT + scale * begin, y + place * _PITCH, max(width, 0.01), _BAR
                        gid = f"{name}/r{rank}/{what}/{place}.{number}"
                        text = what if width > 0.075 * len(what) else ""
                        canvas.cell(box, text, _COLOURS[what], gid, linewidth=0.6)
                y += len(rows) * _PITCH + 0.3
                busy = sum(stop - begin for what, begin, stop in spans if what != _CALL)
                told.append(f"{name}, rank {rank}: computes {busy:.0f} of {end:.0f} ms.")
            y -= 0.2
            for at in (0, end / 2, end):
                x, side = _LEFT + scale * at, "right" if at == end else "center"
                canvas.axes.plot([x, x], [y, y + 0.06], color=DARK, linewidth=0.8)
                canvas.write(x, y + 0.16, f"{at:.0f} ms", ha=side)
            y += 2.5 * LINE
        return canvas.end(y, f"{title}. {' '.join(told)}")


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """What it computes, and below it the calls, in as many rows as are under way at a time."""
    rows: list[list[Span]] = [[span for span in spans if span[0] != _CALL]]
    for span in sorted((span for span in spans if span[0] == _CALL), key=lambda span: span[1]):
        free = next((row for row in rows[1:] if row[-1][2] <= span[1]), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows
