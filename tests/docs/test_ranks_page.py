"""The page on which one predicts what every rank holds: its states are those of real runs."""

import json
import os
import re
import socket

import torch.distributed as dist
from repository import ROOT

from collectives import launch
from collectives.algorithms import table
from tools import ranks_page
from tools.ranks_program import CALLS, SPLITS, State, program
from tools.ranks_steps import ways

PAGE = ROOT / "docs/ranks.html"
SCRIPTS = ("strings.js", "data.js", "state.js", "predict.js", "page.js")


def data():
    """What data.js assigns."""
    text = (ROOT / "docs/ranks/data.js").read_text("utf-8")
    return json.loads(text.partition("= ")[2].rstrip(";\n"))


SAMPLE = [
    State("all_reduce", 4, 5, "PRODUCT"),
    State("all_reduce", 4, 1, "AVG"),
    State("reduce", 4, 4, "SUM", 3),
    State("gather", 4, 5, root=0),
    State("scatter", 4, 1, root=3),
    State("all_gather_single", 4, 4),
    State("reduce_scatter", 4, 5, "MIN"),
    State("reduce_scatter_single", 4, 4, "MAX"),
    State("all_to_all", 4, 5),
    *(State("all_to_all_single", 4, 4, splits=splits) for splits in SPLITS),
    State("send", 4, 4, root=3),
]


def test_the_page_has_every_state_in_two_megabytes_and_loads_nothing_else():
    found = data()
    wanted = {state.key for n in ranks_page.SIZES for state in ranks_page.states(n)}
    assert found["states"].keys() == found["ways"].keys() == wanted
    files = [PAGE, *(ROOT / "docs/ranks" / name for name in ("ranks.css", *SCRIPTS))]
    texts = [file.read_text("utf-8") for file in files]
    assert sum(map(len, texts)) < 2**21
    assert not re.findall(r"https?://|@import|fetch\(|import\(", "".join(texts))
    assert re.findall(r'<script src="ranks/(.*?)"', texts[0]) == list(SCRIPTS)


def test_a_sample_of_states_is_recorded_again():
    found = data()["states"]
    assert {state.key: one for state, one in ranks_page.record(4, SAMPLE)} == {
        state.key: found[state.key] for state in SAMPLE
    }


def test_what_was_recorded_is_what_the_calls_promise():
    """A digit of a sum is a rank, and the tens or hundreds of a number that moves are its rank."""
    found = {State(*key.split("/")): one for key, one in data()["states"].items()}
    for state, one in found.items():
        n, length, root = int(state.n), int(state.length), int(state.root or 0)
        ones, place = (10**n - 1) // 9, range(1, length + 1)
        pieces = [[10 * r + p for p in place] for r in range(n)]
        after, is_sum = one.get("after"), state.op == "SUM"
        if state.call == "all_reduce" and is_sum:
            assert after == [[p * ones for p in place]] * n
        elif state.call == "reduce" and is_sum:
            assert after[root] == [p * ones for p in place]
        elif state.call == "broadcast":
            assert after == [pieces[root]] * n
        elif state.call in ("gather", "all_gather"):
            others = None if state.call == "gather" else pieces
            assert after == [pieces if r == root else others for r in range(n)]
        elif state.call == "scatter":
            assert after == pieces
        elif state.call == "all_to_all":
            assert after == [list(column) for column in zip(*one["before"], strict=True)]
        assert ("error" in one) == (state.op == "AVG")


def test_the_messages_of_every_algorithm_end_in_the_recorded_result():
    found = data()
    for key, known in found["ways"].items():
        state, one = State(*key.split("/")), found["states"][key]
        names = table.ALGORITHMS.get(CALLS[state.call].algorithms, ["message"])
        assert known.keys() <= set(names), key
        assert bool(known) == (state.op != "AVG"), key
        for name, way in known.items():
            memory = [list(row) for row in way["start"]]
            for _, to, _, places, numbers in (message for step in way["steps"] for message in step):
                for place, number in zip(places, numbers, strict=True):
                    memory[to][place] = number
            for rank, after in enumerate(one["after"]):
                if after is None or (state.call == "reduce" and rank != int(state.root)):
                    continue
                wanted = list(zip(*map(ranks_page.flat, (after, one["from"][rank])), strict=True))
                assert [*map(tuple, part(state, memory[rank], rank, len(wanted)))] == wanted, (
                    key,
                    name,
                )


def part(state, memory, rank, count):
    """Of a rank's memory, the result."""
    if "all_to_all" in state.call:
        return memory[len(memory) - count :]
    if "scatter" in state.call:
        return memory[rank * count : (rank + 1) * count]
    return memory


def test_a_sample_of_ways_is_made_again():
    found = data()
    for state in SAMPLE:
        one = found["states"][state.key]
        assert json.loads(json.dumps(ways(state, one["before"]))) == found["ways"][state.key]


def _run_whole(rank, n, device, texts, ports):
    """As torchrun does: the rank's place is in the environment."""
    dist.destroy_process_group()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1"}
    for text, port in zip(texts, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        exec(compile(text, "try_it.py", "exec"), {"print": lambda line, flush: None})


def test_the_programs_run_as_they_are():
    texts = [program(state) for state in SAMPLE if state.op != "AVG"]
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in texts]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    launch(_run_whole, 4, args=(texts, ports), backend="gloo", device="cpu", diagnose=False)
