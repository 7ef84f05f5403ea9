"""A question to a backend, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectives.words import counted

# In the order in which they are asked, and what each is about.
SECTIONS = {
    "group": "the group itself: rank, size, name and device",
    "calls": "every call with every dtype and reduction, short messages",
    "widths": "values that a narrower dtype cannot hold, and numbers that are none",
    "sizes": "every call at several lengths",
    "groups": "every call in groups that lack some ranks, with every root",
    "at once": "several calls and groups under way, and many in a row",
    "failure": "a peer that dies, stops or never comes",
    "lessons": "the programs of the course",
    "stated": "what is told and not judged: equal bits, calls that do not match",
}

# What becomes of a question. "stated": it is told, and neither right nor wrong.
NOT_ASKED, STATED = "not asked", "stated"
STATES = ("works", "refuses", "crashes", "hangs", "wrong", STATED, NOT_ASKED)
FAULTS = ("crashes", "hangs", "wrong")


@dataclass(frozen=True)
class Question:
    """`run(rank, world_size, device)` asks it, in every rank of a world of `ranks`.

    It returns None if all is right, a text for what is wrong, or a Stated. `call` is the call that
    it is about, `case` says with what. `traits` are the same in words that can be compared: what
    questions that failed have in common is told from them. `limit` is in seconds. From
    `program`, program.py writes a program that asks the same.
    """

    section: str
    call: str
    case: str
    ranks: int
    run: Callable[..., Any]
    traits: tuple[tuple[str, Any], ...] = ()
    limit: float = 15.0
    program: Any = None

    def __str__(self) -> str:
        return f"{self.call}({self.case}), {counted(self.ranks, 'rank')}"


@dataclass(frozen=True)
class Stated:
    """What a question found that is told and not judged."""

    text: str


@dataclass(frozen=True)
class Answer:
    """`state` is one of STATES. `place` is a line of the author's: "mine.py, line 12 in f"."""

    question: Question
    state: str
    detail: str = ""
    place: str = ""

    def as_row(self) -> dict[str, Any]:
        """Plain data, of which `of_row` makes an answer again. It cannot be asked once more."""
        asked = self.question
        fields = ("section", "call", "case", "ranks", "traits")
        row = {name: getattr(asked, name) for name in fields}
        return row | {"state": self.state, "detail": self.detail, "place": self.place}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "Answer":
        traits = tuple((name, _hashable(value)) for name, value in row["traits"])
        question = Question(
            row["section"],
            row["call"],
            row["case"],
            row["ranks"],
            cls.of_row,
            traits,
            program=row["program"],
        )
        return cls(question, row["state"], row["detail"], row["place"])

    @property
    def is_fault(self) -> bool:
        return self.state in FAULTS


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
