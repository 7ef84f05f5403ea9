"""Choose the one picture of a step: the order of its calls, or where its data went.

A step that sends messages, meets at barriers or makes groups is shown by order.
"""

from dataclasses import dataclass

from collectives.recording.call import WORLD, Call
from collectives.spec.calls import BY_NAME, POINT_TO_POINT, CallSpec, Layout


@dataclass(frozen=True)
class Data:
    """What every rank held before a collective and after it: the arguments of `picture.draw`."""

    before: list
    after: list
    op: str | None
    root: int | None
    title: str
    in_place: bool


def order_matters(calls: list[Call]) -> bool:
    """Whether the calls include a message, or a call of a lesson that moves no data."""
    specs = (BY_NAME[call.name] for call in calls if call.name != "wait")
    return any(spec.name in POINT_TO_POINT or (spec.lesson and not spec.buffers) for spec in specs)


def _can_be_traced(spec: CallSpec) -> bool:
    """Whether it is a collective that takes tensors, and a known number of them."""
    if spec.objects or spec.gives is None or spec.gets is None:
        return False
    return all(buffer.layout is not Layout.SEVERAL for buffer in spec.buffers)


def data(calls: list[Call]) -> Data | None:
    """The data of the first collective of all ranks that can be traced; None if there is none."""
    from collectives.pictures.origin import trace

    ranks = sorted({call.rank for call in calls})
    for first in sorted((call for call in calls if call.rank == 0), key=lambda call: call.number):
        if first.name == "wait" or not _can_be_traced(spec := BY_NAME[first.name]):
            continue
        collective = (WORLD, first.seq, first.name)
        together = [call for call in calls if (call.group, call.seq, call.name) == collective]
        together.sort(key=lambda call: call.rank)
        if [call.rank for call in together] != ranks:
            continue
        if any(call.before is None or call.after is None for call in together):
            continue  # it was recorded without copies, or nobody waited for it
        found = Data(
            before=[call.before.get(spec.gives) for call in together],
            after=[call.after.get(spec.gets) for call in together],
            op=first.op,
            root=first.peer if spec.peer else None,
            title=first.name,
            in_place=spec.in_place,
        )
        origins = trace(
            found.before, found.after, op=found.op, root=found.root, in_place=found.in_place
        )
        if not origins.summary and "unknown" not in origins.states():
            return found
    return None


def illustrate(step: str, calls: list[Call]):
    """The figure; None where the step has nothing to show, or was recorded without its tensors."""
    from collectives.pictures import picture, timeline

    if order_matters(calls):
        return timeline.draw(calls, title=step)
    found = data(calls)
    return picture.draw(**vars(found)) if found else None
