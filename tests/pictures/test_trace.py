"""Times: what the Chrome trace shows of them."""

import json

from hand_made import program

from collectives.pictures import trace

MESSAGE = program("isend:1 barrier wait:0", "barrier recv:0")


def in_trace(calls, tmp_path, *names) -> list[dict]:
    trace.write(tmp_path / "trace.json", [(name, calls) for name in names or ["step"]])
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


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


def test_a_call_that_was_never_left_has_no_end(tmp_path):
    events = in_trace(program("barrier..."), tmp_path)
    assert [event["ph"] for event in events if event["name"] == "barrier"] == ["B"]


def test_what_is_known_of_a_call_stands_in_its_bar(tmp_path):
    (bar,) = [
        event for event in in_trace(program("send:1#7!"), tmp_path) if event.get("cat") == "call"
    ]
    assert bar["args"] | {"peer": 1, "tag": 7, "error": "RuntimeError: it timed out"} == bar["args"]
