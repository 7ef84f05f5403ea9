"""What it costs to record a call for the diagnosis.

The same ranks make a call recorded and not recorded, in turn. A busy machine can only add time to
either: so the best of each is what counts.
"""

import tempfile
import time
from collections.abc import Callable

from collectives.bench.timing import LIMIT, Row

# The most microseconds that recording may add to a call.
_MOST = 20

# How many calls are timed together, how many pairs of timings make a round, and how many calls come
# first, not timed: each time that recording begins or ends, Python optimises its hot code again. In
# a program that happens once.
_CALLS, _PAIRS, _WARM_UP = 200, 10, 200

# By the number of ranks: what is timed in them, and how many calls are recorded in it. One rank
# waits for nobody.
_KINDS = {1: ("all_reduce in a world of one", 1), 2: ("isend, irecv, and a wait for each", 4)}


def measure(rounds: int, report: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; call `report` with what is being done, in words."""
    return rows(pairs(rounds, report))


def pairs(rounds: int, report: Callable[[str], None]) -> dict[str, list[tuple[float, float]]]:
    """By kind of call: pairs of CPU microseconds that a call takes, not recorded and recorded."""
    from collectives import launch

    found = {}
    for ranks, (kind, _) in _KINDS.items():
        report(f"what it costs to note a call of {kind}")
        found[kind] = launch(
            cost, ranks, args=(rounds * _PAIRS,), backend="gloo", timeout=LIMIT, diagnose=False
        )[0]
    return found


def rows(found: dict[str, list[tuple[float, float]]]) -> list[Row]:
    return [_row(kind, pairs) for kind, pairs in found.items()]


def _row(kind: str, pairs: list[tuple[float, float]]) -> Row:
    plain, recorded = map(min, zip(*pairs, strict=True))
    more, ratio = recorded - plain, recorded / plain
    met = "yes" if more <= _MOST else "no"
    shown = f"noted for a diagnosis {recorded:.1f} us", f"plain {plain:.1f} us"
    return Row(f"a call of {kind}", *shown, ratio, f"<= {_MOST} us more: {more:.1f} us", met)


def cost(rank: int, world_size: int, device, pairs: int) -> list[tuple[float, float]]:
    """A step: `pairs` pairs of CPU microseconds that a call takes, not recorded and recorded."""
    import torch
    import torch.distributed as dist

    from collectives.recording import rank_log, record

    sent, received = torch.ones(4), torch.ones(4)

    def all_reduce():
        dist.all_reduce(sent)

    def exchange():
        for work in [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]:
            work.wait()

    call, count = all_reduce if world_size == 1 else exchange, _KINDS[world_size][1]
    # The log maps the file, and closes it.
    log = rank_log.Log(file=tempfile.TemporaryFile())  # noqa: SIM115
    recording = record.Recording(log)
    timed = []
    for _ in range(pairs):
        plain = _time(call)
        recording.begin()
        timed.append((plain / count, _time(call) / count))
        recording.end()
    log.forget()
    return timed


def _time(call: Callable) -> float:
    """CPU microseconds of this thread for one call."""
    for _ in range(_WARM_UP):
        call()
    begin = time.thread_time()
    for _ in range(_CALLS):
        call()
    return (time.thread_time() - begin) / _CALLS * 1e6
