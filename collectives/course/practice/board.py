"""Where each rank of a world is while it runs the cases: a file that ranks and parent share.

No rank begins a case before all have finished the one before it. So a rank that waits for another
one waits in the same case, and what a hang shows belongs to that case alone.
"""

import ctypes
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from collectives.course.practice import process_group
from collectives.recording import stack

# Seconds. A rank counts ticks while it is awake: on a busy machine, or when it was stopped, they
# take longer, and nobody takes it for one that waits.
TICK = 0.1

_DISTRIBUTED = os.path.dirname(dist.__file__) + os.sep


class Place(ctypes.Structure):
    """Where a rank is.

    finished: so many cases. wrong: the number of the first wrong one of them, from 1, or 0. calls:
    how many it began and ended. ticks: for how long it has begun and ended none. in_call: whether
    it is inside one now. line: of the reader's file; 0 if it is not there.
    """

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("finished", "wrong", "calls", "ticks", "in_call", "line")
    ]


class Board:
    """The places of all ranks, by rank."""

    def __init__(self, file: Path, ranks: int):
        self.ranks = range(ranks)
        with open(file, "a+b") as opened:
            size = ranks * ctypes.sizeof(Place)
            opened.truncate(size)
            memory = mmap.mmap(opened.fileno(), size)
        self.places = (Place * ranks).from_buffer(memory)

    @property
    def case(self) -> int:
        """The number of the case that not all ranks have finished."""
        return min(place.finished for place in self.places)

    def unfinished(self) -> list[int]:
        """The ranks that are still in that case."""
        return [rank for rank in self.ranks if self.places[rank].finished == self.case]

    def others_wait(self, rank: int) -> bool:
        """Whether all other ranks are inside a call of torch.distributed, or were a tick ago."""
        return all(self.places[other].in_call for other in self.ranks if other != rank)

    def finish(self, rank: int, is_wrong: bool) -> bool:
        """Wait until all ranks have finished this case. Whether it was right on all of them."""
        place = self.places[rank]
        number = place.finished + 1
        if is_wrong and not place.wrong:
            place.wrong = number
        place.finished = number
        while self.case < number:
            time.sleep(0.001)
        # subtle: another rank may be ahead of this one, and wrong in the next case.
        return not any(0 < other.wrong <= number for other in self.places)

    def show(self, rank: int, file: str, calls: Callable[[], int]) -> None:
        """From now on a thread shows where the main thread of this process is.

        `calls`: how many this rank has begun and ended.
        """
        place = self.places[rank]

        def tick() -> None:
            while True:
                time.sleep(TICK)
                now = calls(), *_position(file)
                place.ticks = place.ticks + 1 if now[:2] == (place.calls, place.in_call) else 0
                place.calls, place.in_call, place.line = now

        threading.Thread(target=tick, name="show where this rank is", daemon=True).start()


def _position(file: str) -> tuple[bool, int]:
    """Whether it is inside a call of torch.distributed, and the line of the reader's file."""
    frames = stack.stands()
    inside = [name for name, *_ in itertools.takewhile(lambda frame: frame[0] != file, frames)]
    in_call = (
        any(name.startswith(_DISTRIBUTED) for name in inside) or process_group.__file__ in inside
    )
    # To import a module of torch.distributed is no call.
    imports = process_group.IMPORT in inside
    return in_call and not imports, stack.line_of(file, frames)
