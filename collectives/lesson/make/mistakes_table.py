"""The outcomes of all mistakes in docs/mistakes.md: an overview, then every outcome in full.

`python -m collectives.lesson.make.mistakes_table` makes every mistake three times and writes both.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType

from collectives.diagnosis.rules.hints import hints, write
from collectives.diagnosis.rules.judge import diagnose
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.lesson import files
from collectives.lesson import mistakes as mistake
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make.generated_part import Part
from collectives.lesson.outcome import RankOutcome
from collectives.lesson.show import Display

# Some outcomes differ from run to run: each mistake is made so many times.
TIMES = 3

# How the page names each way to run, and what its ranks find in TORCH_DISTRIBUTED_DEBUG.
LEVELS = {"torch": "OFF", "`DETAIL`": "DETAIL"}

COLUMNS = [*LEVELS, "diagnose"]

# How it names both, where the outcome is the same.
SAME = " and ".join(LEVELS)

OR = " *or* "

_STATUS = {
    "died": "died",
    "left": "died",
    "raised": "raised",
    "peer_lost": "raised",
    "hung": "running",
    "wrong": "returned",
    "returned": "returned",
}

PART = Part("mistakes", "collectives.lesson.make.mistakes_table", "docs/mistakes.md")


def measured(step: Callable, times: int = TIMES) -> list[set[str]]:
    """What became of the ranks of a mistake at each level, and the first line of the diagnosis."""
    outcomes = [{outcome(step, level) for _ in range(times)} for level in LEVELS.values()]
    verdicts = {headline(diagnosed(step)[1]) for _ in range(times)}
    return [*outcomes, verdicts]


def outcome(step: Callable, level: str) -> str:
    """What a mistake or a cure comes to, with this TORCH_DISTRIBUTED_DEBUG."""
    with _debug(level):
        return mistake.summary(mistake.run_isolated(step)[0])


def diagnosed(step: Callable) -> tuple[str, Verdict]:
    """The outcome of a mistake on bare torch, and what the diagnosis says of its recorded calls."""
    display = Display(timeline=True)
    with _debug("OFF"):
        outcomes, _ = mistake.run_isolated(step, launch=display.launch)
    states = {rank: _state(outcome, step.__code__) for rank, outcome in enumerate(outcomes)}
    verdict = diagnose(display.steps[-1][1] if display.steps else [], states, step.world.ranks)
    return mistake.summary(outcomes), replace(verdict, hints=hints(display.noticed, verdict.kind))


def headline(verdict: Verdict) -> str:
    first = (
        "ok"
        if verdict.hints and verdict.kind == "ok"
        else verdict.says.splitlines()[0].rstrip(".:")
    )
    return "; ".join([first, *(risk for risk, _ in write(verdict.hints))])


def _state(outcome: RankOutcome, code: CodeType) -> State:
    text = (
        "RuntimeError: Connection closed by peer" if outcome.kind == "peer_lost" else outcome.detail
    )
    where = (code.co_filename, outcome.line, code.co_name) if outcome.line else ("", 0, "")
    return State(_STATUS[outcome.kind], text, where)


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


def markdown(outcomes: dict[str, dict[str, list[set[str]]]]) -> str:
    """`outcomes`: by file and mistake, what `measured` returned."""
    return f"{overview(outcomes)}\n\n{_in_full(outcomes)}\n"


def overview(outcomes: dict[str, dict[str, list[set[str]]]]) -> str:
    """A table with a row for each mistake and the beginning of each outcome."""
    lines = [["mistake", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for file, mistakes in outcomes.items():
        for name, (*became, verdicts) in mistakes.items():
            cells = [_short(cell, " on ") for cell in became] + [_short(verdicts, ":")]
            lines.append([f"[{name}](#{file})", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(cell: set[str], end: str) -> str:
    return " or ".join(sorted({text.partition(end)[0] for text in cell}))


def _in_full(outcomes: dict[str, dict[str, list[set[str]]]]) -> str:
    lines = []
    for file, mistakes in outcomes.items():
        lesson = f"[lesson](../lessons/mistakes/{file}.py)"
        notebook = f"[notebook](../notebooks/mistakes/{file}.ipynb)"
        lines += [f"### {file}", "", f"Read the {lesson} or its {notebook}.", ""]
        for name, cells in mistakes.items():
            lines.append(f"- **`{name}`**")
            columns = COLUMNS
            if cells[0] == cells[1]:
                columns, cells = [SAME, COLUMNS[2]], cells[1:]
            for column, cell in zip(columns, cells, strict=True):
                lines.append(f"  - {column}: {OR.join(sorted(cell))}")
        lines.append("")
    return "\n".join(lines).rstrip()


def rows(text: str) -> dict[str, dict[str, list[set[str]]]]:
    """The inverse of `markdown`: by file and mistake, the outcomes that each column allows."""
    found: dict[str, dict[str, list[set[str]]]] = {}
    for line in text.splitlines():
        if line.startswith("### "):
            mistakes = found[line.removeprefix("### ")] = {}
        elif line.startswith("- **"):
            cells = mistakes[line.strip("- *`")] = []
        elif line.startswith("  - "):
            column, _, outcomes = line.removeprefix("  - ").partition(": ")
            cells += [set(outcomes.split(OR))] * (2 if column == SAME else 1)
    return found


def measure() -> dict[str, dict[str, list[set[str]]]]:
    """Make every mistake. Says on stderr how far it is."""
    outcomes = {}
    for path in files.of_chapter(CHAPTERS["mistakes"]):
        outcomes[path.stem] = {}
        for step in files.load(path).STEPS:
            if step.world.symptom:
                print(step.__name__, file=sys.stderr)
                outcomes[path.stem][step.__name__] = measured(step)
    return outcomes


if __name__ == "__main__":
    PART.write(markdown(measure()))
