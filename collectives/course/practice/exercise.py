"""What an exercise asks for: one record each, and the cases in which it is tried.

>>> @hints("There is no division in SUM.")
... def cases(rank, n):
...     yield ExerciseCase("2 elements", (added(rank, 2),), sum(added(r, 2) for r in range(n)) / n)
>>> cases.hints
('There is no division in SUM.',)
"""

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectives.course import files

SIZES = (2, 3, 4, 1, 5, 8)  # the smallest world that shows something comes first


@dataclass
class ExerciseCase:
    """One call of the reader's function on this rank.

    wanted: what it must return. after: the arguments that it must change, by position, as they must
    be afterwards, in place; all others must stay as they were. parts: the names of what it returns,
    if that is a tuple. explain: what is wrong with a wrong result, if it knows.

    What may be done for it, all of it by this rank: messages, calls: the most messages that it may
    send, and the most collectives that it may call. bytes: the most that it may give to all its
    messages and calls. least_messages, least_calls, least_bytes: the fewest. reduced: the most to
    all_reduce alone.
    peers: the ranks to which it may send, and which may be with it in a collective. held: the most
    bytes that it may keep at a time of what others sent. apart: what it returns has memory of its
    own. together: no rank may return before the last has come.

    says: by the name of such a field, the words of the task that demand it.
    """

    label: str  # "root 2, 3 elements"
    args: tuple[Any, ...]
    wanted: Any = None
    after: dict[int, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    explain: Callable[[Any], str | None] | None = None
    messages: int | None = None
    least_messages: int = 0
    calls: int | None = None
    least_calls: int = 0
    bytes: int | None = None
    least_bytes: int = 0
    reduced: int | None = None
    peers: Collection[int] | None = None
    held: int | None = None
    apart: bool = False
    together: bool = False
    says: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exercise:
    """One exercise, as exercises/exercises.toml describes it. Its cases and hints are read from
    check.py when they are asked for, because that imports torch.

    folder: of its files task.py, solution.py, check.py and wrong.py. function: what the reader
    writes. stars: how hard it is, 1 to 3. lesson: where its subject is taught. uses: the only calls
    of torch.distributed that it may make; empty for all.
    """

    folder: Path
    function: str
    stars: int
    lesson: str
    uses: tuple[str, ...] = ()
    sizes: tuple[int, ...] = SIZES

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def chapter(self) -> str:
        return self.folder.parent.name

    @property
    def sends(self) -> bool:
        """Whether it is written with messages, so that they are worth counting."""
        return "send" in self.uses

    @property
    def rule(self) -> str:
        """What may be called, if not everything."""
        calls = ", ".join(self.uses)
        return f"write `{self.function}` with {calls} alone" if self.uses else ""

    @property
    def cases(self) -> Callable[[int, int], Iterator[ExerciseCase]]:
        """`cases(rank, world_size)` gives the cases of this rank, in the same order on all ranks,
        the shortest first.
        """
        return _cases_in(self.folder)

    @property
    def hints(self) -> tuple[str, ...]:
        """What a reader who asks is told, one after the other."""
        return self.cases.hints  # type: ignore[attr-defined]


@functools.cache
def _cases_in(folder: Path) -> Callable:
    """subtle: what several checks of a chapter share lies in the folder of the chapter."""
    file = folder / "check.py"
    program: dict[str, Any] = {"__name__": f"{folder.parent.name}.{folder.name}"}
    with files.imports_from(folder.parent):
        exec(compile(file.read_text("utf-8"), str(file), "exec"), program)
    return program["cases"]


def hints(*texts: str) -> Callable:
    """What a reader who asks is told. It stands above `cases` in check.py."""

    def mark(cases: Callable) -> Callable:
        cases.hints = texts  # type: ignore[attr-defined]
        return cases

    return mark
