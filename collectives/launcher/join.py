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
from collectives.launcher.worker import Worker, launcher_store
from collectives.launcher.world import World
from collectives.recording.ending import Ending

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
        with _environment(worker.environment | world.environment):
            returned = _Launch(world, worker).run(recorded, args)
    except failure.LaunchError as error:
        if memory is not None:
            error.calls = memory.calls(worker.rank)
            error.risky_calls = memory.risky_calls(worker.rank)
        raise
    return call_record.results(returned, record)


class _Launch:
    """One launch, as this rank of the launcher's world sees it."""

    def __init__(self, world: World, worker: Worker):
        global _launches
        self.world, self.worker = world, worker
        self.everyone = range(worker.world_size)
        self.deadline = time.monotonic() + world.timeout
        self.has_own_group = not dist.is_initialized()  # else the caller has one
        # Of the caller's group, or else of the launcher; under a prefix for this launch.
        store = (
            launcher_store(worker, world.timeout)
            if self.has_own_group
            else c10d._get_default_store()
        )
        self.store = dist.PrefixStore(f"collectives/{_launches}", store)
        _launches += 1

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        results = None
        with self._time_limit():
            try:
                result = self._call(fn, args)
                group = "group" if dist.is_initialized() else "no group"
                self.store.set(_returned_key(self.worker.rank), group)
                if self._all_return():
                    results = self._exchange(result)
                    if self.has_own_group:
                        rank.leave_group(self.store)
            except Exception as error:
                if time.monotonic() < self.deadline:
                    self._publish_failure(error)
                raise self._failure() from error
            finally:
                if self.has_own_group and dist.is_initialized():
                    self._let_all_enter()
                    # After a failure this breaks the connections that other ranks wait on.
                    dist.destroy_process_group()
            if results is None:
                raise self._failure()
        return failure.unpickled(results)

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        """At the limit, give the others this rank's stack. If it does not raise then, it is ended.

        It is ended _GRACE seconds after the limit, with its stack on stderr.
        """

        def post_stack() -> None:
            with contextlib.suppress(dist.DistError, OSError), tempfile.TemporaryFile() as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                stack = file.read().decode(errors="replace")
                self.store.set(f"stack/{self.worker.rank}", stack)

        limit = self.world.timeout
        timer = threading.Timer(limit, post_stack)
        timer.daemon = True
        timer.start()
        faulthandler.dump_traceback_later(limit + _GRACE, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
        """Call `fn` in a group; return its pickled result."""
        own_device = availability.rank_device(self.world.device, self.worker.local_rank)
        if own_device.type == "cuda":
            torch.cuda.set_device(own_device)
        if self.has_own_group:
            self._enter_group(self.store)
        rank.inside = True
        try:
            return rank.dump_result(fn(self.worker.rank, self.world.nproc, own_device, *args))
        finally:
            rank.inside = False

    def _enter_group(self, store: dist.Store) -> None:
        patience = datetime.timedelta(seconds=self.world.timeout)
        rank.enter_group(self.world.backend, store, self.worker.rank, self.world.nproc, patience)

    def _all_return(self) -> bool:
        """Wait until every rank has returned; False if one fails, or at the deadline."""
        while not self.store.check([_returned_key(number) for number in self.everyone]):
            if self.store.check(["first"]) or time.monotonic() > self.deadline:
                return False
            if self.worker.uses_mpi:
                from collectives.process_groups.mpi import library

                library.progress()  # another rank's send may wait for this rank to acknowledge it
            time.sleep(0.002)
        return True

    def _let_all_enter(self) -> None:
        """Wait until no rank is still connecting to this one.

        subtle: a rank whose init_process_group fails gives its next group another name than the
        others do, and the world cannot be used again.
        """
        until = min(self.deadline, time.monotonic() + _GRACE)
        while not self.store.check(["all have entered"]) and time.monotonic() < until:
            time.sleep(0.002)

    def _exchange(self, result: bytes) -> list[bytes]:
        """The pickled results of all ranks, over the process group.

        Not through the store, to which others may have access: whoever writes a pickle there would
        execute code in the ranks.
        """
        if self.has_own_group and any(
            self.store.get(_returned_key(number)) == b"no group" for number in self.everyone
        ):  # the function has destroyed it
            if dist.is_initialized():
                dist.destroy_process_group()
            self._enter_group(dist.PrefixStore("results", self.store))
        results: list[Any] = [None] * self.world.nproc
        dist.all_gather_object(results, result)
        return results

    def _publish_failure(self, error: Exception) -> None:
        if self.store.add("failures", 1) == 1:
            self.store.set("first", json.dumps([self.worker.rank, *rank.describe(error)]))

    def _failure(self) -> failure.LaunchError:
        """The first exception, or else where each rank stood at the limit: alike in all ranks."""
        if self.store.check(["first"]) or self.store.add("failures", 0):
            return self._first_failure()
        returned = [number for number in self.everyone if self.store.check([_returned_key(number)])]
        missing = [number for number in self.everyone if number not in returned]
        return failure.hung(self.world.timeout, self._posted_stacks(missing), returned)

    def _first_failure(self) -> failure.LaunchError:
        try:
            number, *words, at = json.loads(self.store.get("first"))
            if number in self.everyone:
                error_type, error_text, trace = map(str, words)
                return failure.raised(number, failure.Raised(error_type, error_text, trace, at))
        except (TypeError, ValueError):
            pass
        return failure.LaunchError(
            "a rank failed, or a process that is no rank has written into the launcher's store: "
            "what is noted there cannot be read",
            rank=self.worker.rank,
            kind=Ending.RAISED,
        )

    def _posted_stacks(self, missing: list[int]) -> dict[int, str]:
        """The stacks that these ranks post at their time limit; "" for a rank that does not."""
        stacks = dict.fromkeys(missing, "")
        until = time.monotonic() + _GRACE / 2
        while "" in stacks.values() and time.monotonic() < until:
            for number, stack in stacks.items():
                if not stack and self.store.check([f"stack/{number}"]):
                    stacks[number] = self.store.get(f"stack/{number}").decode(errors="replace")
            time.sleep(0.01)
        return stacks


def _returned_key(number: int) -> str:
    return f"returned/{number}"


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
