"""What a call asks for, as one short text: as JSON in which repetitions are counted."""

import functools
import itertools
import json
from dataclasses import replace
from typing import Any

from .call import CallArgs

# The longest text, in bytes.
_LONGEST = 800


def encode(what: CallArgs) -> bytes:
    """A text that is too long loses fields that are long in large worlds only."""
    for fields in (
        {},
        {"splits": None},
        {"tensors": what.tensors[:1], "ranks": None},
        {"members": (), "file": what.file[-100:]},
    ):
        what = replace(what, **fields)
        runs: Any = {"members": _ranges(what.members), "tensors": _runs(what.tensors)}
        text = _json(replace(what, **runs))
        if len(text) <= _LONGEST:
            return text
    return _json(CallArgs(what.name[:40], what.group[:100]))


def _json(what: CallArgs) -> bytes:
    return json.dumps(list(vars(what).values()), separators=(",", ":")).encode()


@functools.lru_cache(4096)
def decode(text: bytes) -> CallArgs:
    what: Any = CallArgs(*json.loads(text))
    members = tuple(rank for begin, end in what.members for rank in range(begin, end))
    tensors = tuple(text for text, count in what.tensors for _ in range(count))
    splits = what.splits and tuple(part and tuple(part) for part in what.splits)
    return replace(
        what,
        members=members,
        tensors=tensors,
        splits=splits,
        ranks=what.ranks and tuple(map(tuple, what.ranks)),
    )


def _ranges(numbers: tuple[int, ...]) -> list[list[int]]:
    """(0, 1, 2, 5) as [[0, 3], [5, 6]]."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def _runs(texts: tuple[str, ...]) -> list[list]:
    """("a", "a", "b") as [["a", 2], ["b", 1]]."""
    return [[text, len(list(same))] for text, same in itertools.groupby(texts)]
