"""Read a call's arguments as plain data: its group, peer, reduction, tensors by kind, and sizes."""

import contextlib
import functools
import inspect
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..semantics.calls import BY_NAME, CALLS, GROUPS, POINT_TO_POINT, CallSpec, Layout
from .call import (
    MADE_BY,
    WORLD,
    CallArgs,
    TensorKind,
    group_label,
    requested_place,
    sequence_key,
)
from .counter import Counter, messages_in

# Parameters that are numbers, or lists of them.
_NUMBERS = {
    *(word for spec in CALLS.values() if spec.peer for word in (spec.peer, f"group_{spec.peer}")),
    *("tag", "output_split_sizes", "input_split_sizes", "ranks", "split_ranks"),
}

# As many different calls of a program, and as many waits, are kept.
_KEPT = 4096


@dataclass(frozen=True)
class TensorFacts:
    """What is noted of a tensor, where a call makes it itself."""

    dtype: torch.dtype
    shape: torch.Size
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorFacts":
        return cls(tensor.dtype, tensor.shape, tensor.device)


class Parameters:
    """The parameters of one function of torch.distributed, read once when it is wrapped."""

    def __init__(self, name: str, function: Callable, is_functional: bool = False):
        parameters = inspect.signature(function).parameters
        self.is_functional = is_functional
        self.name = name
        self.spec = BY_NAME[name]
        self.names = tuple(parameters)
        self.numbers = frozenset(_NUMBERS.intersection(parameters))
        self.defaults = {
            word: parameters[word].default for word in ("op", "tag") if word in parameters
        }
        self.has_splits = "output_split_sizes" in parameters


