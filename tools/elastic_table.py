"""How soon training continues after an accident, from what benchmarks/elastic.py measured."""

import json
from pathlib import Path

from tools import markdown

MEASURED = Path(__file__).parents[1] / "docs" / "elastic_times.json"
HEADER = ["accident", "ranks before", "after", "parameters", "seconds", "with torchrun's own times"]


def measured() -> dict[str, list[dict]]:
    """The rows by which times torchrun had: those of the lesson, and its own."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def table() -> str:
    rows = []
    for quick, slow in zip(*measured().values(), strict=True):
        times = [f"{row['seconds']:.0f}" if "seconds" in row else "-" for row in (quick, slow)]
        names = [quick["accident"].replace("_", " "), *map(str, list(quick.values())[1:3])]
        rows.append([*names, "equal", *times])
    return markdown.table(HEADER, rows)


def svg() -> str:
    """When how many ranks trained, in seconds from the accident."""
    from matplotlib.figure import Figure

    from collectives.pictures import page, picture
    from collectives.pictures.colours import PAGE, PALETTE, WRONG

    @page.default_style
    def draw() -> Figure:
        figure = Figure(figsize=(page.WIDEST, 5.2), facecolor=PAGE, layout="constrained")
        figure.suptitle("How soon training continues after an accident")
        panels = figure.subplots(2, sharex=True)
        for axes, (heading, rows) in zip(panels, measured().items(), strict=True):
            axes.set_title(heading, loc="left", fontsize=10)
            axes.set(facecolor=PAGE, xlim=(-5, 63), ylim=(len(rows) - 0.5, -0.6))
            axes.set_yticks(range(len(rows)), [row["accident"].replace("_", " ") for row in rows])
            axes.axvline(0, color=WRONG, linewidth=1)
            axes.spines[["top", "right"]].set_visible(False)
            for y, row in enumerate(rows):
                again = row.get("seconds", 0)
                for count, begin, end in (
                    (row["ranks before"], -5, max(0, row.get("last step", 0))),
                    (row["after"], again, 63),
                ):
                    for rank in range(count):
                        axes.barh(y - 0.32 * rank, end - begin, 0.28, left=begin, color=PALETTE[1])
                at, text = (-0.6, f"{again:.0f} s") if again else (0.6, "nobody notices")
                look = {"va": "center", "ha": "right" if again else "left"}
                axes.text(again + at, y, text, fontsize=page.SMALL, **look)
        axes.set_xlabel("seconds from the accident; a bar for each rank that trains")
        figure.set_label("When how many ranks train. The table above has the same numbers.")
        return figure

    return picture.svg(draw()).decode()
