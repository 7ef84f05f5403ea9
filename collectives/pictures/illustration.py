"""The one picture of a step: by order if it sends messages, meets at barriers or makes groups, else of where its data went."""

from dataclasses import dataclass

from collectives.pictures.happens_before import FROM_ROOT, RECEIVES, SENDS, TO_ROOT
from collectives.recording.call import WORLD, Call

ORDER_MATTERS = SENDS | RECEIVES | {"barrier", "monitored_barrier", "new_group"}

# What a rank gives to a collective, and where it gets its result: names of parameters.
_IN_PLACE = ("tensor", "tensor")
_BUFFERS = {
    **dict.fromkeys(("broadcast", "all_reduce", "reduce"), _IN_PLACE),
    "all_gather": ("tensor", "tensor_list"),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_single"), ("input_tensor", "output_tensor")
    ),
    "gather": ("tensor", "gather_list"),
    "scatter": ("scatter_list", "tensor"),
    "reduce_scatter": ("input_list", "output"),
    **dict.fromkeys(
        ("reduce_scatter_tensor", "reduce_scatter_single", "all_to_all_single"), ("input", "output")
    ),
    "all_to_all": ("input_tensor_list", "output_tensor_list"),
}


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
    return any(call.name in ORDER_MATTERS for call in calls)


def data(calls: list[Call]) -> Data | None:
    """That of the first collective among all ranks whose data can be traced; None if there is none."""
    from collectives.pictures.origin import trace

    ranks = sorted({call.rank for call in calls})
    for first in sorted((call for call in calls if call.rank == 0), key=lambda call: call.number):
        together = [
            call
            for call in calls
            if (call.group, call.seq, call.name) == (WORLD, first.seq, first.name)
        ]
        together.sort(key=lambda call: call.rank)
        if [call.rank for call in together] != ranks or first.name not in _BUFFERS:
            continue
        if any(
            call.before is None or call.after is None for call in together
        ):  # without copies, or nobody waited
            continue
        given, gotten = _BUFFERS[first.name]
        found = Data(
            before=[call.before.get(given) for call in together],
            after=[call.after.get(gotten) for call in together],
            op=first.op,
            root=first.peer if first.name in FROM_ROOT | TO_ROOT else None,
            title=first.name,
            in_place=given == gotten,
        )
        origins = trace(
            found.before, found.after, op=found.op, root=found.root, in_place=found.in_place
        )
        if not origins.summary and "unknown" not in origins.states():
            return found
    return None


def illustrate(step: str, calls: list[Call]):
    """The figure, or None where a step has nothing to show. Recorded with tensors, or there are no data to draw."""
    from collectives.pictures import picture, timeline

    if order_matters(calls):
        return timeline.draw(calls, title=step)
    found = data(calls)
    return picture.draw(**vars(found)) if found else None
