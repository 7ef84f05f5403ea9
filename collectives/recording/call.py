"""One call that a rank made to torch.distributed: what the timeline, the pictures and the diagnosis read.

This file imports nothing heavy: calls are also read where torch is not loaded.
"""

import os
import re
from dataclasses import astuple, dataclass, replace
from typing import Any

from ..spec.calls import GROUPS

# The group of all ranks is called so; torch's own name for it differs from version to version.
WORLD = "WORLD"


def label(group: str, world: int) -> str:
    """torch's name of a group, which it gives anew in each world that a process joins after another; from 1."""
    return group if world <= 1 else f"{group} of world {world}"


def sequence(group: str, name: str) -> tuple[str, str]:
    """What a call is counted in: the collectives of its group, or that group's calls of this name."""
    return group, name if name in GROUPS else ""


def place_of(given: dict) -> tuple[int, int]:
    """The rank and the world size that init_process_group asks for; -1 where only the backend knows."""
    words = (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
    asked = ((given.get(word, -1), int(os.environ.get(name) or -1)) for word, name in words)
    rank, size = (environ if number in (-1, None) else number for number, environ in asked)
    return rank, size


_REFUSED = re.compile(r"(ValueError|TypeError|RuntimeError: (ProcessGroup\w+::\w+: |invalid ))")


def was_refused(error: str) -> bool:
    """Whether a call left with the exception because of its arguments, before anything was sent: its group goes on without it."""
    return bool(_REFUSED.match(error))


@dataclass(frozen=True)
class Call:
    """`left` is None where the rank was still inside; `tensors` tells all that the call was given, in the order of its parameters.

    A "wait" bears the group, seq, peer, op, tag and tensors of the call whose Work it waits for.

    `before` and `after` are there only if asked for: by name of the parameter, copies of its tensor (or list of tensors) before the
    call and after it. `after` of a call that returned a Work is what lay there when `wait()` had returned: None if nobody waited.
    """

    rank: int  # the global rank that calls
    number: int  # 0, 1, 2, ... in this rank, in order of entry
    name: str  # torch.distributed's own: "all_reduce", "irecv"; "wait" for Work.wait()
    group: str = WORLD  # a name that is the same on all members; calls that make a group belong to all whom they concern
    members: tuple[int, ...] = ()  # the group's global ranks, in the group's order
    seq: int | None = (
        None  # the how-many-th collective of this group, from 0 (new groups are counted apart); None for send, recv
    )
    of: int | None = None  # for "wait": the number of the call whose Work is waited for
    awaited: str | None = None  # for "wait": the name of that call
    # The global rank of dst or src: the other side of a message (None: any), or the root. Of init_process_group, the rank it names.
    peer: int | None = None
    op: str | None = None  # "SUM"
    tag: int | None = None
    tensors: tuple[str, ...] = ()  # "float32[4, 2]"
    splits: tuple[tuple[int, ...] | None, ...] | None = (
        None  # all_to_all_single's: of the output, of the input
    )
    ranks: tuple[tuple[int, ...], ...] | None = (
        None  # new_group, split_group: who is to be in the new groups
    )
    is_async: bool = False  # it returns before it is done, with a Work to wait for
    timeout: float | None = (
        None  # seconds after which the call gives up by itself, where torch says so
    )
    backend: str = ""  # what serves it, where torch says so: "gloo"
    device: str = ""  # of its first tensor: "cpu"
    gaps: bool = False  # a tensor of it does not fill the memory from its first element to its last: a column of a matrix
    file: str = ""  # the caller's, outside of torch and of this package
    line: int = 0
    function: str = ""
    entered: int = 0  # nanoseconds, on this machine's monotonic clock
    left: int | None = None
    error: str | None = None  # the exception that it left with, in one line
    source: int | None = (
        None  # for receives: the global rank from which the message came, where torch says so
    )
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


def plain(call: Call) -> list:
    """All of a call but its copies of tensors, as JSON can hold it."""
    return list(astuple(replace(call, before=None, after=None)))


def from_plain(values: list) -> Call:
    return Call(*map(_as_tuples, values))


def _as_tuples(value):
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class What:
    """The fields of a Call that are the same each time that a line of a program makes it; by these names.

    Only the same object is equal: in a dictionary it is found without a look at its fields, of which some are long.
    """

    name: str
    group: str = WORLD
    members: tuple[int, ...] = ()
    awaited: str | None = None
    peer: int | None = None
    op: str | None = None
    tag: int | None = None
    tensors: tuple[str, ...] = ()
    splits: tuple | None = None
    ranks: tuple | None = None
    is_async: bool = False
    timeout: float | None = None
    backend: str = ""
    device: str = ""
    gaps: bool = False
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True)
class Noticed:
    """Something risky that a rank noticed of a call of its own (whose `number` is not told).

    `kind`: "changed", a tensor of it was written to before its Work was waited for, which was done `at` a file, line, function;
    "unawaited", its Work is gone, or its process, and nobody had waited for it; "gaps", it was given a tensor that has some.
    """

    kind: str
    call: Call
    at: tuple[str, int, str] | None = None
