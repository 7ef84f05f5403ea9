"""Join the world that a launcher started: make a group there, call the function, and give every rank every result."""

import contextlib
import datetime
import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.backends import availability as backends
from collectives.launcher import failure
from collectives.launcher import rank as ranks
from collectives.launcher.place import Place

# The store takes 8 MiB at a time.
_PIECE = 4 * 2**20

# A rank that is past its time limit and cannot raise is ended this much later, in seconds, so that the others can say why.
_LAST_WORD = 5.0

_launches = 0
_launcher_store = None


def join(
    place: Place, fn: Callable, args: tuple, backend: str | None, device: str | None, timeout: float
) -> list:
    """Call `fn` in this rank of the launcher's world; return all ranks' results. Every rank must call it."""
    global _launches
    caller_has_group = dist.is_initialized()
    backend, device = _choose(place, backend, device, caller_has_group)
    deadline = time.monotonic() + timeout
    surroundings = backends.environment(backend, place.local_world_size, place.one_machine)
    with _environment(surroundings):
        store = c10d._get_default_store() if caller_has_group else launcher_store(place, timeout)
    store = dist.PrefixStore(f"collectives/{_launches}", store)
    _launches += 1
    group_store = None if caller_has_group else store
    with _environment(surroundings), _time_limit(place, store, timeout):
        try:
            result = _call(place, fn, args, backend, device, timeout, group_store)
            _put(store, place.rank, result)
            if group_store is not None:
                ranks.leave_group(store)
        except Exception as error:
            if time.monotonic() < deadline and store.add("failures", 1) == 1:
                store.set("first", cloudpickle.dumps((place.rank, ranks.describe(error))))
            raise _verdict(place, store, timeout) from error
        finally:
            if (
                group_store is not None and dist.is_initialized()
            ):  # a failure: this breaks the connections that others wait on
                dist.destroy_process_group()
        while not store.check([_last(rank) for rank in range(place.world_size)]):
            if store.check(["first"]) or time.monotonic() > deadline:
                raise _verdict(place, store, timeout)
            time.sleep(0.002)
        return _get_all(place, store)


def _choose(
    place: Place, backend: str | None, device: str | None, caller_has_group: bool
) -> tuple[str, str]:
    if caller_has_group:
        current = dist.get_backend()
        if backend not in (None, current):
            raise ValueError(
                f"backend={backend!r}, but the caller's process group is {current}: leave backend out."
            )
        backend = current
    return backends.choose(backend or place.backend, device, place.local_world_size)


def launcher_store(place: Place, timeout: float):
    """The launcher's own store, opened once. Each launch uses it under a prefix of its own: keys are never used twice."""
    global _launcher_store
    if _launcher_store is None:
        patience = datetime.timedelta(seconds=timeout)
        where = "mpi://" if place.launcher == "mpiexec" else "env://"
        _launcher_store, _, _ = next(dist.rendezvous(where, timeout=patience))
    return _launcher_store


@contextlib.contextmanager
def _environment(values: dict[str, str]):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _time_limit(place: Place, store, timeout: float):
    """At the limit tell the others where this rank stands; if it cannot even raise, end it with its stack on stderr."""

    def post_stack():
        with tempfile.TemporaryFile() as file, contextlib.suppress(dist.DistError):
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            store.set(f"stack/{place.rank}", file.read())

    post = threading.Timer(timeout, post_stack)
    post.daemon = True
    post.start()
    faulthandler.dump_traceback_later(timeout + _LAST_WORD, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        post.cancel()
        faulthandler.cancel_dump_traceback_later()


def _call(
    place: Place, fn: Callable, args: tuple, backend: str, device: str, timeout: float, store
) -> bytes:
    """Run `fn` in a group of its own, or in the caller's where `store` is None; return its pickled result."""
    where = backends.rank_device(device, place.local_rank)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if store is not None:
        patience = datetime.timedelta(seconds=timeout)
        ranks.enter_group(backend, store, place.rank, place.world_size, patience)
    ranks.inside = True
    try:
        return ranks.dump_result(fn(place.rank, place.world_size, where, *args))
    finally:
        ranks.inside = False


def _last(rank: int) -> str:
    return f"pieces/{rank}"


def _put(store, rank: int, result: bytes) -> None:
    starts = range(0, len(result), _PIECE)
    for number, start in enumerate(starts):
        store.set(f"piece/{rank}/{number}", result[start : start + _PIECE])
    store.set(_last(rank), str(len(starts)))


def _get_all(place: Place, store) -> list:
    pieces = {rank: int(store.get(_last(rank))) for rank in range(place.world_size)}
    keys = {
        rank: [f"piece/{rank}/{number}" for number in range(count)]
        for rank, count in pieces.items()
    }
    results = [
        cloudpickle.loads(b"".join(store.get(key) for key in keys[rank]))
        for rank in range(place.world_size)
    ]
    if (
        store.add("read", 1) == place.world_size
    ):  # the last reader tidies up: the store may live long after this launch
        for key in (key for rank in keys for key in keys[rank]):
            store.delete_key(key)
    return results


def _verdict(place: Place, store, timeout: float) -> failure.LaunchError:
    """The same for every rank: the exception that came first, else where each rank stood when time was up."""
    if store.check(["first"]) or store.add("failures", 0):
        rank, first = cloudpickle.loads(store.get("first"))
        return failure.raised(rank, first["summary"], first["traceback"])
    returned = [rank for rank in range(place.world_size) if store.check([_last(rank)])]
    stacks = {rank: "" for rank in range(place.world_size) if rank not in returned}
    until = time.monotonic() + _LAST_WORD / 2
    while (silent := [rank for rank in stacks if not stacks[rank]]) and time.monotonic() < until:
        for rank in silent:
            if store.check([f"stack/{rank}"]):
                stacks[rank] = store.get(f"stack/{rank}").decode(errors="replace")
        time.sleep(0.01)
    return failure.hung(timeout, stacks, returned)
