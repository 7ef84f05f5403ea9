"""The table of mistakes, made by making them: `python -m collectives.mistakes_table` writes lessons/mistakes/README.md anew."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType

from collectives import lesson_files, mistake
from collectives.diagnosis.hints import hints
from collectives.diagnosis.verdict import State, Verdict, diagnose
from collectives.fate import Fate
from collectives.views import Views

# What differs from run to run is found by running more than once.
TIMES = 3

# The columns, and what their ranks find in TORCH_DISTRIBUTED_DEBUG.
LEVELS = {"bare torch": "OFF", "with `TORCH_DISTRIBUTED_DEBUG=DETAIL`": "DETAIL"}

COLUMNS = [*LEVELS, "`collectives diagnose`"]

OR = " *or* "

_STATUS = {"dies": "died", "raises": "raised", "lost": "raised", "stuck": "running", "wrong": "returned", "returns": "returned"}

_HEAD = f"""\
# Mistakes

What goes wrong with collectives, and what it looks like. Each mistake is a function with one bug, run in ranks of its own, and each
has its cure, which is run as well. Nothing that happens in there outlives it, so break more.

    python lessons/mistakes/order.py                # or: collectives run mistakes/order; all of them: collectives run mistakes
    python lessons/mistakes/order.py --timeline     # the same, and who was in which call, when
    TORCH_DISTRIBUTED_DEBUG=DETAIL python lessons/mistakes/order.py    # the same under torch's own checks

The table says what happened on gloo, on the CPU, when `python -m collectives.mistakes_table` made every mistake {TIMES} times,
without and with torch's own checks, and what our diagnosis said of it: its first line, below which it names the calls of all ranks
and where they are. Where two outcomes stand in a cell, either may come. "ok" means that the calls of all ranks fitted: the mistake
is not in them, but in the numbers, in the memory or in the time. A test makes every mistake again.

"""


def measured(step: Callable, times: int = TIMES) -> list[str]:
    """The cells of a mistake: what became of its ranks, at each level, and what is said of it."""
    outcomes = [{outcome(step, level) for _ in range(times)} for level in LEVELS.values()]
    verdicts = {headline(diagnosed(step)) for _ in range(times)}
    return [OR.join(sorted(cell)) for cell in (*outcomes, verdicts)]


def outcome(step: Callable, level: str) -> str:
    """What a mistake or a cure comes to, with this TORCH_DISTRIBUTED_DEBUG."""
    with _debug(level):
        return mistake.summary(mistake.watch(step)[0])


def diagnosed(step: Callable) -> Verdict:
    """What the diagnosis says of the calls of all ranks, and of what became of them."""
    views = Views(timeline=True)
    with _debug("OFF"):
        became, _ = mistake.watch(step, launch=views.launch)
    states = {number: _state(fate, step.__code__) for number, fate in enumerate(became)}
    verdict = diagnose(views.steps[-1][1] if views.steps else [], states, step.own.ranks)
    return replace(verdict, hints=hints(views.noticed, verdict.kind))


def headline(verdict: Verdict) -> str:
    first = "ok" if verdict.hints and verdict.kind == "ok" else verdict.says.splitlines()[0].rstrip(".:")
    return "; hint: ".join([first, *dict.fromkeys(hint.risk for hint in verdict.hints)])


def _state(fate: Fate, code: CodeType) -> State:
    text = "RuntimeError: Connection closed by peer" if fate.became == "lost" else fate.detail
    where = (code.co_filename, fate.line, code.co_name) if fate.line else ("", 0, "")
    return State(_STATUS[fate.became], text, where)


@contextmanager
def _debug(level: str) -> Iterator[None]:
    before = os.environ.get("TORCH_DISTRIBUTED_DEBUG")
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    try:
        yield
    finally:
        del os.environ["TORCH_DISTRIBUTED_DEBUG"]
        if before is not None:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = before


def rows(text: str) -> dict[str, list[set[str]]]:
    """The table in a text: by mistake, the outcomes that each cell allows."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| [")]
    return {row[1].strip("`"): [set(cell.split(OR)) for cell in row[2:]] for row in cells}


def table() -> str:
    """The table, newly measured. Says on stderr how far it is."""
    lines = [["file", "mistake", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for path in lesson_files.mistakes():
        for step in lesson_files.load(path).STEPS:
            if step.own.symptom:
                print(step.__name__, file=sys.stderr)
                lines.append([f"[{path.stem}]({path.name})", f"`{step.__name__}`", *measured(step)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else lesson_files.folder() / "mistakes" / "README.md"
    path.write_text(_HEAD + table(), encoding="utf-8")
