"""Predict what each algorithm costs on this machine, over the links of by_hand.

What is fitted is a shift: all ranks send to the next one at once, and do so again. So it holds what
a ping-pong between two ranks lacks: ranks that wait for a core, and caches that are shared. Then
the same with a single message under way. A step of an algorithm with some messages lies between,
and so does what a call costs before its first step.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectives.backends.algorithms import count, table
from collectives.backends.algorithms.schedule import Step, when

# Bytes of the messages whose time is measured. Between them the time is interpolated.
SIZES = [4, 2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26]

# How often each is measured, in turn; how many steps are timed together: about as many as
# algorithms have, because the first ones also wait for ranks that come later, and touch memory that
# is new; and how many calls, of a loop that is under way.
_ROUNDS, _STEPS, _CALLS = 7, 4, 20

# The time limit of the ranks, in seconds.
_LIMIT = 300.0


@dataclass(frozen=True)
class Fit:
    """Seconds of a call without its steps: `calls[is_shift]`; one whose steps are shifts costs
    more, because every rank must have come. And of a step: `steps[is_shift, reduce]` by size.
    """

    ranks: int
    sizes: list[int]
    calls: tuple[float, float]
    steps: dict[tuple[bool, bool], list[float]]

    def call(self, messages: float) -> float:
        """Seconds of a call before its first step, with so many messages in a mean step."""
        return self._between(*self.calls, messages)

    def step(self, messages: int, nbytes: float, reduce: bool) -> float:
        """Seconds of a step in which so many messages of so many bytes are under way."""
        single, shift = (self._at(nbytes, self.steps[busy, reduce]) for busy in (False, True))
        return self._between(single, shift, messages)

    def _between(self, single: float, shift: float, messages: float) -> float:
        return single + (shift - single) * (messages - 1) / (self.ranks - 1)

    def _at(self, nbytes: float, seconds: list[float]) -> float:
        if nbytes > self.sizes[-1]:
            return seconds[-1] * nbytes / self.sizes[-1]
        return float(np.exp(np.interp(np.log(nbytes), np.log(self.sizes), np.log(seconds))))


def predicted(fit: Fit, collective: str, name: str, nbytes: int) -> float:
    """Seconds of a call. `nbytes` is the full array."""
    steps = [step for step in count.sized_messages(collective, name, fit.ranks, nbytes) if step]
    seconds = fit.call(statistics.fmean(map(len, steps)) if steps else 1)
    for step in steps:
        size = statistics.fmean(size for _, size in step)
        seconds += fit.step(len(step), size, step[0][0].reduce)
    return seconds


def by_size(fit: Fit, collective: str) -> dict[str, list[tuple[float, float]]]:
    """For each algorithm, seconds by bytes: all powers of two from 4 bytes a rank to 64 MiB."""
    sizes = [2**k for k in range((4 * fit.ranks - 1).bit_length(), 27)]
    return {
        name: [(size, predicted(fit, collective, name, size)) for size in sizes]
        for name in table.names(collective, fit.ranks)
    }


def fit(n: int, sizes: list[int] = SIZES, rounds: int = _ROUNDS) -> Fit:
    """Measure in a world of `n` ranks, and take the median of the rounds.

    Raises ValueError if there is nobody to send to.
    """
    from collectives import launch

    if n < 2:
        raise ValueError("a single rank sends nothing: predict for 2 ranks or more.")
    args = (sizes, rounds)
    found = launch(in_ranks, n, args=args, backend="by_hand", timeout=_LIMIT, diagnose=False)
    steps = {
        (busy, reduce): _rising(
            [
                statistics.median(_slowest([one[busy, reduce, size] for one in found]))
                for size in sizes
            ]
        )
        for busy in (False, True)
        for reduce in (False, True)
    }
    call, barrier = (
        statistics.median(_slowest([one[what] for one in found])) for what in ("call", "barrier")
    )
    shifts = (n - 1).bit_length() * steps[True, False][0]  # of which a barrier consists
    return Fit(n, sizes, (call, max(call, barrier - shifts)), steps)


def _rising(seconds: list[float]) -> list[float]:
    """A shorter message takes no longer than a longer one: if it did, something disturbed it."""
    return np.minimum.accumulate(seconds[::-1])[::-1].tolist()


def _slowest(by_rank: list[list[float]]) -> list[float]:
    """A round takes as long as its slowest rank."""
    return list(map(max, zip(*by_rank, strict=True)))


def in_ranks(
    rank: int, n: int, device, sizes: list[int], rounds: int
) -> dict[tuple | str, list[float]]:
    """A step: the seconds of each round."""
    import torch
    import torch.distributed as dist

    from collectives.backends.algorithms import calls
    from collectives.backends.algorithms.execute import execute
    from collectives.backends.by_hand.choice import Options

    links = dist.group.WORLD.links
    alone = [dist.new_group([one]) for one in range(n)][rank]
    together = dist.new_group(backend="by_hand", pg_options=Options(algorithm="dissemination"))
    word = torch.zeros(1)
    small = {
        "call": lambda: dist.all_reduce(word, group=alone),
        "barrier": lambda: dist.barrier(together),
    }
    memory = torch.zeros(sizes[-1])  # four pieces of four bytes an element
    found: dict[tuple | str, list[float]] = {}
    for _ in range(rounds):
        for what, call in small.items():
            call()
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            found.setdefault(what, []).append((time.perf_counter() - begin) / _CALLS)
        for size in sizes:
            pieces = list(memory[:size].split(size // 4))
            for busy in (False, True):
                for reduce in (False, True):
                    links.begin("predict", time.monotonic() + _LIMIT)
                    calls.barrier(links, "dissemination")
                    steps = shift(rank, n, reduce) if busy else relay(rank, n, reduce)
                    begin = time.perf_counter()
                    execute(steps, links, pieces, torch.add, 0)
                    seconds = (time.perf_counter() - begin) / len(steps)
                    found.setdefault((busy, reduce, size), []).append(seconds)
    return found


def shift(rank: int, n: int, reduce: bool) -> list[Step]:
    """Everybody sends to the next rank, and to it again: pieces that are in no cache, if large."""
    return [
        Step((rank + 1) % n, (rank - 1) % n, step % 4, (step + 1) % 4, reduce)
        for step in range(_STEPS)
    ]


def relay(rank: int, n: int, reduce: bool) -> list[Step]:
    """One message at a time: from rank 0 to 1, from 1 to 2, ..."""
    return [
        Step(
            to=when(rank == step % n, (rank + 1) % n),
            source=when(rank == (step + 1) % n, step % n),
            send=step % 4,
            receive=(step + 1) % 4,
            reduce=reduce,
        )
        for step in range(_STEPS)
    ]


def measured(collective: str, n: int, nbytes: int, rounds: int = 9) -> dict[str, float]:
    """Seconds of a call with each algorithm, in turn, in the same ranks."""
    from collectives import launch

    args = (collective, nbytes, rounds)
    found = launch(in_turn, n, args=args, backend="by_hand", timeout=_LIMIT, diagnose=False)
    return {name: statistics.median(_slowest([one[name] for one in found])) for name in found[0]}


def in_turn(
    rank: int, n: int, device, collective: str, nbytes: int, rounds: int
) -> dict[str, list[float]]:
    """A step: the seconds of a call in each round, by algorithm."""
    import torch.distributed as dist

    from collectives.backends.by_hand.choice import Options

    call = call_of(collective, rank, n, nbytes)
    groups = {
        name: dist.new_group(backend="by_hand", pg_options=Options(algorithm=name))
        for name in table.names(collective, n)
    }
    repeat = max(1, min(20, 2**20 // max(1, nbytes)))
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, group in groups.items():
            call(group)  # connects, and touches the memory
            dist.barrier(group)
            begin = time.perf_counter()
            for _ in range(repeat):
                call(group)
            found.setdefault(name, []).append((time.perf_counter() - begin) / repeat)
    return found


def call_of(collective: str, rank: int, n: int, nbytes: int) -> Callable:
    """The call on a full array of so many bytes: `call(group)`."""
    import torch
    import torch.distributed as dist

    whole, other = (torch.zeros(max(n, nbytes // 4)) for _ in range(2))
    parts, others = (list(one[: len(one) // n * n].chunk(n)) for one in (whole, other))
    given = (parts if rank == 0 else None), others[0]
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "reduce": lambda group: dist.reduce(whole, 0, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather": lambda group: dist.all_gather(parts, others[0], group=group),
        "gather": lambda group: dist.gather(given[1], given[0], 0, group=group),
        "scatter": lambda group: dist.scatter(given[1], given[0], 0, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter(others[0], parts, group=group),
        "all_to_all": lambda group: dist.all_to_all(others, parts, group=group),
        "barrier": lambda group: dist.barrier(group),
    }[collective]
