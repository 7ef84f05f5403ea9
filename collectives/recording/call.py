"""One call that a rank made to torch.distributed.

The timeline, the pictures and the diagnosis read such calls, also where torch is not loaded. So
this file imports nothing heavy.
"""

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..semantics.calls import GROUPS

# Our name for the group of all ranks. torch's name for it differs from version to version.
WORLD = "WORLD"

# How our name for a group begins that only its members make: "ranks 1,2". torch has none yet.
MADE_BY = "ranks "

# The name of a span of the program's own work, see `record.span`. It is no call of torch.
SPAN = "span"


def group_label(group: str, world: int) -> str:
    """torch's name of a group, made unique for a process that joins one world after another.

    `world` counts these worlds, from 1: torch gives the same names again in each of them.
    """
    return group if world <= 1 else f"{group} of world {world}"


def sequence_key(group: str, name: str) -> tuple[str, str]:
    """The sequence in which a call is counted: calls with the same key are numbered together.

    These are the collectives of a group. Calls that make or end groups are counted by their name,
    apart from the collectives: a group may be made between two collectives of its parent.
    """
    return group, name if name in GROUPS else ""


def requested_place(given: dict) -> tuple[int, int]:
    """The rank and the world size that init_process_group asks for; -1 if only the backend knows.

    Both come from the arguments, else from the environment.
    """
    words = (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
    asked = ((given.get(word, -1), int(os.environ.get(name) or -1)) for word, name in words)
    rank, size = (environ if number in (-1, None) else number for number, environ in asked)
    return rank, size


_REFUSED = re.compile(r"(ValueError|TypeError|RuntimeError: (ProcessGroup\w+::\w+: |invalid ))")


def was_refused(error: str) -> bool:
    """Whether torch refused the call's arguments, before it sent anything: the group goes on."""
    return bool(_REFUSED.match(error))


class TensorKind(NamedTuple):
    """What is noted of a tensor; of a list of objects: "object", and how many."""

    dtype: str  # "float32"
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        """As in float32[4, 2]."""
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class CallArgs:
    """What a call asks for, and where: the same when a line of a program makes the call again.

    An object equals only itself, so that a dictionary finds it without comparing long fields.
    """

    name: str  # torch.distributed's own: "all_reduce", "irecv"; "wait" for Work.wait()
    group: str = WORLD  # the same on all members; for a call that makes a group, the parent
    members: tuple[int, ...] = ()  # the group's global ranks, in the group's order
    awaited: str | None = None  # for "wait": the name of that call; for a span: what is done
    # The global rank of src or dst: the root, or the other side of a message (None: any source).
    # For init_process_group: the rank that the caller names.
    peer: int | None = None
    op: str | None = None  # "SUM"
    tag: int | None = None
    tensors: tuple[TensorKind, ...] = ()  # in the order of torch's parameters
    splits: tuple[tuple[int, ...] | None, ...] | None = None  # all_to_all_single's: output, input
    ranks: tuple[tuple[int, ...], ...] | None = None  # the members of the groups to be made
    is_async: bool = False  # it returns a Work to wait for
    timeout: float | None = None  # seconds after which the call gives up, where torch says so
    backend: str = ""  # the one that serves it, where torch says so: "gloo"
    device: str = ""  # of its first tensor: "cpu"
    shares: bool = False  # tensors of a list that the call fills share storage
    gaps: bool = False  # the elements of one of its tensors are not side by side: a column
    file: str = ""  # the caller's, outside of torch and of this package
    line: int = 0
    function: str = ""
    is_functional: bool = False  # a functional collective: torch waits for it later, unseen
    way: str = ""  # of a functional collective, the program's lines that lead there: see stack
    torch_does: str = ""  # "DDP's forward broadcasts its buffers": why torch makes the call
    group_name: str = ""  # what the program calls the group: its group_desc, or a mesh's dimension


@dataclass(frozen=True)
class Call(CallArgs):
    """What a rank asked for in one call, where and when, and how the call ended.

    A "wait" has the group, seq, peer, op, tag and tensors of the call whose Work it waits for.

    `before` and `after` hold copies of the tensors (or lists of tensors) by parameter name, if the
    recording keeps them. `after` of a call that returned a Work is copied when `wait()` has
    returned; it is None if nobody waited.
    """

    rank: int = -1  # the global rank that calls
    number: int = -1  # 0, 1, 2, ... in this rank, in order of entry
    seq: int | None = None  # its index, from 0, in its sequence; None for send, recv and their like
    torch_seq: int | None = None  # torch's own number of a collective, from 1: see call_arguments
    of: int | None = None  # for "wait": the number of the call whose Work is waited for
    entered: int = 0  # nanoseconds, on this machine's monotonic clock
    left: int | None = None  # None while the rank is inside
    error: str | None = None  # the exception that it raised, in one line
    source: int | None = None  # for receives: the global rank that sent, where torch says so
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    @property
    def shown_seq(self) -> int | None:
        """The number that a report shows: torch's own, else ours, which counts from 1 as well."""
        return self.torch_seq or (None if self.seq is None else self.seq + 1)

    @property
    def key(self) -> tuple[int, int]:
        """The call among those of all ranks."""
        return self.rank, self.number


def call_from_json(values: dict | list) -> Call:
    """From the fields of a Call, by name or in their order, that went through JSON."""
    values = as_tuples(values)
    call = Call(**values) if isinstance(values, dict) else Call(*values)
    return replace(call, tensors=tuple(TensorKind(*kind) for kind in call.tensors))


def as_tuples(value):
    """A value from JSON, with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: as_tuples(one) for name, one in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class RiskyCall:
    """Something risky that a rank noticed in a call of its own. The call's `number` is not known.

    kind: "changed": the program wrote into a tensor of the call before it waited for the Work, `at`
        a file, line and function; "unawaited": the Work is gone, or its process, and nobody has
        waited for it; "gaps": the call got a tensor with gaps; "shares": a list to be filled whose
        tensors share storage; "forked": a forked child of a rank used the rank's group.
    """

    kind: str
    call: Call
    at: tuple[str, int, str] | None = None
