"""Read a call's arguments: its group, root or peer, reduction, shapes, dtypes and split sizes."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace

from torch.distributed import distributed_c10d as c10d

from ..semantics.calls import BY_NAME, CALLS, GROUPS, POINT_TO_POINT
from . import argument_values
from .call import MADE_BY, WORLD, CallArgs, group_label, requested_place, sequence_key

# Parameters that are numbers, or lists of them.
_NUMBERS = {
    *(word for spec in CALLS.values() if spec.peer for word in (spec.peer, f"group_{spec.peer}")),
    *("tag", "output_split_sizes", "input_split_sizes", "ranks", "split_ranks"),
}

# As many different calls of a program, and as many waits, are kept.
_KEPT = 4096


class Parameters:
    """The parameters of one function of torch.distributed, read once when it is wrapped."""

    def __init__(self, name: str, function: Callable):
        parameters = inspect.signature(function).parameters
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
        self.counters: dict[tuple, list[int]] = {}
        self.known: dict[tuple, tuple[CallArgs, list[int] | None]] = {}  # with the call's counter

    def read(
        self, parameters: Parameters, given: dict, caller: tuple[str, int, str]
    ) -> tuple[int | None, CallArgs] | None:
        """The call's seq and what it asks for.

        None where this rank is not a member of the group: then the call does nothing.
        """
        key = None
        for word in parameters.numbers:
            if word in given:
                given[word] = argument_values.plain_number(given[word])
        if parameters.name in GROUPS:
            self.groups.clear()
            self.known.clear()
        elif not parameters.spec.objects:  # whose arguments may not be hashable
            signatures = map(argument_values.signature, given.values())
            key = (parameters.name, caller, *given, *signatures)
        known = None if key is None else self.known.get(key)
        if known is None:
            call_args = self._read(parameters, given, caller)
            if call_args is None:
                return None
            known = call_args, self._counter(call_args)
            if key is not None:
                if len(self.known) >= _KEPT:  # a program whose calls never repeat
                    self.known.clear()
                self.known[key] = known
        call_args, counter = known
        if counter is None:
            return None, call_args
        seq = counter[0]
        counter[0] = seq + 1
        return seq, call_args

    def _counter(self, call_args: CallArgs) -> list[int] | None:
        if call_args.name in POINT_TO_POINT or call_args.name == "destroy_process_group":
            return None
        return self.counters.setdefault(sequence_key(call_args.group, call_args.name), [0])

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
            backend, device, gaps = argument_values.served_by(handle, spec, given)
            group_name = _group_name(handle)
        if given.get("timeout"):
            timeout = given["timeout"].total_seconds()
        return CallArgs(
            name=name,
            group=group,
            members=members,
            peer=_peer(parameters, given, members),
            op=argument_values.op_name(given["op"]) if "op" in given else None,
            tag=given.get("tag"),
            tensors=argument_values.buffer_kinds(spec, given),
            splits=argument_values.splits(given) if parameters.has_splits else None,
            ranks=ranks,
            is_async=spec.always_async or bool(given.get("async_op")),
            timeout=timeout,
            backend=backend,
            device=device,
            gaps=gaps,
            group_name=group_name,
            **_place(caller),
        )

    def take_back(self, seq: int | None, call_args: CallArgs) -> None:
        """torch refused the call: the next call of the group gets its seq."""
        counter = self._counter(call_args)
        if counter and seq is not None and counter[0] == seq + 1:
            counter[0] = seq

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
