"""Start a world of ranks on this machine, and collect the results or find who failed.

No process is left behind.
"""

import contextlib
import multiprocessing
import queue
import time
from typing import Any

from collectives.backends import availability
from collectives.launcher import call_record, failure, rank_spec, server
from collectives.launcher.child import EXIT_TIMEOUT, NAME, Child, Event, end_all, starting
from collectives.launcher.rank_spec import LaunchSpec, RankSpec
from collectives.launcher.watch import LaunchWatch
from collectives.process_groups.mpi import pmi

# A rank that loses its peer fails too, and its report may arrive before the peer's death is known.
# After the first failure we wait this many seconds for its cause.
_WAIT_FOR_CAUSE = 0.3


def start(spec: LaunchSpec, calls: LaunchWatch | None = None) -> call_record.Results:
    """Run the launch and return the results in rank order. Raises LaunchError if a rank fails.

    `calls` watches the calls that the ranks note. Without it a LaunchError tells none.
    """
    deadline = time.monotonic() + spec.world.timeout
    payload = rank_spec.pickle_by_value(spec.fn, spec.args)
    world = Ranks(spec, calls)
    with contextlib.closing(calls) if calls else contextlib.nullcontext():
        try:
            with contextlib.closing(world):
                world.start(payload)
                returned = world.results(deadline)
        except failure.LaunchError as error:
            if calls and calls.record:
                calls.tell(error)
            raise
    return call_record.results(returned, calls.record if calls else None)


def kill_all() -> None:
    """Kill every rank that any thread of this process has started. Their launches then fail."""
    with starting:
        for process in multiprocessing.active_children():
            if process.name.startswith(NAME):
                process.kill()


class Ranks:
    """All ranks that one launch starts. `close` must be called after `start`, whatever happens."""

    def __init__(self, spec: LaunchSpec, calls: LaunchWatch | None):
        self.spec = spec
        self.calls = calls
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.children: dict[int, Child] = {}
        self.to_close = contextlib.ExitStack()

    def start(self, payload: bytes) -> None:
        """Start the ranks. Raises LaunchError if this process cannot open what they need."""
        import torch.multiprocessing

        try:
            if self.spec.method == "forkserver":
                server.start_server(availability.modules([self.spec.world.backend]))
            context = torch.multiprocessing.get_context(self.spec.method)
            for spec in self._rank_specs():
                self.children[spec.rank] = Child(spec, context, payload, self.events)
        except OSError as error:  # no descriptors left, no temporary folder
            raise failure.not_started(len(self.children), error) from error
        for child in self.children.values():
            child.start()

    def _rank_specs(self) -> list[RankSpec]:
        world, manager = self.spec.world, None
        if self.spec.store is not None:
            specs = [rank_spec.for_shared_rank(world, self.spec.store)]
        else:
            if world.backend == "mpi":  # its ranks ask this process who they are
                manager = self.to_close.enter_context(contextlib.closing(pmi.Manager(world.nproc)))
            specs, store_file = rank_spec.for_world(world, manager)
            self.to_close.enter_context(store_file)
        return specs if self.calls is None else self.calls.give_files(specs)

    def results(self, deadline: float) -> list[Any]:
        """Wait until all ranks have returned and ended. Raises LaunchError if one fails."""
        returned: dict[int, bytes] = {}
        running = set(self.children)
        while running:
            try:
                event = self._next_event(deadline)
            except queue.Empty:
                if len(returned) == len(self.children):  # only a process does not end
                    break
                raise self._hung(returned) from None
            if event.kind == "not started":
                raise failure.not_started(event.rank, event.value) from event.value
            if event.kind == "returned":
                returned[event.rank] = event.value
                if len(returned) == len(self.children):
                    deadline = time.monotonic() + EXIT_TIMEOUT
            elif event.kind == "ended" and event.value == 0 and event.rank in returned:
                running.discard(event.rank)
            else:
                error = self._first_failure(event, returned)
                raise self.calls.explain(error) if self.calls else error
        if self.calls:
            self.calls.check()
        return failure.unpickled([returned[rank] for rank in self.children])

    def _next_event(self, deadline: float) -> Event:
        """Raises queue.Empty at the deadline, and LaunchError if the watched calls do not match."""
        while self.calls and self.calls.at_once and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=0.02)
            self.calls.look()
        return self.events.get(timeout=max(0.0, deadline - time.monotonic()))

    def _hung(self, returned: dict[int, bytes]) -> failure.LaunchError:
        missing = [rank for rank in self.children if rank not in returned]
        verdict = self.calls.last_word() if self.calls else None
        stacks = {rank: self.children[rank].stack() for rank in missing}
        return failure.hung(self.spec.world.timeout, stacks, sorted(returned), verdict)

    def _first_failure(self, failed: Event, returned: dict[int, bytes]) -> failure.LaunchError:
        """The cause of a failure. A death outweighs an exception: who loses a peer raises."""
        import cloudpickle

        events = self._with_what_follows(failed)
        if self.spec.method == "forkserver" and (status := server.exit_status()) is not None:
            return failure.server_died(status)
        returned = returned | {
            event.rank: event.value for event in events if event.kind == "returned"
        }
        for rank, kind, value in events:
            if kind == "ended" and (value != 0 or rank not in returned):
                stack = self.children[rank].stack(ask=False)
                return failure.died(rank, value, stack, rank in returned)
        raised: dict[int, failure.Raised] = {
            event.rank: cloudpickle.loads(event.value) for event in events if event.kind == "raised"
        }
        rank = min(raised, key=lambda rank: raised[rank].at)
        mismatched = [other for other in raised if raised[other].error_type == "Mismatch"]
        if rank in mismatched:  # ranks fail a proof in any order: name the same one each time
            rank = min(mismatched)
        return failure.raised(rank, raised[rank], sorted(returned))

    def _with_what_follows(self, failed: Event) -> list[Event]:
        """The failure and the next events, until time is up or every rank has raised."""
        events = [failed]
        until = time.monotonic() + _WAIT_FOR_CAUSE
        with contextlib.suppress(queue.Empty):
            while {event.rank for event in events if event.kind == "raised"} != set(self.children):
                events.append(self.events.get(timeout=max(0.0, until - time.monotonic())))
        return events

    def close(self) -> None:
        """Kill what still runs, wait until it is gone, and close everything."""
        end_all(list(self.children.values()))
        self.to_close.close()