class Reader:
    """Reads calls one after another, and counts each group's collectives.

    A line of a program usually makes the same call again. Then `read` returns the same CallArgs,
    which it finds by facts that cost little to look up.
    """

    def __init__(self):
        self.groups: dict[str, tuple[tuple[int, ...], float | None]] = {}
        self.worlds = 0  # how many this process has joined, one after another, in the same place
        self.place = (-1, -1)
        self.counters: dict[tuple, Counter] = {}
        # With the call's counter, and of how many messages it consists.
        self.known: dict[tuple, tuple[CallArgs, Counter | None, int]] = {}

    def read(
        self, parameters: Parameters, given: dict, caller: tuple[str, int, str]
    ) -> tuple[int | None, int | None, CallArgs] | None:
        """The call's seq, torch's number for it, and what it asks for.

        None where this rank is not a member of the group: then the call does nothing.
        """
        key = None
        for word in parameters.numbers:
            if word in given:
                given[word] = _plain_number(given[word])
        if parameters.name in GROUPS:
            self.groups.clear()
            self.known.clear()
        elif not parameters.spec.objects:  # whose arguments may not be hashable
            signatures = map(_signature, given.values())
            key = (parameters, caller, *given, *signatures)
        known = None if key is None else self.known.get(key)
        if known is None:
            call_args = self._read(parameters, given, caller)
            if call_args is None:
                return None
            known = call_args, *self._counted(call_args, given)
            if key is not None:
                if len(self.known) >= _KEPT:  # a program whose calls never repeat
                    self.known.clear()
                self.known[key] = known
        call_args, counter, messages = known
        if counter is None:
            return None, None, call_args
        numbers: tuple[int | None, int | None] = None, None
        if not messages or call_args.name not in POINT_TO_POINT:
            numbers = counter.next()
        if messages:
            counter.note_messages(messages, is_collective=numbers[0] is not None)
        return *numbers, call_args

    def _counted(self, call_args: CallArgs, given: dict) -> tuple[Counter | None, int]:
        """The counter of the call's group, and how many messages the call consists of."""
        name = call_args.name
        if name == "destroy_process_group":
            return None, 0
        counter = self.counters.setdefault(sequence_key(call_args.group, name), Counter())
        if name not in GROUPS:
            counter.bind(given.get("group") or c10d.GroupMember.WORLD)
        members = call_args.members
        is_first = name == "monitored_barrier" and members[:1] == (dist.get_rank(),)
        return counter, messages_in(name, is_first, len(members))

    def _read(
        self, parameters: Parameters, given: dict, caller: tuple[str, int, str]
    ) -> CallArgs | None:
        name, spec, given = parameters.name, parameters.spec, parameters.defaults | given
        ranks = timeout = None
        backend, device, gaps, group_name = "", "", False, ""
        if name in GROUPS:
            group, members, ranks = self._group_made(name, given)
        else:
            handle = given.get("group")
            if handle is c10d.GroupMember.NON_GROUP_MEMBER:
                return None
            group, members, timeout = self._group(handle)
            backend, device, gaps = _served_by(handle, spec, given)
            group_name = _group_name(handle)
        if given.get("timeout"):
            timeout = given["timeout"].total_seconds()
        return CallArgs(
            name=name,
            group=group,
            members=members,
            peer=_peer(parameters, given, members),
            op=_op_name(given["op"]) if "op" in given else None,
            tag=given.get("tag"),
            tensors=_buffer_kinds(spec, given),
            splits=_splits(given) if parameters.has_splits else None,
            ranks=ranks,
            is_async=spec.always_async or parameters.is_functional or bool(given.get("async_op")),
            timeout=timeout,
            backend=backend,
            device=device,
            gaps=gaps,
            shares=_share_storage(spec, given),
            is_functional=parameters.is_functional,
            way=given.get("way", ""),
            group_name=group_name,
            **_place(caller),
        )

    def take_back(self, seq: int | None, call_args: CallArgs) -> None:
        """torch refused the call: the next call of the group gets its seq."""
        counter, messages = self._counted(call_args, {})
        if counter is not None:
            counter.take_back(seq, messages)

    def _group(self, handle) -> tuple[str, tuple[int, ...], float | None]:
        """The group's name, its members, and its time limit in seconds."""
        world = c10d.GroupMember.WORLD
        handle = world if handle is None else handle
        if handle is None:  # there is no group yet: torch will refuse the call
            return WORLD, (), None
        name = handle.group_name
        if name not in self.groups:
            self.groups[name] = (
                tuple(map(int, c10d.get_process_group_ranks(handle))),
                _time_limit(handle),
            )
        return (WORLD if handle is world else group_label(name, self.worlds)), *self.groups[name]

    def _group_made(self, name: str, given: dict) -> tuple[str, tuple[int, ...], tuple | None]:
        """The group whose members must make this call, these members, and the new groups' ranks."""
        if name == "init_process_group":
            if self.place != (place := requested_place(given)):  # other ranks than before
                self.place, self.worlds = place, 0
                self.counters.clear()
            self.worlds += 1
            for counter in self.counters.values():
                counter.forget_group()
            return WORLD, tuple(range(place[1])), None
        group, members, _ = self._group(given.get("group") or given.get("parent_pg"))
        if name == "split_group":
            return group, members, tuple(tuple(ranks) for ranks in given.get("split_ranks") or ())
        if name != "new_group":
            return group, members, None
        ranks = given.get("ranks")
        if ranks is None:
            ranks = members
        else:
            ranks = tuple(sorted(ranks) if given.get("sort_ranks", True) else ranks)
        if given.get("use_local_synchronization"):  # then only its members make the group
            return f"{MADE_BY}{','.join(map(str, ranks))}", ranks, (ranks,)
        return group, members, (ranks,)


def _place(caller: tuple[str, int, str]) -> dict:
    return dict(zip(("file", "line", "function"), caller, strict=True))


@functools.lru_cache(_KEPT)
def wait_for(call_args: CallArgs, caller: tuple[str, int, str]) -> CallArgs:
    """What a wait for the Work of this call asks for."""
    place = _place(caller)
    return replace(call_args, name="wait", awaited=call_args.name, is_async=False, **place)


def _group_name(group) -> str:
    """What the program calls it; torch names the groups of a mesh mesh_<dimension>."""
    description = getattr(group, "group_desc", "")
    named = description not in ("undefined", "default_pg")
    return description.removeprefix("mesh_") if named else ""


def _time_limit(group) -> float | None:
    with contextlib.suppress(Exception):  # a backend of another kind may have none
        return min(
            group._get_backend(device).options._timeout.total_seconds()
            for device in group._device_types
        )
    return None


def _peer(parameters: Parameters, given: dict, members: tuple[int, ...]) -> int | None:
    """The global rank of the root or the peer; for init_process_group, the rank that it names."""
    if parameters.name == "init_process_group":
        return given["rank"] if given.get("rank", -1) >= 0 else None
    spec = parameters.spec
    if spec.peer is None:
        return None
    if given.get(spec.peer) is not None:
        return given[spec.peer]
    if (rank_in_group := given.get(f"group_{spec.peer}")) is not None:
        return members[rank_in_group]
    return spec.default_root


