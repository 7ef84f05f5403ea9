"""The outcomes of all mistakes in docs/mistakes.md: an overview, then every outcome in full.

Every mistake is made three times.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any
from unittest import mock

from collectives.backends import claims
from collectives.course import chapters, files
from collectives.course import mistakes as mistake
from collectives.course.outcome import RankOutcome
from collectives.diagnosis.rules.hints import hints, write
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.recording.ending import Ending
from tools.markdown import table

# Some outcomes differ from run to run: each mistake is made so many times.
TIMES = 3

# How the page names each way to run, and what its ranks find in TORCH_DISTRIBUTED_DEBUG.
LEVELS = {"torch": "OFF", "`DETAIL`": "DETAIL"}

COLUMNS = [*LEVELS, "diagnose"]

# How it names both, where the outcome is the same.
SAME = " and ".join(LEVELS)

OR = " *or* "

_STATUS = {
    Ending.DIED: Ending.DIED,
    Ending.LEFT: Ending.DIED,
    Ending.RAISED: Ending.RAISED,
    Ending.PEER_LOST: Ending.RAISED,
    Ending.HUNG: Ending.RUNNING,
    Ending.WRONG: Ending.RETURNED,
    Ending.RETURNED: Ending.RETURNED,
}


def measured(step: Callable, times: int = TIMES) -> list[set[str]]:
    """What became of the ranks of a mistake at each level, and the first line of the diagnosis."""
    outcomes = [{outcome(step, level) for _ in range(times)} for level in LEVELS.values()]
    verdicts = {headline(diagnosed(step)[1]) for _ in range(times)}
    return [*outcomes, verdicts]


def outcome(step: Callable, level: str) -> str:
    """What a mistake or a cure comes to, with this TORCH_DISTRIBUTED_DEBUG."""
    with mock.patch.dict(os.environ, TORCH_DISTRIBUTED_DEBUG=level):
        return mistake.summary(mistake.run_isolated(step, mistake.own_world(step))[0])


def diagnosed(step: Any) -> tuple[str, Verdict]:
    """The outcome of a mistake on bare torch, and what the diagnosis says of its recorded calls."""
    with mock.patch.dict(os.environ, TORCH_DISTRIBUTED_DEBUG="OFF"):
        outcomes, results = mistake.run_isolated(step, mistake.own_world(step), "calls")
    states = {rank: _state(outcome, step.__code__) for rank, outcome in enumerate(outcomes)}
    verdict = judge(Matching(results.calls), states, step.world.ranks, stalled=True)
    found = hints(results.risky_calls, verdict.kind, claims.wrong_with_gaps)
    return mistake.summary(outcomes), replace(verdict, hints=found)


def headline(verdict: Verdict) -> str:
    first = (
        "ok"
        if verdict.hints and verdict.kind is Ending.OK
        else verdict.headline.splitlines()[0].rstrip(".:")
    )
    return "; ".join([first, *(risk for risk, _ in write(verdict.hints))])


def _state(outcome: RankOutcome, code: CodeType) -> State:
    text = (
        "RuntimeError: Connection closed by peer"
        if outcome.kind is Ending.PEER_LOST
        else outcome.detail
    )
    where = (code.co_filename, outcome.line, code.co_name) if outcome.line else ("", 0, "")
    kind = _STATUS[outcome.kind]
    return State(kind, text, where, error=outcome.error, signal=outcome.signal)


def markdown(outcomes: dict[str, dict[str, list[set[str]]]] | None = None) -> str:
    """`outcomes`: by file and mistake, what `measured` returned; None measures them."""
    outcomes = outcomes or measure()
    return f"{overview(outcomes)}\n\n{_in_full(outcomes)}\n"


def overview(outcomes: dict[str, dict[str, list[set[str]]]]) -> str:
    """A table with a row for each mistake: its cause, and the beginning of each outcome."""
    rows = []
    for file, mistakes in outcomes.items():
        for cause, (name, (*became, verdicts)) in zip(causes(file), mistakes.items(), strict=True):
            cells = [_short(cell, " on ") for cell in became] + [_short(verdicts, ":")]
            rows.append([f"[{name}](#{file})", cause, *cells])
    return table(["program", "cause", *COLUMNS], rows)


def causes(file: str) -> list[str]:
    """What is wrong with each program of a file, in the words of its answer."""
    prose = files.find(f"mistakes/{file}").read_text(encoding="utf-8").replace("\n# ", " ")
    return re.findall(r"\*\*Cause: (.+?)\.\*\*", prose)


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
    outcomes: dict[str, dict[str, list[set[str]]]] = {}
    for path in files.of_chapter(chapters.read()["mistakes"]):
        outcomes[path.stem] = {}
        for step in files.load(path).STEPS:
            if step.world.symptom:
                print(step.__name__, file=sys.stderr)
                outcomes[path.stem][step.__name__] = measured(step)
    return outcomes
