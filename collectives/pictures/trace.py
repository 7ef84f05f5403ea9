"""Runs in the Chrome trace format, for https://ui.perfetto.dev: calls are bars, messages arrows.

torch's own profiler writes this format too, but its traces say less. On the CPU (torch 2.13, gloo)
it writes a file for each rank. `gloo:send` and `gloo:recv` name their tensors, but not which send
belongs to which receive, nor the source of a receive from any rank. The group and the caller are
missing; so are `wait`, `new_group`, and everything from a rank that fails.

All ranks of a machine read the same monotonic clock, so their times need no alignment. Times of
different machines cannot be compared.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from collectives.pictures import happens_before
from collectives.pictures.happens_before import Order
from collectives.recording.call import Call

# What a bar shows of a call when it is clicked.
_SHOWN = (
    *("number", "group", "members", "seq", "awaited", "peer", "source", "tag", "op"),
    *("tensors", "splits", "ranks", "error"),
)


def write(path: Path, steps: Iterable[tuple[str, list[Call]]]) -> None:
    """Write the runs, each with its name, into one file."""
    text = json.dumps(
        {
            "displayTimeUnit": "ns",
            "traceEvents": [event for name, calls in steps for event in events(name, calls)],
        }
    )
    path.write_text(text + "\n", encoding="utf-8")


def events(name: str, calls: list[Call]) -> list[dict]:
    """A process for each rank, with a bar for the run and one for each call, and the messages.

    Times are microseconds on the monotonic clock.
    """
    found: list[dict] = []
    for rank in sorted({call.rank for call in calls}):
        found += _rank(name, [call for call in calls if call.rank == rank])
    for order in happens_before.messages(calls):
        found += _message(name, order)
    return found


def _rank(name: str, calls: list[Call]) -> list[dict]:
    """The calls of one rank inside a bar for the run."""
    rank = calls[0].rank
    begin = min(call.entered for call in calls)
    end = max(call.left or call.entered for call in calls)
    run = {"ph": "X", "name": name, "cat": "step", **_on(rank)}
    return [
        {"ph": "M", "name": "process_name", **_on(rank), "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "process_sort_index", **_on(rank), "args": {"sort_index": rank}},
        {**run, "ts": begin / 1000, "dur": (end - begin) / 1000},
        *(_bar(call) for call in sorted(calls, key=lambda call: call.number)),
    ]


def _message(name: str, order: Order) -> list[dict]:
    """An arrow, from the entry of the send to the end of the receive."""
    sent, arrived = order.before, order.after
    flow = {"cat": "message", "name": "message", "id": f"{name} r{sent.rank}/c{sent.number}"}
    # subtle: an arrow ends in the bar that encloses its time, which does not include its very end.
    inside = max(arrived.entered, (arrived.left or 0) - 1)
    return [
        {"ph": "s", **_on(sent.rank), "ts": sent.entered / 1000, **flow},
        {"ph": "f", "bp": "e", **_on(arrived.rank), "ts": inside / 1000, **flow},
    ]


def _bar(call: Call) -> dict:
    values = {name: getattr(call, name) for name in _SHOWN}
    facts = {name: value for name, value in values.items() if value not in (None, ())}
    caller = f"{call.file}:{call.line} in {call.function}"
    bar = {"name": call.name, "cat": "call", **_on(call.rank), "ts": call.entered / 1000}
    bar["args"] = {**facts, "caller": caller}
    if call.left is None:  # a bar without an end
        return {**bar, "ph": "B"}
    return {**bar, "ph": "X", "dur": (call.left - call.entered) / 1000}


def _on(rank: int) -> dict[str, int]:
    return {"pid": rank, "tid": rank}
