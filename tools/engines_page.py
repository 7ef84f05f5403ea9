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


def one_update(events: list[dict]) -> list[dict]:
    """What was under way between the pause and the last answer, by its beginning."""
    first = next(n for n, one in enumerate(events) if "pause" in one.get("route", ""))
    after = ("/destroy_weights_update_group", "/shutdown_weight_transfer_engine")
    found = [one for one in events[first:] if one.get("route") not in after]
    return sorted(found, key=lambda one: one["began"])


def svg() -> str:
    """Two lanes for each protocol. Time runs down: a row for each beginning and each end."""
    from matplotlib.figure import Figure

    from collectives.pictures import page, picture
    from collectives.pictures.colours import GREY, LIGHT, PAGE, PALETTE

    lanes = {"http": (0, 0.65, PALETTE[4]), "broadcast": (0.68, 1, PALETTE[2])}  # edges, colour
    updates = {protocol: one_update(found) for protocol, found in measured()["calls"].items()}
    rows, broad = 2 * max(map(len, updates.values())), 0.025

    @page.default_style
    def draw() -> Figure:
        figure = Figure(figsize=(page.WIDEST, 5.6), facecolor=PAGE, layout="constrained")
        figure.suptitle("One update: a bar is a request until its answer, or a broadcast")
        told = []
        for axes, protocol in zip(figure.subplots(1, 2), updates, strict=True):
            events = updates[protocol]
            times = sorted(one[key] for one in events for key in ("began", "ended"))
            axes.set(xlim=(0, 1), ylim=(rows, -2.6))
            axes.axis("off")
            axes.text(0, -2, NAMES[protocol], weight="bold")
            for name, (left, right, _) in lanes.items():
                axes.barh(-0.5, right - left, rows, left=left, align="edge", color=LIGHT)
                title = "HTTP" if name == "http" else name
                axes.text(left, -0.8, title, fontsize=page.SMALL, color=GREY)
            for one in events:
                left, _, colour = lanes[one["lane"]]
                top, end = times.index(one["began"]), times.index(one["ended"])
                # A request that began while others of its lane were open stands beside them.
                beside = [x for x in events if x["began"] < one["began"] < x["ended"]]
                left += 0.02 + 2 * broad * sum(x["lane"] == one["lane"] for x in beside)
                axes.bar(left, end - top, broad, top, align="edge", color=colour)
                text = one.get("route") or f"{one['bytes']:,} bytes"
                if (status := one.get("status", 200)) != 200:
                    text += f": {status}"
                place = (left + 2 * broad, (top + min(end, top + 1)) / 2)
                axes.text(*place, text, fontsize=page.SMALL, va="center")
                told.append(text)
        figure.set_label(f"In this order: {', '.join(told)}.")
        return figure

    return picture.svg(draw()).decode()
