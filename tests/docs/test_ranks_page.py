"""The page on which one predicts what every rank holds: its states are those of real runs."""

import json
import os
import re
import shutil
from html import unescape

import pytest
import torch
import torch.distributed as dist
from browser import browse, needs_browser
from hand_made import works_on_gloo
from processes import free_port
from repository import ROOT

from collectives import launch
from collectives.algorithms import table
from collectives.backends import claims
from collectives.semantics import values
from tools import ranks_broken, ranks_page
from tools.ranks_program import CALLS, SPLITS, Change, State, program
from tools.ranks_steps import ways

PAGE = ROOT / "docs/ranks.html"
SCRIPTS = ("strings.js", "data.js", "broken.js", "state.js", "computed.js", "predict.js", "page.js")


def data(name="data.js"):
    """What the script assigns."""
    text = (ROOT / "docs/ranks" / name).read_text("utf-8")
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
    files = [PAGE, *(ROOT / "docs/ranks" / name for name in SCRIPTS)]
    texts = [file.read_text("utf-8") for file in files]
    assert sum(map(len, texts)) < 2**21
    assert not re.findall(r"https?://|@import|fetch\(|import\(", "".join(texts))
    assert re.findall(r'<script src="ranks/(.*?)"', texts[0]) == list(SCRIPTS)


