"""Several calls and groups under way at once, and many of them in a row.

Each call has data of its own, so that a result that belongs to another call is noticed.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.semantics.cell import DetailedCell
from collectives.semantics.check import Mismatch
from collectives.semantics.forms import FORMS, called
from collectives.semantics.probe import ProbedCall, case_of, group_of, judged
from collectives.verify.in_rank import together
from collectives.verify.question import Question

# What can be called with async_op=True.
CALLS = (
    *("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single", "broadcast"),
    *("all_gather", "all_gather_single", "gather", "scatter", "all_to_all", "all_to_all_single"),
)

NOT_EARLY = "no Work ends before its call"
_IN_FLIGHT = 4
_MANY = 1000
_GROUPS = 50
# From the 25th to the 50th group, and in the second half of many calls, the memory of a rank may
# grow by so many bytes. A group of gloo costs about 100 KiB while it lives.
GROWTH = 16 * 2**20
# Many calls have so many elements: 500 tensors that a backend keeps are more than that.
_LENGTH_OF_MANY = 10_000
# A late rank comes after so many seconds.
_LATE = 0.2


def questions(
    backend: str, device: str, world_sizes: tuple[int, ...], threads: bool
) -> Iterator[Question]:
    """`threads`: also calls from two threads, each with a group of its own."""
    for size in world_sizes:
        for name in (name for name in CALLS if called(FORMS[name])):
            cells = {
                elements: _cell(name, backend, device, size, elements)
                for elements in (1000, _LENGTH_OF_MANY, 65_537)
            }
            for case, run, elements in (
                (f"{_IN_FLIGHT} in flight", in_flight, 1000),
                (f"{_IN_FLIGHT} in flight, 65,537 elements", in_flight, 65_537),
                (NOT_EARLY, not_early, 1000),
                ("tensors reused after wait()", reused, 65_537),
                (f"{_MANY:,} calls of the same tensors", many, _LENGTH_OF_MANY),
            ):
                if run is many and size != min(world_sizes):
                    continue
                limit = 60.0 if run is many else 20.0
                run = functools.partial(run, cell=cells[elements])
                yield _question(name, case, size, run, limit, cells[elements])
        ask: Callable[..., Any]
        after_send = functools.partial(call_beside_message, first="send")
        after_recv = functools.partial(call_beside_message, first="recv")
        for call, case, ask in (
            ("isend, irecv", f"{_IN_FLIGHT} messages in flight", messages),
            (
                "isend, irecv",
                "all_reduce after isend",
                after_send,
            ),
            (
                "isend, irecv",
                "all_reduce after irecv",
                after_recv,
            ),
            ("isend, irecv", "other messages than those that are waited for first", out_of_order),
            ("isend, irecv", "a tensor reused after wait()", message_reused),
            ("any two calls", "all calls in flight", all_in_flight),
            ("new_group", "two groups in opposite order", opposite_order),
            ("new_group", f"{_GROUPS} made and destroyed", many_groups),
            ("destroy_process_group", "another group works afterwards", remade),
        ):
            cell = _cell("all_reduce", backend, device, size, 1000)
            limit = 20.0 if call == "isend, irecv" else 60.0
            yield _question(call, case, size, functools.partial(ask, cell=cell), limit, cell)
        if threads:
            cell = _cell("all_reduce", backend, device, size, 1000)
            for case, ask in (
                ("in two threads, a group each", in_threads),
                ("in two threads, one group", in_threads_of_one_group),
            ):
                run = functools.partial(ask, cell=cell)
                yield _question("any two calls", case, size, run, 60.0, cell)


def _question(
    call: str, case: str, size: int, run: Any, limit: float, cell: DetailedCell
) -> Question:
    kind = case.partition(", ")[0]
    return Question("at once", call, case, size, run, (("case", kind),), limit, (kind, cell))


def _cell(name: str, backend: str, device: str, size: int, elements: int) -> DetailedCell:
    form = FORMS[name]
    op = "SUM" if form.reduces else None
    return DetailedCell(
        form.collective,
        f"{name}:async",
        backend,
        device,
        "float32",
        op,
        size,
        elements=elements,
        data="wide",
    )


def _call(
    rank: int, device: torch.device, cell: DetailedCell, salt: int, group: Any = None
) -> ProbedCall:
    cell = replace(cell, salt=salt)
    return ProbedCall(cell, case_of(rank, device, cell, group or group_of(cell)))


def _ended(call: ProbedCall, what: str) -> None:
    try:
        call.complete()
        call.check()
    except Mismatch as error:
        raise Mismatch(f"{what}: {error}") from None


def in_flight(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Four calls begin before the first one is waited for; the last is waited for first."""
    with judged(rank, size) as verdict:
        calls = [_call(rank, device, cell, salt) for salt in range(_IN_FLIGHT)]
        for call in calls:
            call.begin()
        for number, call in reversed(list(enumerate(calls, 1))):
            _ended(call, f"call {number} of {_IN_FLIGHT} in flight")
    return verdict.wrong


