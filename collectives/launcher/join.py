"""Join the world that a launcher started: call the function, and give every rank all results."""

import contextlib
import datetime
import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.backends import availability as backends
from collectives.launcher import failure
from collectives.launcher import rank as ranks
from collectives.launcher.place import Place

# Bytes of one value in the store, which takes at most 8 MiB.
_PIECE = 4 * 2**20

# A rank that has passed its time limit and cannot raise is ended this many seconds later. Until
# then the others can read its stack.
_GRACE = 5.0

_launches = 0
_launcher_store = None


def join(
    place: Place, fn: Callable, args: tuple, backend: str | None, device: str | None, timeout: float
) -> list:
    """Call `fn` in this rank of the launcher's world; return the results of all ranks.

    Every rank must call it.
    """
    caller_has_group = dist.is_initialized()
    backend, device = _choose(place, backend, device, caller_has_group)
    deadline = time.monotonic() + timeout
    variables = backends.rank_environment(backend, place.local_world_size, place.one_machine)
    variables |= place.environment
    with _environment(variables):
        store = _new_store(place, caller_has_group, timeout)
    with _environment(variables), _time_limit(place, store, timeout):
        group_store = None if caller_has_group else store
        try:
            result = _call(place, fn, args, backend, device, timeout, group_store)
            _put(store, place.rank, result)
            if group_store is not None:
                ranks.leave_group(store)
        except Exception as error:
            if time.monotonic() < deadline and store.add("failures", 1) == 1:
                store.set("first", cloudpickle.dumps((place.rank, ranks.describe(error))))
            raise _failure(place, store, timeout) from error
        finally:
            # After a failure this breaks the connections that other ranks wait on.
            if group_store is not None and dist.is_initialized():
                dist.destroy_process_group()
        while not store.check([_count_key(rank) for rank in range(place.world_size)]):
            if store.check(["first"]) or time.monotonic() > deadline:
                raise _failure(place, store, timeout)
            if place.uses_mpi:
                _let_mpi_progress()
            time.sleep(0.002)
        return _get_all(place, store)


def _new_store(place: Place, caller_has_group: bool, timeout: float) -> dist.PrefixStore:
    """The store of the caller's group, or else of the launcher, under a prefix for this launch."""
    global _launches
    store = c10d._get_default_store() if caller_has_group else launcher_store(place, timeout)
    store = dist.PrefixStore(f"collectives/{_launches}", store)
    _launches += 1
    return store


def _choose(
    place: Place, backend: str | None, device: str | None, caller_has_group: bool
) -> tuple[str, str]:
    if caller_has_group:
        current = dist.get_backend()
        if backend not in (None, current):
            raise ValueError(
                f"backend={backend!r}, but the caller's process group is {current}: "
                "leave backend out."
            )
        backend = current
    return backends.choose(backend or place.backend, device, place.local_world_size)


def launcher_store(place: Place, timeout: float) -> dist.Store:
    """The launcher's own store, opened once. Give it a prefix: keys must never be used twice."""
    global _launcher_store
    if _launcher_store is None:
        patience = datetime.timedelta(seconds=timeout)
        if place.launcher == "srun":
            _launcher_store = _store_of_step(place, patience)
        else:
            where = "mpi://" if place.uses_mpi else "env://"
            _launcher_store, _, _ = next(dist.rendezvous(where, timeout=patience))
    return _launcher_store


def _store_of_step(place: Place, patience: datetime.timedelta) -> dist.TCPStore:
    """srun has no store for its ranks: rank 0 makes one, where the others expect it.

    It listens on loopback if all ranks are on one machine, else on all addresses, as torchrun's.
    """
    host, port = place.meeting
    options = {"wait_for_workers": False, "timeout": patience}
    if place.rank:
        return dist.TCPStore(host, port, is_master=False, **options)
    listens_on = host if place.one_machine else ""
    try:
        listener = socket.create_server((listens_on, port), backlog=max(128, place.world_size))
    except OSError as error:
        raise ValueError(
            f"rank 0 cannot open the store of this Slurm step at port {port}: {error.strerror}. "
            "Choose another port: export MASTER_ADDR and MASTER_PORT before srun."
        ) from error
    fd = listener.detach()
    return dist.TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=fd, **options)


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
def _time_limit(place: Place, store: dist.Store, timeout: float) -> Iterator[None]:
    """At the limit, give the others this rank's stack. A rank that does not raise then is ended.

    It is ended _GRACE seconds after the limit, with its stack on stderr.
    """

    def post_stack():
        with tempfile.TemporaryFile() as file, contextlib.suppress(dist.DistError):
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            store.set(f"stack/{place.rank}", file.read())

    timer = threading.Timer(timeout, post_stack)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(timeout + _GRACE, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def _call(
    place: Place,
    fn: Callable,
    args: tuple,
    backend: str,
    device: str,
    timeout: float,
    store: dist.Store | None,
) -> bytes:
    """Call `fn` in a new group (`store` is None: the caller's); return its pickled result."""
    own_device = backends.rank_device(device, place.local_rank)
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device)
    if store is not None:
        patience = datetime.timedelta(seconds=timeout)
        ranks.enter_group(backend, store, place.rank, place.world_size, patience)
    ranks.inside = True
    try:
        return ranks.dump_result(fn(place.rank, place.world_size, own_device, *args))
    finally:
        ranks.inside = False


def _let_mpi_progress() -> None:
    """Another rank's send may still wait for this rank to acknowledge it."""
    from collectives.backends.mpi import library

    library.progress()


def _count_key(rank: int) -> str:
    """The key of the number of pieces of a rank's result, which is set last."""
    return f"pieces/{rank}"


def _put(store: dist.Store, rank: int, result: bytes) -> None:
    starts = range(0, len(result), _PIECE)
    for number, start in enumerate(starts):
        store.set(f"piece/{rank}/{number}", result[start : start + _PIECE])
    store.set(_count_key(rank), str(len(starts)))


def _get_all(place: Place, store: dist.Store) -> list:
    keys = []
    for rank in range(place.world_size):
        count = int(store.get(_count_key(rank)))
        keys.append([f"piece/{rank}/{number}" for number in range(count)])
    results = [cloudpickle.loads(b"".join(map(store.get, own_keys))) for own_keys in keys]
    # The last reader tidies up, because the store may live long after this launch.
    if store.add("read", 1) == place.world_size:
        for own_keys in keys:
            for key in own_keys:
                store.delete_key(key)
    return results


def _failure(place: Place, store: dist.Store, timeout: float) -> failure.LaunchError:
    """The first exception, or else where each rank stood when time was up: alike in all ranks."""
    if store.check(["first"]) or store.add("failures", 0):
        rank, first = cloudpickle.loads(store.get("first"))
        return failure.raised(rank, first["summary"], first["traceback"])
    returned = [rank for rank in range(place.world_size) if store.check([_count_key(rank)])]
    missing = [rank for rank in range(place.world_size) if rank not in returned]
    return failure.hung(timeout, _posted_stacks(store, missing), returned)


def _posted_stacks(store: dist.Store, missing: list[int]) -> dict[int, str]:
    """The stacks that these ranks post at their time limit; "" for a rank that does not."""
    stacks = dict.fromkeys(missing, "")
    until = time.monotonic() + _GRACE / 2
    while "" in stacks.values() and time.monotonic() < until:
        for rank, stack in stacks.items():
            if not stack and store.check([f"stack/{rank}"]):
                stacks[rank] = store.get(f"stack/{rank}").decode(errors="replace")
        time.sleep(0.01)
    return stacks
