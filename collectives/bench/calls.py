"""What it costs a call to be noted for a diagnosis: the same ranks make it plainly and noted, in turn.

A busy machine slows both, and so does one that dozes off: the best of each side is told, since whatever disturbs only adds to it.
"""

import tempfile
import time
from collections.abc import Callable

from collectives.bench.timing import LIMIT, Row

# The most microseconds that a call may take longer.
_MORE = 20

# How often a call is made in each half of a pair, how many pairs make a round, and how many calls come first, not timed: Python
# learns anew which code is hot each time that the recorder comes or goes; in a program it comes once.
_CALLS, _PAIRS, _FIRST = 200, 10, 200

# By the number of ranks, what is timed in them, and how many calls are noted in it. One rank waits for nobody.
_KINDS = {1: ("all_reduce in a world of one", 1), 2: ("isend, irecv, and a wait for each", 4)}


def measure(rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; `tell` hears, in words, what is being done."""
    return rows(pairs(rounds, tell))


def pairs(rounds: int, tell: Callable[[str], None]) -> dict[str, list[tuple[float, float]]]:
    """By kind of call, pairs: microseconds of the processor that one noted call takes its thread, plain and noted."""
    from collectives import launch

    found = {}
    for ranks, (kind, _) in _KINDS.items():
        tell(f"what it costs to note a call of {kind}")
        found[kind] = launch(
            cost, ranks, args=(rounds * _PAIRS,), backend="gloo", timeout=LIMIT, diagnose=False
        )[0]
    return found


def rows(found: dict[str, list[tuple[float, float]]]) -> list[Row]:
    return [_row(kind, pairs) for kind, pairs in found.items()]


def _row(kind: str, pairs: list[tuple[float, float]]) -> Row:
    plain, noted = map(min, zip(*pairs, strict=True))
    more, ratio = noted - plain, noted / plain
    met = "yes" if more <= _MORE else "no"
    shown = f"noted for a diagnosis {noted:.1f} us", f"plain {plain:.1f} us"
    return Row(f"a call of {kind}", *shown, ratio, f"<= {_MORE} us more: {more:.1f} us", met)


def cost(rank: int, world_size: int, device, pairs: int) -> list[tuple[float, float]]:
    import torch
    import torch.distributed as dist

    from collectives.recording import rank_log, record

    mine, theirs = torch.ones(4), torch.ones(4)

    def all_reduce():
        dist.all_reduce(mine)

    def exchange():
        for work in [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]:
            work.wait()

    call, noted = all_reduce if world_size == 1 else exchange, _KINDS[world_size][1]
    log = rank_log.Log(file=tempfile.TemporaryFile())  # noqa: SIM115  closed by the log, which maps it
    recording = record.Recording(log)
    timed = []
    for _ in range(pairs):
        plain = _time(call)
        recording.begin()
        timed.append((plain / noted, _time(call) / noted))
        recording.end()
    log.forget()
    return timed


def _time(call: Callable) -> float:
    for _ in range(_FIRST):
        call()
    begin = time.thread_time()
    for _ in range(_CALLS):
        call()
    return (time.thread_time() - begin) / _CALLS * 1e6