def all_in_flight(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """One of each call begins before the first one is waited for."""
    with judged(rank, size) as verdict:
        names = [name for name in CALLS if called(FORMS[name])]
        backend, kind = cell.backend, cell.device
        calls = [
            (name, _call(rank, device, _cell(name, backend, kind, size, 1000), salt))
            for salt, name in enumerate(names)
        ]
        for _, call in calls:
            call.begin()
        for name, call in calls:
            _ended(call, f"{name} among {len(names)} calls in flight")
    return verdict.wrong


def needs(name: str, rank: int, other: int, root: int = 0) -> bool:
    """Whether the result of `rank` depends on what `other` gives."""
    if name in ("broadcast", "scatter", "recv"):
        return other == root and rank != root
    if name in ("reduce", "gather"):
        return rank == root and other != root
    return name != "send"


def not_early(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """The rank that others need comes late: until then no Work of theirs says that it is done."""
    late = 0 if cell.name in ("broadcast", "scatter") else size - 1
    store = c10d._get_default_store()
    turn = store.add(f"early/turn of {rank}", 1)
    with judged(rank, size) as verdict:
        call = _call(rank, device, cell, 1)
        if rank == late:
            others = [f"early/{turn}/{other}" for other in range(size) if other != late]
            with contextlib.suppress(RuntimeError):  # where the call waits for all, none has begun
                store.wait(others, timedelta(seconds=5 * _LATE))
            store.set(f"early/{turn}", "")
        work = call.begin()
        if hasattr(work, "is_completed") and needs(cell.name, rank, late):
            is_done = bool(work.is_completed())
            if is_done and not store.check([f"early/{turn}"]):
                raise Mismatch(
                    f"is_completed() is True before rank {late} has made the call{_kept(call)}"
                )
        store.set(f"early/{turn}/{rank}", "")
        _ended(call, f"rank {late} came last")
        if hasattr(work, "is_completed") and not work.is_completed():
            raise Mismatch("is_completed() is False after wait()")
    return verdict.wrong


def _kept(call: ProbedCall) -> str:
    try:
        call.check()
    except Mismatch as error:
        return f": {error}"
    return ""


def reused(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """After wait() the tensors are the program's: it writes into them, and nobody else does."""
    late = 0 if cell.name in ("reduce", "gather") else size - 1
    with judged(rank, size) as verdict:
        call = _call(rank, device, cell, 2)
        if rank == late:
            time.sleep(_LATE)
        call.begin()
        _ended(call, "before it was reused")
        memories = [memory for part in call.memory.values() for memory in _flat(part)]
        for memory in memories:
            memory.bytes.fill_(0x33)
        time.sleep(_LATE)
        if any((memory.bytes != 0x33).any() for memory in memories):
            raise Mismatch("the backend wrote into a tensor after wait() had returned")
    return verdict.wrong


def _flat(part: Any) -> list[Any]:
    if isinstance(part, list):
        return [one for item in part for one in _flat(item)]
    return [part] if hasattr(part, "bytes") else []


def many(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """A thousand small calls of the same tensors, each with other data. Nothing of them stays."""
    with judged(rank, size) as verdict:
        before, call = None, _call(rank, device, cell, 0)
        for number in range(_MANY):
            call.refill(replace(call.case, salt=number))
            call.begin()
            _ended(call, f"call {number + 1:,} of {_MANY:,}")
            if number == _MANY // 2:
                before = _held()
        _compare(before, _held(), f"from call {_MANY // 2:,} to call {_MANY:,}")
    return verdict.wrong


def messages(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Four messages to the next rank, and as many from the one before, each with its tag."""
    works: list[Any] = []
    with judged(rank, size) as verdict:
        after, before = (rank + 1) % size, (rank - 1) % size
        length = 65_537
        sent = [_message(rank, number, length, device) for number in range(_IN_FLIGHT)]
        got = [torch.zeros(length, device=device) for _ in sent]
        numbers = range(_IN_FLIGHT)
        works += [dist.irecv(got[n], before, tag=n) for n in reversed(numbers)]
        works += [dist.isend(sent[n], after, tag=n) for n in numbers]
        for work in works:
            work.wait()
        for number in numbers:
            _same(got[number], _message(before, number, length, device), f"message {number + 1}")
    return verdict.wrong


def out_of_order(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Messages with one tag arrive in the order in which they were sent."""
    works: list[Any] = []
    with judged(rank, size) as verdict:
        after, before = (rank + 1) % size, (rank - 1) % size
        lengths = (1000, 10, 65_537, 3)
        works += [
            dist.isend(_message(rank, number, length, device), after)
            for number, length in enumerate(lengths)
        ]
        for number, length in enumerate(lengths):
            got = torch.zeros(length, device=device)
            dist.recv(got, before)
            wanted = _message(before, number, length, device)
            _same(got, wanted, f"message {number + 1} of {len(lengths)} with one tag")
        for work in works:
            work.wait()
    return verdict.wrong


def message_reused(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """After wait() of a send, the sender writes into the tensor, whenever the receiver comes."""
    with judged(rank, size) as verdict:
        if rank == 0:
            tensor = _message(0, 0, 65_537, device)
            work: Any = dist.isend(tensor, 1)
            work.wait()
            tensor.fill_(-1)
        elif rank == 1:
            time.sleep(_LATE)
            got = torch.zeros(65_537, device=device)
            dist.recv(got, 0)
            _same(got, _message(0, 0, 65_537, device), "the message")
    return verdict.wrong


def call_beside_message(
    rank: int, size: int, device: torch.device, cell: DetailedCell, first: str
) -> str | None:
    """When all ranks make the call, the message is under way on one side: `first` says where."""
    with judged(rank, size) as verdict:
        got = torch.zeros(65_537, device=device)
        work: Any = None
        sent = _message(0, 1, 65_537, device)
        for turn in (first, "call", "send" if first == "recv" else "recv"):
            if turn == "send" and rank == 0:
                work = dist.isend(sent, 1, tag=3)
            elif turn == "recv" and rank == 1:
                work = dist.irecv(got, 0, tag=3)
            elif turn == "call":
                call = _call(rank, device, cell, 5)
                call.begin()
                _ended(call, "all_reduce while a message is under way")
        if work is not None:
            work.wait()
        if rank == 1:
            _same(got, sent, "the message")
    return verdict.wrong


def _message(rank: int, number: int, length: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(length, device=device) + 10_000_000 * number + 100 * rank).float()


def _same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.equal(got, wanted):
        place = int((got != wanted).nonzero()[0])
        raise Mismatch(
            f"{what}: element {place:,} of {got.numel():,} is {got[place].item():g}, "
            f"should be {wanted[place].item():g}"
        )


def opposite_order(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Two groups of the same ranks: even ranks begin with one, odd ranks with the other."""
    with judged(rank, size) as verdict:
        groups = [dist.new_group(list(range(size))) for _ in range(2)]
        calls = [
            _call(rank, device, cell, 7 + number, group) for number, group in enumerate(groups)
        ]
        for call in calls if rank % 2 == 0 else reversed(calls):
            call.begin()
        for number, call in enumerate(calls, 1):
            _ended(call, f"group {number} of two whose calls began in opposite order")
        together(c10d._get_default_store(), "opposite order", size)
    return verdict.wrong


def many_groups(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Each works, and none leaves anything."""
    with judged(rank, size) as verdict:
        before = None
        for number in range(_GROUPS):
            group = dist.new_group(list(range(size)))
            call = _call(rank, device, cell, number, group)
            call.begin()
            _ended(call, f"group {number + 1} of {_GROUPS}")
            del call
            dist.destroy_process_group(group)
            if number == _GROUPS // 2:
                before = _held()
        _compare(before, _held(), f"from group {_GROUPS // 2} to group {_GROUPS}")
    return verdict.wrong


def remade(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """The world ends and begins again in the same processes."""
    with judged(rank, size) as verdict:
        store = c10d._get_default_store()
        dist.destroy_process_group()
        again = dist.PrefixStore("again", store)
        limit = timedelta(seconds=60)
        dist.init_process_group(
            cell.backend, store=again, rank=rank, world_size=size, timeout=limit
        )
        call = _call(rank, device, cell, 9)
        call.begin()
        _ended(call, "after destroy_process_group() and init_process_group()")
        together(store, "made again", size)
    return verdict.wrong


def in_threads(rank: int, size: int, device: torch.device, cell: DetailedCell) -> str | None:
    """Two threads make calls, each in a group of its own."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    outcomes: list[Any] = [None, None]

    def work(number: int) -> None:
        try:
            with judged(rank, size) as verdict:
                for salt in range(100):
                    call = _call(rank, device, cell, salt + 1000 * number, groups[number])
                    call.begin()
                    _ended(call, f"thread {number + 1}, call {salt + 1}")
            outcomes[number] = verdict.wrong
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes[0] or outcomes[1]


def in_threads_of_one_group(
    rank: int, size: int, device: torch.device, cell: DetailedCell
) -> str | None:
    """The second thread begins while the call of the first one waits for rank 0."""
    errors: list[Any] = []
    with judged(rank, size) as verdict:
        for turn in range(3):
            calls = [_call(rank, device, cell, 2 * turn + number) for number in range(2)]
            dist.barrier()
            time.sleep(0.3 if rank == 0 else 0)

            def work(number: int, call: ProbedCall) -> None:
                try:
                    call.begin()
                    _ended(call, f"thread {number} of two that call one group")
                except Exception as raised:
                    errors.append(raised)

            threads = [threading.Thread(target=work, args=pair) for pair in enumerate(calls, 1)]
            for thread in threads:
                thread.start()
                time.sleep(0.1)
            for thread in threads:
                thread.join()
            for error in errors:
                raise error
    return verdict.wrong


def late_barrier(rank: int, size: int, device: torch.device, late: int) -> str | None:
    """Nobody leaves a barrier before the last rank has come, whichever that is."""
    store = c10d._get_default_store()
    turn = store.add(f"late/{late}/{rank}", 1)
    key = f"late/{late}/came/{turn}"
    with judged(rank, size) as verdict:
        if rank == late:
            time.sleep(_LATE)
            store.set(key, "")
        dist.barrier()
        if not store.check([key]):
            raise Mismatch(f"it left the barrier before rank {late} had come")
    return verdict.wrong


def _held() -> tuple[int, int, int]:
    """What this process holds: descriptors, threads, and bytes of memory."""
    import gc

    import psutil

    gc.collect()
    process = psutil.Process()
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return descriptors, process.num_threads(), process.memory_info().rss


def _compare(before: Any, after: tuple[int, int, int], when: str) -> None:
    # A thread that has been told to end may need a moment.
    until = time.monotonic() + 1.0
    while time.monotonic() < until and any(
        new > old for new, old in zip(after[:2], before[:2], strict=True)
    ):
        time.sleep(0.05)
        after = _held()
    grown = [
        f"{what} grew from {old} to {new}"
        for what, old, new in zip(("descriptors", "threads"), before, after, strict=False)
        if new > old + 2
    ]
    if after[2] > before[2] + GROWTH:
        grown.append(f"memory grew by {(after[2] - before[2]) // 2**20} MiB")
    if grown:
        raise Mismatch(f"{when}, {', '.join(grown)}")
