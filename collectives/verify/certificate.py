"""What a backend was asked and what came of it: as data, and as a page."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.backends import availability, machine
from collectives.matrix import refused
from collectives.verify import program
from collectives.verify.causes import causes_of
from collectives.verify.failure import PATIENCE
from collectives.verify.plan import Plan
from collectives.verify.question import NOT_ASKED, SECTIONS, STATED, STATES, Answer

FORMAT = 1

# Columns of the table of calls.
_COLUMNS = ("calls", "sizes", "widths", "groups", "at once", "failure")


@dataclass
class Certificate:
    plan: Plan
    answers: list[Answer]
    seconds: float

    def __post_init__(self) -> None:
        self.causes = causes_of(self.answers)

    @property
    def status(self) -> int:
        """0: nothing is wrong; 1: something is; 3: nothing could be asked."""
        if self.causes:
            return 1
        return 0 if any(answer.state not in (NOT_ASKED, STATED) for answer in self.answers) else 3

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"{self.plan.backend}.certificate"
        files = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "md")]
        files[0].write_text(json.dumps(self.data(), indent=1, ensure_ascii=False) + "\n", "utf-8")
        files[1].write_text(self.page(), "utf-8")
        return files

    def data(self) -> dict[str, Any]:
        """`read` reads it. Of answers that are right only the number stands there."""
        return {
            "format": FORMAT,
            "backend": self.plan.backend,
            "device": self.plan.device,
            "asked": _described(self.plan),
            "facts": dict(_facts()),
            "seconds": round(self.seconds),
            "wrong": [
                {"cause": str(cause), "calls": cause.calls, "questions": len(cause.answers)}
                for cause in self.causes
            ],
            "answers": {
                section: {call: _row(answers) for call, answers in rows.items()}
                for section, rows in _rows(self.answers).items()
            },
        }

    def page(self) -> str:
        parts = [f"# {self.plan.backend} on {self.plan.device}", self._summary()]
        parts += ["## What is wrong", self._wrong()]
        parts += ["## What it does", self._table()]
        parts += ["## What it refuses, in its own words", self._refused()]
        parts += ["## If a peer fails", self._failures()]
        parts += ["## Told and not judged", self._stated()]
        parts += ["## Not asked", self._not_asked()]
        parts += [
            "## With what",
            "\n".join(f"- {name}: {value}" for name, value in _facts()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _summary(self) -> str:
        counts = Counter(answer.state for answer in self.answers)
        numbers = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        return (
            f"Asked: {_described(self.plan)}. {len(self.answers):,} questions in "
            f"{self.seconds:.0f} s: {numbers}."
        )

    def _wrong(self) -> str:
        if not self.causes:
            return "Nothing of what was asked."
        modules = tuple(availability.imported)
        parts = []
        for number, cause in enumerate(self.causes, 1):
            many = len(cause.answers) + cause.also
            parts.append(f"{number}. {cause} ({many} {'questions' if many > 1 else 'question'})")
            if text := program.of(cause.smallest.question, modules):
                parts.append("\n".join(["```python", text.rstrip(), "```"]))
        return "\n\n".join(parts)

    def _table(self) -> str:
        rows = _rows(self.answers)
        calls = dict.fromkeys(call for section in _COLUMNS for call in rows.get(section, ()))
        lines = [f"| call | {' | '.join(_COLUMNS)} |", "| --- " * (1 + len(_COLUMNS)) + "|"]
        for call in calls:
            cells = [_counts(rows.get(section, {}).get(call, [])) for section in _COLUMNS]
            lines.append(f"| `{call}` | {' | '.join(cells)} |")
        lessons = [answer for answer in self.answers if answer.question.section == "lessons"]
        if lessons:
            lines += ["", f"Lessons, by number of world sizes: {_counts(lessons)}."]
        return "\n".join(lines)

    def _refused(self) -> str:
        lines = refused.by_reason(
            (str(answer.question), answer.detail)
            for answer in self.answers
            if answer.state == "refuses"
        )
        return "\n".join(f"- {line}" if line[0] != " " else line for line in lines) or "Nothing."

    def _failures(self) -> str:
        answers = [answer for answer in self.answers if answer.question.section == "failure"]
        returned: dict[str, list[str]] = {}
        for answer in answers:
            if answer.state == "works":
                who = [part for part in answer.detail.split("; ") if part.endswith("returned")]
                if who and "after the call" not in answer.question.case:
                    text = f"{answer.question.call}, {answer.question.case}"
                    returned.setdefault(", ".join(who), []).append(text)
        right = sum(answer.state == "works" for answer in answers)
        if not answers:
            return ""
        lines = [
            f"In {right} of {len(answers)} cases every other rank raised, or returned what it can "
            f"have, within {PATIENCE:g} s, and a new group worked afterwards. Without an error, "
            "because they depend on nothing that the peer gives:"
        ]
        lines += [f"- {who}: {'; '.join(cases)}" for who, cases in returned.items()]
        return "\n".join(lines)

    def _stated(self) -> str:
        texts: dict[str, list[str]] = {}
        for answer in self.answers:
            if answer.state == STATED and answer.detail:
                texts.setdefault(answer.detail, []).append(str(answer.question))
        return "\n".join(
            f"- {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {text}"
            for text, names in texts.items()
        )

    def _not_asked(self) -> str:
        reasons: dict[str, list[str]] = {}
        for answer in self.answers:
            if answer.state == NOT_ASKED:
                reasons.setdefault(answer.detail, []).append(str(answer.question))
        lines = [
            f"- {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
            for reason, names in reasons.items()
        ]
        left_out = [
            (self.plan.quick, "failure, and most messages above 5 elements: --quick"),
            (not self.plan.threads, "calls from two threads: --threads"),
            (True, "more than one machine; speed; get_future() and exception() of a Work"),
        ]
        return "\n".join(lines + [f"- {text}" for is_so, text in left_out if is_so])


def _rows(answers: list[Answer]) -> dict[str, dict[str, list[Answer]]]:
    rows: dict[str, dict[str, list[Answer]]] = {section: {} for section in SECTIONS}
    for answer in answers:
        rows[answer.question.section].setdefault(answer.question.call, []).append(answer)
    return {section: found for section, found in rows.items() if found}


def _row(answers: list[Answer]) -> dict[str, Any]:
    """How many were right, and each other one by its state."""
    row: dict[str, Any] = {"works": sum(answer.state == "works" for answer in answers)}
    for answer in answers:
        if answer.state not in ("works", STATED):
            text = f"{answer.question.case}; {answer.question.ranks} ranks"
            row.setdefault(answer.state, []).append(text)
    return row


def _counts(answers: list[Answer]) -> str:
    counts = Counter(answer.state for answer in answers)
    marks = {state: f"**{state}**" for state in ("wrong", "hangs", "crashes")}
    return ", ".join(
        f"{counts[state]} {marks.get(state, state)}" for state in STATES if counts[state]
    )


def _described(plan: Plan) -> str:
    sizes = ", ".join(map(str, plan.world_sizes))
    words = [f"{sizes} ranks"] + (
        [f"also at {', '.join(map(str, plan.sizes))} elements"] if plan.sizes else []
    )
    words += ["quickly"] if plan.quick else []
    words += ["with threads"] if plan.threads else []
    return ", ".join(words)


def _facts() -> list[tuple[str, str]]:
    return [
        *machine.facts(),
        ("modules", ", ".join(availability.imported) or "-"),
        ("on", time.strftime("%Y-%m-%d")),
    ]


def read(file: Path) -> dict[str, Any]:
    """ValueError, in one sentence, for a file that is no certificate."""
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["format"] == FORMAT and isinstance(data["answers"], dict):
            return dict(data)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(
        f"{file} is no certificate: name a file that `collectives verify` has written."
    )


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is answered otherwise in another certificate, of what both have asked."""
    lines = []
    for section in before["answers"].keys() & after["answers"].keys():
        old, new = before["answers"][section], after["answers"][section]
        for call in sorted(old.keys() & new.keys()):
            states = [_states(rows[call]) for rows in (old, new)]
            for case in sorted(states[0].keys() | states[1].keys()):
                was, now = (one.get(case, "works") for one in states)
                if was != now and NOT_ASKED not in (was, now):
                    lines.append(f"{section}: {call}({case}): was {was}, is {now}")
    return sorted(lines)


def _states(row: dict[str, Any]) -> dict[str, str]:
    return {case: state for state, cases in row.items() if state != "works" for case in cases}
