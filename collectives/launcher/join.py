"""Join the world that a launcher started: call the function, and give every rank all results."""

import contextlib
import datetime
import faulthandler
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.backends import availability
from collectives.launcher import call_record, failure, rank
from collectives.launcher.store import launcher_store
from collectives.launcher.worker import Worker
from collectives.launcher.world import World

# A rank that has passed its time limit and cannot raise is ended this many seconds later. Until
# then the others can read its stack.
_GRACE = 5.0

_launches = 0


def join(
    world: World,
    worker: Worker,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    record: str | None,
) -> call_record.Results:
    """Call `fn` in this rank of the launcher's world; return the results of all ranks.

    Every rank must call it. A LaunchError tells what this rank called, if that is recorded.
    """
    memory = call_record.memory_for(record)
    recorded = functools.partial(call_record.call_recorded, memory, fn)
    try:
        returned = _join(world, worker, recorded, args)
    except failure.LaunchError as error:
        if memory is not None:
            error.calls = memory.calls(worker.rank)
            error.risky_calls = memory.risky_calls(worker.rank)
        raise
    return call_record.results(returned, record)


def _join(world: World, worker: Worker, fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    caller_has_group = dist.is_initialized()
    timeout = world.timeout
    deadline = time.monotonic() + timeout
    results = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(worker.environment | world.environment))
        store = _new_store(worker, caller_has_group, timeout)
        stack.enter_context(_time_limit(worker, store, timeout))
        group_store = None if caller_has_group else store
        try:
            result = _call(world, worker, fn, args, group_store)
            store.set(_returned_key(worker.rank), "group" if dist.is_initialized() else "no group")
            if _all_return(worker, store, deadline):
                results = _exchange(world, worker, result, group_store)
                if group_store is not None:
                    rank.leave_group(store)
        except Exception as error:
            if time.monotonic() < deadline:
                _publish_failure(worker, store, error)
            raise _failure(worker, store, timeout) from error
        finally:
            if group_store is not None and dist.is_initialized():
                _let_all_enter(group_store, deadline)
                # After a failure this breaks the connections that other ranks wait on.
                dist.destroy_process_group()
        if results is None:
            raise _failure(worker, store, timeout)
    return failure.unpickled(results)


def _new_store(worker: Worker, caller_has_group: bool, timeout: float) -> dist.PrefixStore:
    """The store of the caller's group, or else of the launcher, under a prefix for this launch."""
    global _launches
    store = c10d._get_default_store() if caller_has_group else launcher_store(worker, timeout)
    store = dist.PrefixStore(f"collectives/{_launches}", store)
    _launches += 1
    return store


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _time_limit(worker: Worker, store: dist.Store, timeout: float) -> Iterator[None]:
    """At the limit, give the others this rank's stack. A rank that does not raise then is ended.

    It is ended _GRACE seconds after the limit, with its stack on stderr.
    """

    def post_stack() -> None:
        with contextlib.suppress(dist.DistError, OSError), tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            store.set(f"stack/{worker.rank}", file.read().decode(errors="replace"))

    timer = threading.Timer(timeout, post_stack)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(timeout + _GRACE, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def _call(
    world: World,
    worker: Worker,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    store: dist.Store | None,
) -> bytes:
    """Call `fn` in a new group (`store` is None: the caller's); return its pickled result."""
    own_device = availability.rank_device(world.device, worker.local_rank)
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device)
    if store is not None:
        _enter_group(world, worker, store)
    rank.inside = True
    try:
        return rank.dump_result(fn(worker.rank, worker.world_size, own_device, *args))
    finally:
        rank.inside = False


def _enter_group(world: World, worker: Worker, store: dist.Store) -> None:
    patience = datetime.timedelta(seconds=world.timeout)
    rank.enter_group(world.backend, store, worker.rank, worker.world_size, patience)


def _returned_key(number: int) -> str:
    return f"returned/{number}"


def _all_return(worker: Worker, store: dist.Store, deadline: float) -> bool:
    """Wait until every rank has returned; False if one fails, or at the deadline."""
    while not store.check([_returned_key(number) for number in range(worker.world_size)]):
        if store.check(["first"]) or time.monotonic() > deadline:
            return False
        if worker.uses_mpi:
            from collectives.process_groups.mpi import library

            library.progress()  # another rank's send may wait for this rank to acknowledge it
        time.sleep(0.002)
    return True


def _let_all_enter(store: dist.Store, deadline: float) -> None:
    """Wait until no rank is still connecting to this one.

    subtle: a rank whose init_process_group fails gives its next group another name than the others
    do, and the world cannot be used again.
    """
    until = min(deadline, time.monotonic() + _GRACE)
    while not store.check(["all have entered"]) and time.monotonic() < until:
        time.sleep(0.002)


def _exchange(world: World, worker: Worker, result: bytes, store: dist.Store | None) -> list[bytes]:
    """The pickled results of all ranks, over the process group.

    Not through the store, to which others may have access: whoever writes a pickle there would
    execute code in the ranks. `store` is None for a group of the caller's.
    """
    if store is not None and any(
        store.get(_returned_key(number)) == b"no group" for number in range(worker.world_size)
    ):  # the function has destroyed it
        if dist.is_initialized():
            dist.destroy_process_group()
        _enter_group(world, worker, dist.PrefixStore("results", store))
    results: list[Any] = [None] * worker.world_size
    dist.all_gather_object(results, result)
    return results


def _publish_failure(worker: Worker, store: dist.Store, error: Exception) -> None:
    if store.add("failures", 1) == 1:
        store.set("first", json.dumps([worker.rank, *rank.describe(error)]))


def _failure(worker: Worker, store: dist.Store, timeout: float) -> failure.LaunchError:
    """The first exception, or else where each rank stood when time was up: alike in all ranks."""
    if store.check(["first"]) or store.add("failures", 0):
        return _first_failure(worker, store)
    everyone = range(worker.world_size)
    returned = [number for number in everyone if store.check([_returned_key(number)])]
    missing = [number for number in everyone if number not in returned]
    return failure.hung(timeout, _posted_stacks(store, missing), returned)


def _first_failure(worker: Worker, store: dist.Store) -> failure.LaunchError:
    try:
        number, *words, at = json.loads(store.get("first"))
        if number in range(worker.world_size):
            error_type, error_text, trace = map(str, words)
            return failure.raised(number, failure.Raised(error_type, error_text, trace, at))
    except (TypeError, ValueError):
        pass
    return failure.LaunchError(
        "a rank failed, or a process that is no rank has written into the launcher's store: what "
        "is noted there cannot be read",
        rank=worker.rank,
        kind="raised",
    )


def _posted_stacks(store: dist.Store, missing: list[int]) -> dict[int, str]:
    """The stacks that these ranks post at their time limit; "" for a rank that does not."""
    stacks = dict.fromkeys(missing, "")
    until = time.monotonic() + _GRACE / 2
    while "" in stacks.values() and time.monotonic() < until:
        for number, stack in stacks.items():
            if not stack and store.check([f"stack/{number}"]):
                stacks[number] = store.get(f"stack/{number}").decode(errors="replace")
        time.sleep(0.01)
    return stacks
