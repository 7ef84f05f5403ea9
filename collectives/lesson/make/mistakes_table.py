"""The README's table of mistakes: `python -m collectives.lesson.make.mistakes_table` makes them all, and writes it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType

from collectives.diagnosis.rules.hints import hints, write
from collectives.diagnosis.rules.judge import diagnose
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.lesson import files
from collectives.lesson import mistakes as mistake
from collectives.lesson.make.generated_part import Part
from collectives.lesson.outcome import Fate
from collectives.lesson.show import Views

# What differs from run to run is found by running more than once.
TIMES = 3

# The columns, and what their ranks find in TORCH_DISTRIBUTED_DEBUG.
LEVELS = {"bare torch": "OFF", "with `TORCH_DISTRIBUTED_DEBUG=DETAIL`": "DETAIL"}

COLUMNS = [*LEVELS, "`collectives diagnose`"]

OR = " *or* "

_STATUS = {
    "dies": "died",
    "raises": "raised",
    "lost": "raised",
    "stuck": "running",
    "wrong": "returned",
    "returns": "returned",
}

PART = Part("mistakes", "collectives.lesson.make.mistakes_table")


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
    first = (
        "ok"
        if verdict.hints and verdict.kind == "ok"
        else verdict.says.splitlines()[0].rstrip(".:")
    )
    return "; ".join([first, *(risk for risk, _ in write(verdict.hints))])


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


def rows(readme: str) -> dict[str, list[set[str]]]:
    """The table in the README: by mistake, the outcomes that each cell allows."""
    _, text, _ = PART.split(readme)
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[2:]
    ]
    return {row[1].strip("`"): [set(cell.split(OR)) for cell in row[2:]] for row in cells}


def table() -> str:
    """The table, newly measured. Says on stderr how far it is."""
    lines = [["file", "mistake", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for path in files.mistakes():
        for step in files.load(path).STEPS:
            if step.own.symptom:
                print(step.__name__, file=sys.stderr)
                lines.append(
                    [
                        f"[{path.stem}](lessons/mistakes/{path.name})",
                        f"`{step.__name__}`",
                        *measured(step),
                    ]
                )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    path.write_text(PART.updated(path.read_text(encoding="utf-8"), table()), encoding="utf-8")