def _buffer_tensors(spec: CallSpec, given: dict) -> list[torch.Tensor | TensorFacts]:
    """The tensors that the call was given, in the order of torch's parameters."""
    found: list[torch.Tensor | TensorFacts] = []
    for buffer in spec.buffers:
        _collect(given.get(buffer.parameter), found)
    return found


def _collect(value, tensors: list[torch.Tensor | TensorFacts]) -> None:
    if isinstance(value, torch.Tensor | TensorFacts):
        tensors.append(value)
    elif isinstance(value, list | tuple):
        for element in value:
            _collect(element, tensors)


def _buffer_kinds(spec: CallSpec, given: dict) -> tuple[TensorKind, ...]:
    """Of each tensor that the call was given; one for each list of objects.

    Objects are counted only where every rank must pass the same number of them. Their types do not
    matter: each rank may pass any.
    """
    if not spec.objects:
        return tuple(_kind(tensor.dtype, tensor.shape) for tensor in _buffer_tensors(spec, given))
    return tuple(
        TensorKind("object", (len(given[buffer.parameter]),))
        for buffer in spec.buffers
        if buffer.layout is Layout.SEVERAL and buffer.parameter in given
    )


@functools.lru_cache(10_000)
def _kind(dtype: torch.dtype, shape: torch.Size) -> TensorKind:
    return TensorKind(str(dtype).removeprefix("torch."), tuple(shape))


def _signature(value):
    """Two arguments with the same signature ask for the same."""
    if isinstance(value, torch.Tensor):
        try:
            return value.dtype, value.shape, value.is_contiguous()
        except RuntimeError:  # a sparse tensor of some kind
            return value.dtype, value.shape
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    return value


def _plain_number(value):
    """A number, or a list of numbers, as Python's own int: torch also takes numpy's and tensors."""
    if value is None or type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:  # it is a list, or an array
        return [_plain_number(element) for element in value]


def _op_name(op) -> str:
    name = getattr(op, "name", None)  # a ReduceOp with a factor has none
    return name or next(
        (name for name, known in c10d.ReduceOp.RedOpType.__members__.items() if op == known),
        str(op),
    )


def _splits(given: dict) -> tuple:
    """Of all_to_all_single: the sizes of the output's pieces and of the input's; None if equal."""
    both = (given.get(word) for word in ("output_split_sizes", "input_split_sizes"))
    return tuple(tuple(sizes) if sizes else None for sizes in both)


def _served_by(group, spec: CallSpec, given: dict) -> tuple[str, str, bool]:
    """The backend, the type of the first tensor's device, and whether a single tensor has gaps.

    Texts are empty where there is no tensor, or where torch does not say.
    """
    tensors = _buffer_tensors(spec, given)
    if not tensors:
        return "", "", False
    device = tensors[0].device
    # Tensors in a list do not count: torch copies them.
    single = [given.get(buffer.parameter) for buffer in spec.buffers]
    gaps = any(_has_gaps(tensor) for tensor in single if isinstance(tensor, torch.Tensor))
    with contextlib.suppress(Exception):  # a backend of another kind may not know its name
        found: Any = group or c10d.GroupMember.WORLD
        return found._get_backend(device).name(), device.type, gaps
    return "", device.type, gaps


def _share_storage(spec: CallSpec, given: dict) -> bool:
    """Whether tensors of a list that the call fills overlap in memory."""
    for buffer in spec.buffers:
        if not buffer.gets or buffer.layout is not Layout.LIST or spec.objects:
            continue
        tensors = [one for one in given.get(buffer.parameter) or () if one.is_contiguous()]
        with contextlib.suppress(RuntimeError):  # a tensor without memory of its own
            spans = sorted((one.data_ptr(), one.nbytes) for one in tensors if one.numel())
            return any(at + size > then for (at, size), (then, _) in itertools.pairwise(spans))
    return False


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether its elements do not fill the memory between the first and the last of them."""
    # torch makes a like tensor with the same strides, transposed or not, only if there are no gaps.
    return (
        tensor.layout is torch.strided
        and torch.empty_like(tensor, device="meta").stride() != tensor.stride()
    )