def test_a_sample_of_states_is_recorded_again():
    found, sample = data()["states"], [one for one in SAMPLE if works_on_gloo(one.call)]
    assert {state.key: one for state, one in ranks_page.record(4, sample)} == {
        state.key: found[state.key] for state in sample
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


@pytest.mark.skipif(
    claims.holds("<=2.11", torch.__version__), reason="there gloo has no all_to_all of lists"
)
def test_the_programs_run_as_they_are():
    texts = [program(state) for state in SAMPLE if state.op != "AVG"]
    ports = [free_port() for _ in texts]
    launch(_run_whole, 4, args=(texts, ports), backend="gloo", device="cpu", diagnose=False)


# In these, no rank loses another one before it returns, so every run ends alike.
BROKEN_SAMPLE = [
    (State("all_reduce", 4, 4, "SUM"), Change(2, "op", "MAX")),
    (State("broadcast", 4, 4, root=0), Change(3, "length", 5)),
    (State("send", 4, 4, root=0), Change(2, "missing")),
]


def test_a_sample_of_broken_runs_ends_as_recorded():
    found = data("broken.js")["broken"]
    assert found.keys() == {ranks_broken.key(*case) for case in ranks_broken.cases()}
    sample = [found[ranks_broken.key(*case)] for case in BROKEN_SAMPLE]
    assert list(ranks_broken.record(BROKEN_SAMPLE)) == sample


def test_every_broken_run_was_diagnosed_and_blames_the_rank_that_did_otherwise():
    for key, one in data("broken.js")["broken"].items():
        name, _, change = key.partition(" ")
        rank, what, _ = change.split("/")
        is_outside = name.startswith("send/") and rank in "23" and (rank, what) != ("3", "root")
        assert bool(one["says"]) != is_outside, key
        assert not one["says"] or re.search(rf"ranks? [\d,]*{rank}", one["says"]), key
        assert ".py:" not in one["says"].replace("try_it.py:", ""), key


def shown(page, folder, fragment="", script="", *options):
    """The document after the page's scripts and one more, which may write into the title."""
    copy = folder / "ranks.html"
    if not copy.exists():
        shutil.copytree(ROOT / "docs/ranks", folder / "ranks")
    text = page.read_text("utf-8")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    document, console = browse(copy, folder, fragment, *options)
    assert console == ""
    return document


def title(document):
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", document, re.DOTALL)[1]))


# A first visit, predicted wrong and right; every kind of address; the keys.
PLAY = """
const seen = {}, inputs = () => [...document.querySelectorAll("#after input")];
const write = values => inputs().forEach((one, i) => { one.value = values[i] ?? ""; });
const told = () => $("said").textContent;
const press = (key, target = document.body) => { target.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); return location.hash; };
seen.first = [state.mode, inputs().length, $("score").textContent];
write([1111, 1111, 1111, 10]); $("judge").click();
seen.wrong = [told(), document.querySelectorAll("#after .wrong").length, $("score").textContent];
$("judge").click();
const middle = one => { const at = one.getBoundingClientRect(); return {clientX: at.x + at.width / 2, clientY: at.y + at.height / 2, bubbles: true, cancelable: true}; };
const drag = (chip, cell) => {
  chip.dispatchEvent(new PointerEvent("pointerdown", middle(chip)));
  for (const kind of ["pointermove", "pointerup"]) dispatchEvent(new PointerEvent(kind, middle(cell)));
};
const chips = () => [...document.querySelectorAll("#before [data-value]")];
go({call: "all_gather_single", n: 4, length: 4});
drag(chips()[4], inputs()[11]); drag(chips()[0], chips()[0]); inputs()[0].click();
seen.pieces = inputs().slice(0, 16).map(one => one.value);
go({call: "all_reduce", length: 1});
for (const chip of chips()) drag(chip, inputs()[0]);
seen.dropped = [inputs()[0].value, inputs()[0].parentElement.dataset.ranks];
sameEverywhere(); press("Enter", inputs()[0]);
seen.right = [told(), document.querySelectorAll("#after .wrong").length, $("score").textContent];
$("next").click();
seen.next = location.hash;
seen.kinds = [["reduce", [1111, 1110, 1100, 1000]], ["gather", [1, 11, 31, 21]], ["all_to_all", [1, 11, 21, 31]], ["scatter", []]].map(([call, values]) => {
  go({call, mode: "predict", n: 4, length: 1, root: 0}); write(values); judge(); return told();
});
go({call: "all_reduce", mode: "look", n: 4, length: 4, op: "SUM", way: "ring"});
seen.keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "c", "C", "b", "p", "p"].map(key => press(key));
seen.programs = STATES.map(([call, n, length, op, root, splits, rank, bad]) => {
  go({call, n, length, op, root, splits, rank, mode: bad ? "break" : "look", bad}); return $("text").textContent;
});
seen.computed = [[{call: "all_reduce", n: 5, length: 3, op: "SUM", mode: "look"}], [{n: 8, length: 4, op: "PRODUCT", mode: "look"}], [{...BREAKABLE, mode: "break", rank: 1, bad: "length/2"}], [{n: 5, mode: "break"}]]
  .map(([wishes]) => { go({call: "all_reduce", ...wishes}); return [document.querySelectorAll("#before .cell").length, $("task").textContent.includes("computed"), state.mode, state.bad]; });
go({call: "all_reduce", n: 4, length: 4, op: "SUM", mode: "look"}); $("play").click();
seen.plays = [$("play").textContent]; go({n: 5}); seen.plays.push($("play").textContent);
for (const call of CHOICES.call()) {
  go({call, n: 4, length: 1, op: "SUM", root: 3, mode: "predict"});
  inputs().forEach(one => { const rank = Number(one.dataset.rank); one.value = isUndefined(rank) ? "" : flat(outcome().after[rank])[one.dataset.place]; });
  judge();
}
seen.all = [told(), $("score").textContent];
const again = Object.fromEntries(new URLSearchParams("call=reduce&n=8&length=5&op=MAX&root=7&mode=look&way=chain&at=3"));
go({}); choose({...again}); show();
seen.round = location.hash;
location.hash = "#call=x&n=99&length=-1&op=y&root=z&mode=q&at=7&bad=1"; read();
seen.bad = location.hash;
location.hash = "#call=all_reduce&n=4&length=4&op=SUM&mode=break&rank=2&bad=op/MAX"; read();
seen.broken = [[...document.querySelectorAll("#after .cell")].map(cell => Number(cell.textContent)), told()];
document.title = JSON.stringify(seen);
"""

# What is computed where something is recorded, too; how many choices of each call have an answer; and
# what is computed of every reduction that is offered.
COMPUTED = """
const seen = {wrong: [], answered: {}, reduced: {}};
const shown = value => JSON.stringify(value, (_, one) => typeof one === "bigint" ? String(one) : one);
for (const [key, one] of Object.entries(RANKS.states)) {
  const [call, n, length, op, root, splits] = key.split("/");
  const mine = computed({call, n: Number(n), length: Number(length), op, root: Number(root), splits});
  if (call === "reduce" && !one.error)  // what the others hold then is left to the backend
    for (const what of ["after", "from"]) one[what] = one[what].map((held, rank) => rank === Number(root) ? held : null);
  if (["before", "after", "from", "error"].some(what => shown(one[what]) !== shown(mine[what]))) seen.wrong.push(key);
}
for (const call of CHOICES.call()) for (const n of CHOICES.n()) {
  Object.assign(state, {call, n, root: 0});
  const of = hole => has(hole) ? CHOICES[hole]() : [state[hole]];
  for (const length of CHOICES.length()) for (const op of of("op")) for (const root of of("root")) for (const splits of of("splits")) {
    Object.assign(state, {length, op, root, splits});
    const held = outcome();
    if (!held.error && held.after.length !== n) continue;
    seen.answered[call] = (seen.answered[call] || 0) + 1;
    if (has("op") && root === 0 && !held.error) seen.reduced[keyOf(state)] = shown([held.before, computed(state).after]);
  }
}
document.title = JSON.stringify(seen);
"""


@needs_browser
def test_every_choice_is_answered_as_recorded_or_by_the_closed_form(tmp_path):
    seen = title(shown(PAGE, tmp_path, "", COMPUTED))
    assert seen["wrong"] == []
    pairs = sum(range(2, 9)) * 5  # of a number of ranks and a root, by the lengths
    by_length = 7 * 5
    assert seen["answered"] == {
        "all_reduce": by_length * 8,
        "broadcast": pairs,
        "reduce": pairs * 8,
        "gather": pairs,
        "all_gather": by_length,
        "all_gather_single": by_length,
        "scatter": pairs,
        "reduce_scatter": by_length * 8,
        "reduce_scatter_single": by_length * 8,
        "all_to_all": by_length,
        "all_to_all_single": by_length * 4,
        "send": pairs,
    }
    reducing = {"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single"}
    assert {key.partition("/")[0] for key in seen["reduced"]} == reducing
    for key, text in seen["reduced"].items():
        state, (before, after) = State(*key.split("/")), json.loads(text)
        whole = values.reduce(state.op, [torch.tensor(ranks_page.flat(one)) for one in before])
        for rank, held in enumerate(after):
            first = rank * int(state.length) if "scatter" in state.call else 0
            if held is not None:
                expected = whole[first : first + int(state.length)]
                assert [int(one) for one in held] == expected.tolist(), key


PROGRAMS = [
    *((state, None) for state in SAMPLE),
    *BROKEN_SAMPLE,
    (State("reduce", 4, 4, "SUM", 0), Change(1, "root", 3)),
    (State("send", 4, 4, root=0), Change(1, "missing")),
]


@needs_browser
def test_one_predicts_breaks_and_moves_by_keys_and_addresses(tmp_path):
    states = [
        [*state, change and change.rank, change and f"{change.what}/{change.value}".rstrip("/")]
        for state, change in PROGRAMS
    ]
    seen = title(shown(PAGE, tmp_path, "", PLAY.replace("STATES", json.dumps(states))))
    assert seen["first"] == ["predict", 4, "0 of 12 calls predicted"]
    text, wrong, score = seen["wrong"]
    assert text.startswith("3 of 4 cells are right.Rank 3 holds 1111, and you said 10.")
    assert (wrong, score) == (1, "0 of 12 calls predicted")
    empty = [""] * 4
    assert seen["pieces"] == [*"1234", *empty, *map(str, range(11, 15)), *empty]
    assert seen["dropped"] == ["1111", "0 1 2 3"]
    text, wrong, score = seen["right"]
    assert text.startswith("All 4 cells are right.")
    assert (wrong, score) == (0, "1 of 12 calls predicted")
    assert seen["next"].startswith("#call=broadcast&n=4&length=1&root=0&mode=predict")
    for kind, text in zip(
        ("Only the root holds the result", "in another place", "Rows become columns", "you left"),
        seen["kinds"],
        strict=True,
    ):
        assert kind in text
    look = "#call=all_reduce&n=4&length=4&op=SUM&mode=look&way=ring&at="
    broadcast = "#call=broadcast&n=4&length=4&root=0&mode=look&way=direct&at=0"
    *keys, broken, predict, back = seen["keys"]
    assert keys == [*(f"{look}{at}" for at in (1, 2, 1, 6, 0)), broadcast, keys[-1]]
    assert "mode=break&rank=2&bad=missing" in broken
    assert "mode=predict" in predict
    assert "mode=look" in back
    assert seen["programs"] == [program(*one) for one in PROGRAMS]
    assert seen["computed"] == [
        [15, True, "look", "missing"],
        [32, True, "look", "missing"],
        [16, False, "break", "missing"],
        [20, True, "look", "missing"],
    ]
    assert seen["plays"] == ["Pause", "Play"]
    text, score = seen["all"]
    assert text.endswith("You have predicted all 12 calls.")
    assert score == "12 of 12 calls predicted"
    assert seen["round"] == "#call=reduce&n=8&length=5&op=MAX&root=7&mode=look&way=chain&at=3"
    assert seen["bad"].startswith("#call=reduce&n=8&length=5&op=MAX&root=0&mode=look")
    one = data("broken.js")["broken"]["all_reduce/4/4/SUM// 2/op/MAX"]
    numbers, text = seen["broken"]
    assert numbers == [x for rank in one["ranks"] for x in rank["after"]]
    assert text.startswith("Every rank returned, and none was told of anything. Yet 16 numbers")
    assert text.endswith(one["says"])


# The widest states, at the end of an algorithm, and what rank 1 can break; on a phone.
EVERY = """
const wide = [];
const look = wishes => { go(wishes); if (document.documentElement.scrollWidth > innerWidth) wide.push(location.hash); };
for (const key of Object.keys(RANKS.states)) {
  const [call, n, length, op, root, splits] = key.split("/");
  if (length !== "5" || n !== "8" || !["", "SUM"].includes(op) || splits === "triangle") continue;
  look({call, n, length, op, root: root || 0, splits, mode: "predict"});
  look({mode: "look", at: 99});
}
for (const key of Object.keys(BROKEN.broken)) {
  const [, call, rank, bad] = /^(\\w+).* (\\d)\\/(.*?)\\/?$/.exec(key);
  if (rank !== "1") continue;
  look({...BREAKABLE, call, rank, bad, mode: "break"});
  if (state.mode !== "break" || state.bad !== bad) wide.push("not shown: " + key);
}
document.title = JSON.stringify(wide);
"""


@needs_browser
@pytest.mark.slow
def test_no_state_is_wider_than_its_window_and_broken_runs_are_shown(tmp_path):
    options = "--disable-ipc-flooding-protection", "--window-size=500,900"
    assert title(shown(PAGE, tmp_path, "", EVERY, *options)) == []
