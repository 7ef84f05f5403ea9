"""The table of faults and the picture of the calls in docs/engines.md, from
benchmarks/engine_faults.py.
"""

import json
from pathlib import Path

from tools import markdown

MEASURED = Path(__file__).parents[1] / "docs" / "engine_faults.json"
HEADER = ["the engine", "what one sees", "seconds", "what the trainer does"]
NAMES = {"sglang": "SGLang", "vllm": "vLLM"}


def measured() -> dict:
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def table() -> str:
    """A row for each fault, with the words that the trainer had for it on SGLang."""
    rows = []
    for fault, row in measured()["sglang"].items():
        said = dict.fromkeys((shorter(one["what"]), one["next"]) for one in row["said"])
        other = measured()["vllm"][fault]
        times = f"{row['seconds']:.1f}, "
        times += f"{other['seconds']:.1f}" if "seconds" in other else f"none: {other['lacks']}"
        seen = "; then: ".join(dict.fromkeys(what for what, _ in said))
        does = "; then: ".join(dict.fromkeys(what_next for _, what_next in said))
        rows.append([f"`{fault}` {row['does']}", seen, times, does])
    return markdown.table(HEADER, rows)


def shorter(text: str) -> str:
    """Without the JSON around an engine's message."""
    before, _, after = text.partition('{"success": false, "message": "')
    return before + after.removesuffix('"}')


def svg() -> str:
    """Two lanes for each protocol: requests, and what went by broadcast meanwhile."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from collectives.pictures import page, picture
    from collectives.pictures.colours import PAGE, PALETTE

    @page.default_style
    def draw() -> Figure:
        figure = Figure(figsize=(page.WIDEST, 8), facecolor=PAGE, layout="constrained")
        figure.suptitle("One update: the requests, and the broadcasts between them")
        told = []
        for axes, (protocol, events) in zip(
            figure.subplots(2), measured()["calls"].items(), strict=True
        ):
            first = next(n for n, one in enumerate(events) if "pause" in one.get("route", ""))
            after = ("/destroy_weights_update_group", "/shutdown_weight_transfer_engine")
            events = [one for one in events[first:] if one.get("route") not in after]
            events.sort(key=lambda one: one["began"])
            zero = events[0]["began"]
            axes.set_title(NAMES[protocol], loc="left", fontsize=10)
            axes.set(facecolor=PAGE, ylim=(len(events) - 0.4, -0.6))
            axes.set_yticks([])
            axes.spines[["top", "right", "left"]].set_visible(False)
            longest = max(one["ended"] - zero for one in events) * 1000
            axes.set_xlim(0, 1.75 * longest)
            for y, one in enumerate(events):
                begin, end = ((one[key] - zero) * 1000 for key in ("began", "ended"))
                text = one.get("route") or f"{one['lane']} of {one['bytes']:,} bytes"
                colour = PALETTE[1 if one["lane"] == "http" else 2]
                axes.barh(y, max(end - begin, 0.1), 0.7, left=begin, color=colour)
                axes.text(end + longest / 80, y, text, fontsize=page.SMALL, va="center")
                told.append(text)
            axes.set_xlabel("milliseconds")
            lanes = {"HTTP": PALETTE[1], "broadcast": PALETTE[2]}
            axes.legend([Patch(color=one) for one in lanes.values()], lanes, frameon=False)
        figure.set_label(f"In this order: {', '.join(told)}.")
        return figure

    return picture.svg(draw()).decode()
