"""Runs in the Chrome trace format, which https://ui.perfetto.dev opens: bars with their times, and arrows for the messages.

torch's own profiler writes this format too, and it is not used: on the CPU (torch 2.13, gloo) it gives a file for each rank, in
which `gloo:send` and `gloo:recv` name their tensors, but nothing says which send a receive belongs to (a receive from any source
does not say whence its message came); group and caller are missing, and so are `wait`, `new_group` and all of a rank that fails.

The clocks need no alignment: all ranks of a machine read the same monotonic clock. Ranks of several machines do not, so between
machines nothing can be read from these times.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from collectives.pictures import happens_before
from collectives.recording.call import Call


def write(path: Path, steps: Iterable[tuple[str, list[Call]]]) -> None:
    """Write the runs, given with their names, into one file."""
    text = json.dumps(
        {
            "displayTimeUnit": "ns",
            "traceEvents": [event for name, calls in steps for event in events(name, calls)],
        }
    )
    path.write_text(text + "\n", encoding="utf-8")


def events(name: str, calls: list[Call]) -> list[dict]:
    """One process a rank; in it a bar for the run, and in that one for each call. Times: microseconds on the monotonic clock."""
    found: list[dict] = []
    for rank in sorted({call.rank for call in calls}):
        mine = [call for call in calls if call.rank == rank]
        begin, end = (
            min(call.entered for call in mine),
            max(call.left or call.entered for call in mine),
        )
        found.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "tid": rank,
                "args": {"name": f"rank {rank}"},
            }
        )
        found.append(
            {
                "ph": "M",
                "name": "process_sort_index",
                "pid": rank,
                "tid": rank,
                "args": {"sort_index": rank},
            }
        )
        found.append(
            {
                "ph": "X",
                "name": name,
                "cat": "step",
                "pid": rank,
                "tid": rank,
                "ts": begin / 1000,
                "dur": (end - begin) / 1000,
            }
        )
        found.extend(_bar(call) for call in sorted(mine, key=lambda call: call.number))
    for order in happens_before.messages(calls):
        sent, arrived = order.before, order.after
        flow = {"cat": "message", "name": "message", "id": f"{name} r{sent.rank}/c{sent.number}"}
        found.append(
            {"ph": "s", "pid": sent.rank, "tid": sent.rank, "ts": sent.entered / 1000, **flow}
        )
        # subtle: an arrow ends in the bar that encloses its time, and the very end is no longer inside.
        inside = max(arrived.entered, arrived.left - 1)
        found.append(
            {
                "ph": "f",
                "bp": "e",
                "pid": arrived.rank,
                "tid": arrived.rank,
                "ts": inside / 1000,
                **flow,
            }
        )
    return found


def _bar(call: Call) -> dict:
    told = (
        "number",
        "group",
        "members",
        "seq",
        "awaited",
        "peer",
        "source",
        "tag",
        "op",
        "tensors",
        "splits",
        "ranks",
        "error",
    )
    facts = {word: value for word in told if (value := getattr(call, word)) not in (None, ())}
    bar = {
        "name": call.name,
        "cat": "call",
        "pid": call.rank,
        "tid": call.rank,
        "ts": call.entered / 1000,
    }
    bar |= {"args": {**facts, "caller": f"{call.file}:{call.line} in {call.function}"}}
    # Without an end it was never left, and is shown so.
    return bar | (
        {"ph": "B"} if call.left is None else {"ph": "X", "dur": (call.left - call.entered) / 1000}
    )
