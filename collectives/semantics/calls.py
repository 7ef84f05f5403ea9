"""One record for each call of torch.distributed: who gives data, who gets it, in which parameters.

The recorder, the diagnosis, the pictures and the matrix read these records.
`tests/semantics/test_calls.py` compares them with the signatures of the installed torch.

This file imports nothing heavy: the recorder loads it in the user's process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

# The reductions of dist.ReduceOp, in the order in which the matrix shows them.
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class Flow(Enum):
    """Which ranks give data, and which ranks get it."""

    SEND = "this rank sends to its peer"
    RECEIVE = "this rank receives from its peer"
    FROM_ROOT = "the root gives, every member gets"
    TO_ROOT = "every member gives, the root gets"
    ALL_TO_ALL = "every member gives, every member gets; in a barrier, only the news that it came"
    GROUP = "no data: the call makes or ends groups"


class Layout(Enum):
    """What a buffer parameter holds. In a call with a root, only the root passes a LIST."""

    ONE = "one tensor, or one object"
    LIST = "a list with one tensor, or one object, for each member of the group"
    CUT = "one tensor that consists of a piece for each member"
    SEVERAL = "a list of any length"


@dataclass(frozen=True)
class BufferSpec:
    """A parameter for tensors or objects. The call reads it (gives), writes it (gets), or both."""

    parameter: str
    layout: Layout
    gives: bool
    gets: bool


@dataclass(frozen=True)
class CallSpec:
    """What is known of a call without making it.

    buffers: in the order of torch's parameters.
    aliases: older names of the same function. torch itself and older programs still use them.
    peer: the parameter for the global rank of the root, or of the other side of a message. torch
        takes its rank in the group as `group_<peer>` instead.
    default_root: the root when the caller names none; None where torch then refuses the call.
    reduces: whether it takes a reduction, `op`.
    always_async: whether it returns a Work without being asked to by `async_op`.
    bus_factor: turns algorithm bandwidth, the bytes of the whole array divided by the time, into
        bus bandwidth, for n ranks, as nccl-tests defines it in PERFORMANCE.md. None where no data
        moves, and where the caller cannot know how much moves.
    lesson: the lesson that teaches the call, or its nearest relative.
    """

    name: str
    flow: Flow
    lesson: str | None
    buffers: tuple[BufferSpec, ...] = ()
    aliases: tuple[str, ...] = ()
    peer: str | None = None
    default_root: int | None = None
    reduces: bool = False
    always_async: bool = False
    bus_factor: Callable[[int], float] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases

    @property
    def objects(self) -> bool:
        """Whether it moves pickled objects instead of tensors."""
        return "object" in self.name

    @property
    def gives(self) -> str | None:
        """The parameter whose data the other ranks get."""
        return next((buffer.parameter for buffer in self.buffers if buffer.gives), None)

    @property
    def gets(self) -> str | None:
        """The parameter that holds the result."""
        return next((buffer.parameter for buffer in self.buffers if buffer.gets), None)

    @property
    def in_place(self) -> bool:
        """Whether the result replaces what the rank gave."""
        return self.gives is not None and self.gives == self.gets


def _gives(parameter: str, layout: Layout = Layout.ONE) -> BufferSpec:
    return BufferSpec(parameter, layout, gives=True, gets=False)


def _gets(parameter: str, layout: Layout = Layout.ONE) -> BufferSpec:
    return BufferSpec(parameter, layout, gives=False, gets=True)


def _replaces(parameter: str, layout: Layout = Layout.ONE) -> BufferSpec:
    return BufferSpec(parameter, layout, gives=True, gets=True)


def _whole(n: int) -> float:
    return 1.0


def _others(n: int) -> float:
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


_LIST, _CUT, _SEVERAL = Layout.LIST, Layout.CUT, Layout.SEVERAL

# In the order of the lessons; in each lesson, the call that it is named after comes first.
# fmt: off
_RECORDS = (
    CallSpec("send", Flow.SEND, "send_recv", (_gives("tensor"),), peer="dst", bus_factor=_whole),
    CallSpec("recv", Flow.RECEIVE, "send_recv", (_gets("tensor"),), peer="src", bus_factor=_whole),
    CallSpec("send_object_list", Flow.SEND, "send_recv", (_gives("object_list", _SEVERAL),),
             peer="dst"),
    CallSpec("recv_object_list", Flow.RECEIVE, "send_recv", (_gets("object_list", _SEVERAL),),
             peer="src"),

    CallSpec("isend", Flow.SEND, "isend_irecv", (_gives("tensor"),),
             peer="dst", always_async=True, bus_factor=_whole),
    CallSpec("irecv", Flow.RECEIVE, "isend_irecv", (_gets("tensor"),),
             peer="src", always_async=True, bus_factor=_whole),

    CallSpec("broadcast", Flow.FROM_ROOT, "broadcast", (_replaces("tensor"),),
             peer="src", bus_factor=_whole),
    CallSpec("broadcast_object_list", Flow.FROM_ROOT, "broadcast",
             (_replaces("object_list", _SEVERAL),), peer="src", default_root=0),

    CallSpec("all_reduce", Flow.ALL_TO_ALL, "all_reduce", (_replaces("tensor"),),
             reduces=True, bus_factor=_twice),
    CallSpec("all_reduce_coalesced", Flow.ALL_TO_ALL, "all_reduce",
             (_replaces("tensors", _SEVERAL),), reduces=True, bus_factor=_twice),

    CallSpec("reduce", Flow.TO_ROOT, "reduce", (_replaces("tensor"),),
             peer="dst", reduces=True, bus_factor=_whole),

    CallSpec("all_gather", Flow.ALL_TO_ALL, "all_gather",
             (_gets("tensor_list", _LIST), _gives("tensor")), bus_factor=_others),
    CallSpec("all_gather_single", Flow.ALL_TO_ALL, "all_gather",
             (_gets("output_tensor", _CUT), _gives("input_tensor")),
             aliases=("all_gather_into_tensor", "_all_gather_base"), bus_factor=_others),
    CallSpec("all_gather_coalesced", Flow.ALL_TO_ALL, "all_gather",
             (_gets("output_tensor_lists", _SEVERAL), _gives("input_tensor_list", _SEVERAL)),
             bus_factor=_others),
    CallSpec("all_gather_object", Flow.ALL_TO_ALL, "all_gather",
             (_gets("object_list", _LIST), _gives("obj"))),

    CallSpec("gather", Flow.TO_ROOT, "gather", (_gives("tensor"), _gets("gather_list", _LIST)),
             peer="dst", default_root=0, bus_factor=_others),
    CallSpec("gather_single", Flow.TO_ROOT, "gather",
             (_gives("tensor"), _gets("gather_tensor", _CUT)), aliases=("gather_into_tensor",),
             peer="dst", default_root=0, bus_factor=_others),
    CallSpec("gather_object", Flow.TO_ROOT, "gather",
             (_gives("obj"), _gets("object_gather_list", _LIST)),
             peer="dst", default_root=0),

    CallSpec("scatter", Flow.FROM_ROOT, "scatter", (_gets("tensor"), _gives("scatter_list", _LIST)),
             peer="src", default_root=0, bus_factor=_others),
    CallSpec("scatter_object_list", Flow.FROM_ROOT, "scatter",
             (_gets("scatter_object_output_list"), _gives("scatter_object_input_list", _LIST)),
             peer="src", default_root=0),

    CallSpec("reduce_scatter", Flow.ALL_TO_ALL, "reduce_scatter",
             (_gets("output"), _gives("input_list", _LIST)), reduces=True, bus_factor=_others),
    CallSpec("reduce_scatter_single", Flow.ALL_TO_ALL, "reduce_scatter",
             (_gets("output"), _gives("input", _CUT)),
             aliases=("reduce_scatter_tensor", "_reduce_scatter_base"),
             reduces=True, bus_factor=_others),

    CallSpec("all_to_all", Flow.ALL_TO_ALL, "all_to_all",
             (_gets("output_tensor_list", _LIST), _gives("input_tensor_list", _LIST)),
             bus_factor=_others),
    CallSpec("all_to_all_single", Flow.ALL_TO_ALL, "all_to_all",
             (_gets("output", _CUT), _gives("input", _CUT)), bus_factor=_others),

    CallSpec("barrier", Flow.ALL_TO_ALL, "barrier"),
    CallSpec("monitored_barrier", Flow.ALL_TO_ALL, "barrier"),

    CallSpec("new_group", Flow.GROUP, "new_group"),
    CallSpec("split_group", Flow.GROUP, "new_group"),
    CallSpec("shrink_group", Flow.GROUP, None),
    CallSpec("init_process_group", Flow.GROUP, None),
    CallSpec("destroy_process_group", Flow.GROUP, None),
)
# fmt: on

CALLS: dict[str, CallSpec] = {spec.name: spec for spec in _RECORDS}

# The same records by every name that a call goes by.
BY_NAME: dict[str, CallSpec] = {name: spec for spec in _RECORDS for name in spec.names}

# The lessons that teach these calls, in the order in which the matrix shows them.
LESSONS: tuple[str, ...] = tuple(dict.fromkeys(spec.lesson for spec in _RECORDS if spec.lesson))


def _names_with(*flows: Flow) -> frozenset[str]:
    return frozenset(name for name, spec in BY_NAME.items() if spec.flow in flows)


# The names of all calls with this flow, aliases included.
SENDS = _names_with(Flow.SEND)
RECEIVES = _names_with(Flow.RECEIVE)
POINT_TO_POINT = SENDS | RECEIVES
FROM_ROOT = _names_with(Flow.FROM_ROOT)
TO_ROOT = _names_with(Flow.TO_ROOT)
ALL_TO_ALL = _names_with(Flow.ALL_TO_ALL)
GROUPS = _names_with(Flow.GROUP)
