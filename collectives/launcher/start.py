"""Start a world of ranks on this machine, bring back their results, and leave nothing behind."""

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import queue
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import TYPE_CHECKING

from collectives.backends.mpi import pmi
from collectives.launcher import by_value, failure
from collectives.launcher.watch import LaunchWatch

if TYPE_CHECKING:
    from collectives.launcher.rank_spec import Share

_NAME = "collectives-rank-"

# A rank that lost its peer fails too, and may report before the death of that peer is known: so long we wait for the cause.
_CAUSE = 0.3

# After its result a rank has this long to end by itself.
_GOODBYE = 5.0

# One at a time: multiprocessing's bookkeeping of children is not safe between threads.
_starting = threading.Lock()

_preparation_data = multiprocessing.spawn.get_preparation_data


def _without_main(name: str) -> dict:
    """multiprocessing would run the caller's script again in every child. Ours get their function by value: no need to."""
    data = _preparation_data(name)
    if name.startswith(_NAME):
        data = {key: value for key, value in data.items() if not key.startswith("init_main")}
    return data


multiprocessing.spawn.get_preparation_data = _without_main


def default_start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_server(modules: tuple[str, ...] = ()) -> None:
    """Begin to start the fork server, without waiting for it: a second import of torch can run beside the caller's own.

    `modules` are what else the ranks will need. They count only for a server that is not there yet.
    """
    if default_start_method() == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(
            [*modules, "collectives.launcher.preload", "torch.distributed"]
        )
        forkserver.ensure_running()


def start(
    fn: Callable,
    nproc: int,
    args: tuple,
    backend: str,
    device: str,
    timeout: float,
    method: str,
    share: "Share | None" = None,
    calls: LaunchWatch | None = None,
) -> list:
    """Call `fn` in `nproc` new ranks, or in one rank of a shared world. The arguments are checked already (see launch).

    `calls` watches what the ranks call; without it they note nothing.
    """
    deadline = time.monotonic() + timeout
    payload = by_value.pack(fn, args)
    if method == "forkserver":
        start_server(("collectives.backends.mpi.group",) if backend == "mpi" else ())
    world = _World(nproc, backend, device, timeout, method, payload, share, calls)
    try:
        world.begin()
        return world.results(deadline)
    finally:
        world.end()


def kill_all() -> None:
    """Kill every rank that this process has started, from whichever thread: those launches then fail at once, and clean up."""
    with _starting:
        for process in multiprocessing.active_children():
            if process.name.startswith(_NAME):
                process.kill()


