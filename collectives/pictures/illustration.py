"""Choose what the picture of a step shows: who waits for whom, a grid of groups, order, or data.

A step that hangs is shown by its waits, and one that sends messages, meets at barriers or makes
groups by order, unless the groups are a grid. Of several collectives with data, the picture shows
three at most.
"""

from collections import defaultdict
from dataclasses import dataclass

from collectives.recording.call import WORLD, Call
from collectives.spec.calls import BY_NAME, POINT_TO_POINT, CallSpec, Layout

MOST_SHOWN = 3


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


def data(calls: list[Call]) -> Data | None:
    """The data of the first collective of all ranks that can be traced; None if there is none."""
    return next((found for _, found in _all_data(calls)), None)


def illustrate(step: str, calls: list[Call]):
    """The figure; None where the step has nothing to show, or was recorded without its tensors."""
    from collectives.pictures import mesh, picture, timeline, waiting

    if waiting.waits(calls):
        return waiting.draw(calls, title=step)
    if mesh.grid(calls):
        return mesh.draw(calls, title=step)
    if order_matters(calls):
        return timeline.draw(calls, title=step)
    together = _together(calls)
    several = len(together) > 1
    shown = [
        picture.shown(
            **vars(found),
            caption=f"call {number} of {len(together)}" if several else "",
            notes=_notes(together[number - 1]),
        )
        for number, found in _chosen(together, _all_data(calls))
    ]
    return picture.draw_calls(shown) if shown else None


def _together(calls: list[Call]) -> list[list[Call]]:
    """The collectives of all ranks that move data, each as the calls of its ranks, in order."""
    ranks = {call.rank for call in calls}
    found = defaultdict(dict)
    for call in calls:
        is_data = call.name != "wait" and BY_NAME[call.name].buffers and call.seq is not None
        if is_data and call.group == WORLD:
            found[call.seq, call.name][call.rank] = call
    whole = (found[key] for key in sorted(found, key=lambda key: key[0]))
    return [[one[rank] for rank in sorted(ranks)] for one in whole if one.keys() == ranks]


def _all_data(calls: list[Call]) -> list[tuple[int, Data]]:
    """The collectives that can be traced, each with its number, from 1."""
    found = ((number, _traced(one)) for number, one in enumerate(_together(calls), 1))
    return [(number, one) for number, one in found if one]


def _chosen(together: list[list[Call]], found: list[tuple[int, Data]]) -> list[tuple[int, Data]]:
    """Three at most; those that differ in line, reduction or root before those that do not."""
    kinds, rest = {}, []
    for number, one in found:
        line = together[number - 1][0].line
        if kinds.setdefault((one.title, line, one.op, one.root), number) != number:
            rest.append(number)
    numbers = sorted([*kinds.values(), *rest][:MOST_SHOWN])
    return [(number, one) for number, one in found if number in numbers]


def _can_be_traced(spec: CallSpec) -> bool:
    """Whether it is a collective that takes tensors, and a known number of them."""
    if spec.objects or spec.gives is None or spec.gets is None:
        return False
    return all(buffer.layout is not Layout.SEVERAL for buffer in spec.buffers)


def _traced(together: list[Call]) -> Data | None:
    """The data of one collective; None if not every value can be traced."""
    from collectives.pictures.origin import trace

    first = together[0]
    if not _can_be_traced(spec := BY_NAME[first.name]):
        return None
    if any(call.before is None or call.after is None for call in together):
        return None  # it was recorded without copies, or nobody waited for it
    found = Data(
        before=[call.before.get(spec.gives) for call in together],
        after=[call.after.get(spec.gets) for call in together],
        op=first.op if len({call.op for call in together}) == 1 else None,
        root=first.peer if spec.peer else None,
        title=first.name,
        in_place=spec.in_place,
    )
    origins = trace(
        found.before, found.after, op=found.op, root=found.root, in_place=found.in_place
    )
    return None if origins.summary or "unknown" in origins.states() else found


def _notes(together: list[Call]) -> list[str]:
    """What differs between the ranks, though they meet in one collective."""
    found = []
    if len({call.op for call in together}) > 1:
        found.append(f"The ranks ask for different reductions: {_by_rank(together, 'op')}.")
    if len({(call.file, call.line) for call in together}) > 1:
        found.append(f"The ranks call it in different lines: {_by_rank(together, 'line')}.")
    return found


def _by_rank(together: list[Call], field: str) -> str:
    """ "rank 0 MAX, ranks 1 and 2 SUM" """
    ranks = defaultdict(list)
    for call in together:
        ranks[getattr(call, field)].append(str(call.rank))
    return ", ".join(
        f"rank{'s' * (len(who) > 1)} {' and '.join(who)} {value}" for value, who in ranks.items()
    )
