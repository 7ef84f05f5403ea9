"""Times: what the Chrome trace and the terminal show of them."""

import io
import json

from hand_made import program
from rich.console import Console

from collectives.pictures import trace, wall_clock

MESSAGE = program("isend:1 barrier wait:0", "barrier recv:0")


def in_trace(calls, tmp_path, *names) -> list[dict]:
    trace.write(tmp_path / "trace.json", [(name, calls) for name in names or ["step"]])
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def on_screen(calls, columns=100) -> list[str]:
    console = Console(file=io.StringIO(), width=columns)
    console.print(wall_clock.timeline(calls, columns))
    return console.file.getvalue().splitlines()


def test_every_call_is_a_bar_in_its_ranks_process_inside_the_steps_bar(tmp_path):
    events = in_trace(MESSAGE, tmp_path)
    bars = [event for event in events if event.get("cat") == "call"]
    assert [(bar["pid"], bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [
        (call.rank, call.name, call.entered / 1000, 0.5) for call in MESSAGE
    ]
    steps = {event["pid"]: event for event in events if event.get("cat") == "step"}
    for bar in bars:
        step = steps[bar["pid"]]
        assert step["ts"] <= bar["ts"]
        assert bar["ts"] + bar["dur"] <= step["ts"] + step["dur"]


def test_a_message_is_an_arrow_that_begins_and_ends_inside_the_bars_of_its_calls(tmp_path):
    events = in_trace(MESSAGE, tmp_path)
    start, end = (next(event for event in events if event["ph"] == phase) for phase in "sf")
    assert (start["pid"], end["pid"], end["bp"]) == (0, 1, "e")
    assert start["id"] == end["id"]
    for arrow, name in ((start, "isend"), (end, "recv")):
        bar = next(event for event in events if event["name"] == name)
        assert bar["ts"] <= arrow["ts"] < bar["ts"] + bar["dur"]


def test_arrows_of_two_steps_do_not_share_a_name(tmp_path):
    starts = [
        event["id"]
        for event in in_trace(MESSAGE, tmp_path, "first", "second")
        if event["ph"] == "s"
    ]
    assert len(set(starts)) == len(starts) == 2


def test_a_call_that_was_never_left_has_no_end(tmp_path):
    events = in_trace(program("barrier..."), tmp_path)
    assert [event["ph"] for event in events if event["name"] == "barrier"] == ["B"]


def test_what_is_known_of_a_call_stands_in_its_bar(tmp_path):
    (bar,) = [
        event for event in in_trace(program("send:1#7!"), tmp_path) if event.get("cat") == "call"
    ]
    assert bar["args"] | {"peer": 1, "tag": 7, "error": "RuntimeError: it timed out"} == bar["args"]


def test_lanes_are_as_long_as_the_calls_took():
    calls = program("barrier", "barrier barrier barrier")  # 0 to 0.5 us, 1 to 1.5, 2 to 2.5
    lanes = [line for line in on_screen(calls, 58) if line.startswith("rank")]
    assert lanes[0].rstrip() == "rank 0  [barrier==]"
    assert lanes[1].rstrip() == "rank 1  [barrier==]         [barrier==]         [barrier=]"


def test_times_count_from_the_first_call_and_messages_are_named():
    lines = on_screen(program("barrier isend:1 wait:1", "barrier barrier recv:0"))
    (received,) = [line for line in lines if "recv" in line and not line.startswith("rank")]
    assert received.split() == [
        "0.002",
        "0.001",
        "1",
        "recv",
        "from",
        "0",
        "from",
        "rank",
        "0,",
        "sent",
        "at",
        "0.001",
        ":0",
    ]


def test_no_calls_and_too_many_calls_are_said():
    assert on_screen([]) == ["No calls were recorded: nothing was asked of torch.distributed."]
    assert on_screen(program("barrier " * 130))[-1].startswith("... and 30 more")
    assert "never returned" in on_screen(program("barrier..."))[-1]
