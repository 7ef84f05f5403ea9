"""Whether a rank stood still between two looks. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from collectives.diagnosis.attach.place import stands
from collectives.diagnosis.attach.stacks import StackFrame, ThreadStack

# A thread that used no more of the processor than this share of the time stood still.
_IDLE = 0.02

# A DataLoader that waits for a worker looks up so often, in seconds, and wakes a few times then.
_LOADER_LOOKS_UP = 5.0
_WAKES = 3

Activities = dict[int, tuple[int, float] | None]


def state(
    pid: int,
    looks: Sequence[list[ThreadStack]],
    activities: tuple[Activities, Activities],
    between: float,
) -> str:
    """One of "waits", "runs" (at one line) and "moves".

    `looks`: the stacks at the first look, at the second, and with C++ frames, if they were read.
    `activities`: of each thread, after the first look and before the second.
    """
    thread, place, _ = stands(looks[-1], pid)
    before, *later = (_of(look, thread.number) for look in looks)
    if before is None or any(
        _seen(stack, place.loads) != _seen(before, place.loads) for stack in later
    ):
        return "moves"
    was, has = (by_thread.get(thread.number) for by_thread in activities)
    if was is None or has is None:
        return "runs"
    slept, used = has[0] - was[0], has[1] - was[1]
    if place.loads:
        still = slept <= _WAKES * (1 + between // _LOADER_LOOKS_UP)
    else:  # what spins uses the processor, and does not sleep
        still = slept == 0 and (place.spins or used <= max(_IDLE * between, 0.02))
    return "waits" if still or place.polls else "runs"


def _of(look: list[ThreadStack], number: int) -> ThreadStack | None:
    return next((one for one in look if one.number == number), None)


def _seen(thread: ThreadStack | None, loads: bool) -> list[StackFrame]:
    """What must stay the same: the Python frames, with their variables.

    A DataLoader that looks up goes in and out of its queue, so of it only the program's frames.
    """
    if thread is None:
        return []
    frames = [frame for frame in thread.frames if not frame.native]
    if not loads:
        return frames
    ends = (i for i, frame in enumerate(frames) if frame.function.endswith("__next__"))
    return [replace(frame, locals={}) for frame in frames[next(ends, 0) :]]