class _World:
    """The ranks of one launch, as the parent sees them."""

    def __init__(
        self,
        nproc: int,
        backend: str,
        device: str,
        timeout: float,
        method: str,
        payload: bytes,
        share: "Share | None",
        calls: LaunchWatch | None,
    ):
        import torch.multiprocessing

        from collectives.launcher import rank_spec

        self.context = torch.multiprocessing.get_context(method)
        self.timeout = timeout
        self.payload = payload
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        # The ranks of a world of MPI find each other through us; of a shared world we start but one.
        self.mpi = pmi.Manager(nproc) if backend == "mpi" and not share else None
        told = backend, device, timeout
        taken, self.store = (
            rank_spec.of_share(share, *told)
            if share
            else rank_spec.of_world(nproc, *told, self.mpi)
        )
        if calls is not None:
            taken = calls.give_files(taken)
        self.calls = calls
        self.ranks = [seat.rank for seat in taken]
        self.processes: dict = dict.fromkeys(self.ranks)
        self.ended = False
        self.homes, self.stacks, self.threads = {}, {}, []
        for seat in taken:
            self.homes[seat.rank], theirs = self.context.Pipe()
            self.stacks[seat.rank], stack_writer = self.context.Pipe(duplex=False)
            arguments = seat, theirs, stack_writer
            self.threads.append(
                threading.Thread(
                    target=self._watch, args=arguments, name=f"{_NAME}{seat.rank}", daemon=True
                )
            )

    def begin(self) -> None:
        for thread in self.threads:
            thread.start()

    def _watch(
        self, seat, theirs: connection.Connection, stack_writer: connection.Connection
    ) -> None:
        """In a thread of its own: start a rank, wait for its outcome and for its end, and tell `results` of both."""
        from collectives.launcher import rank as ranks

        home = self.homes[seat.rank]
        try:
            with _starting:
                if self.ended:
                    return
                process = self.context.Process(
                    target=ranks.main, args=(seat, theirs, stack_writer), name=f"{_NAME}{seat.rank}"
                )
                self.processes[seat.rank] = process
                process.start()
            theirs.close()
            stack_writer.close()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                home.send_bytes(self.payload)
            ready = connection.wait([home, process.sentinel])
            if home in ready:
                with contextlib.suppress(EOFError, OSError):
                    self.events.put((seat.rank, "outcome", home.recv_bytes()))
            connection.wait([process.sentinel])
            while (
                (exitcode := _exitcode(process)) is None and not self.ended
            ):  # the sentinel may fall a moment before the system has the status
                time.sleep(0.001)
            self.events.put((seat.rank, "ended", exitcode))
        except Exception as error:
            self.events.put((seat.rank, "broken", error))
        finally:
            theirs.close()
            stack_writer.close()

    def results(self, deadline: float) -> list:
        import cloudpickle

        found: dict[int, bytes] = {}
        waiting = set(self.ranks)
        while waiting:
            try:
                rank, what, value = self._next_event(deadline)
            except queue.Empty:
                missing = [rank for rank in self.ranks if rank not in found]
                if not missing:  # every result is here; what lingers is a process that will not end
                    break
                diagnosis = self.calls.last_word() if self.calls else ""
                raise failure.hung(
                    self.timeout,
                    {rank: self._stack(rank) for rank in missing},
                    sorted(found),
                    diagnosis,
                ) from None
            if what == "broken":
                raise failure.not_started(rank, value) from value
            if what == "outcome" and value[:1] == b"R":
                found[rank] = value[1:]
                if len(found) == len(self.processes):
                    deadline = time.monotonic() + _GOODBYE
            elif what == "outcome" or value != 0 or rank not in found:
                error = self._cause([(rank, what, value)], found)
                raise self.calls.explain(error) if self.calls else error
            else:
                waiting.discard(rank)
        if self.calls:
            self.calls.check()
        return [cloudpickle.loads(found[rank]) for rank in self.ranks]

    def _next_event(self, deadline: float) -> tuple:
        while self.calls and self.calls.at_once and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=0.02)
            self.calls.look()
        return self.events.get(timeout=max(0.0, deadline - time.monotonic()))

    def _cause(self, events: list, found: dict) -> failure.LaunchError:
        """The failure that came first. A death outweighs an exception: a rank that loses its peer raises."""
        until = time.monotonic() + _CAUSE
        with contextlib.suppress(queue.Empty):
            while not self._all_failed(events):
                events.append(self.events.get(timeout=max(0.0, until - time.monotonic())))
        found |= {
            rank: value[1:]
            for rank, what, value in events
            if what == "outcome" and value[:1] == b"R"
        }
        for rank, what, value in events:
            if what == "ended" and (value != 0 or rank not in found):
                return failure.died(rank, value, self._stack(rank, ask=False), rank in found)
        import cloudpickle

        raised = {
            rank: cloudpickle.loads(value[1:])
            for rank, what, value in events
            if what == "outcome" and value[:1] == b"E"
        }
        rank, first = min(raised.items(), key=lambda item: item[1]["at"])
        return failure.raised(rank, first["summary"], first["traceback"], sorted(found))

    def _all_failed(self, events: list) -> bool:
        """Whether every rank has raised: then none can die any more, and there is nothing left to wait for."""
        return {
            rank for rank, what, value in events if what == "outcome" and value[:1] == b"E"
        } == set(self.ranks)

    def _stack(self, rank: int, ask: bool = True) -> str:
        """Where a rank stands, in faulthandler's words; empty if it does not say."""
        from collectives.launcher import rank as ranks

        process, pipe = self.processes[rank], self.stacks[rank]
        if ranks.STACK_SIGNAL is None or process is None or process.pid is None:
            return ""
        if ask:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, ranks.STACK_SIGNAL)
        pieces, patience = [], 1.0 if ask else 0.0
        while pipe.poll(patience):
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                break
            pieces.append(piece)
            patience = 0.05
        return b"".join(pieces).decode(errors="replace")

    def end(self) -> None:
        """Kill what still runs, wait until it is gone, and close everything."""
        # A rank whose start is under way is started first, or never: else it would be missed here. Should the server itself be
        # stuck, we do not wait for it: a rank that it starts later finds its home closed, and ends.
        waited = _starting.acquire(timeout=_GOODBYE)
        self.ended = True
        for process in self.processes.values():
            if process is not None and process.pid is not None and process.exitcode is None:
                process.kill()
        if waited:
            _starting.release()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(_GOODBYE)
        for pipe in [*self.homes.values(), *self.stacks.values()]:
            pipe.close()
        for process in self.processes.values():
            with (
                contextlib.suppress(ValueError, AttributeError),
                _starting,
            ):  # not started, or not to be killed
                process.close()
        if self.mpi is not None:
            self.mpi.close()
        if self.calls is not None:
            self.calls.close()
        if self.store is not None:
            self.store.close()


def _exitcode(process) -> int | None:
    with _starting:
        return process.exitcode
