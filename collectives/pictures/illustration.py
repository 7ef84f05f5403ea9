"""Choose what the picture of a step shows: who waits for whom, a grid of groups, order, or data.

A step that hangs is shown by its waits, and one that sends messages, meets at barriers or makes
groups by order, unless the groups are a grid. So is one whose data cannot be traced, if it goes on
while a collective runs. A step that only starts and ends has no picture. Of several collectives
with data, the picture shows three at most.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from collectives.recording.call import WORLD, Call
from collectives.spec.calls import BY_NAME, GROUPS, POINT_TO_POINT, CallSpec, Layout

MOST_SHOWN = 3
MOST_COLLECTIVES = 40  # the loop of a training: three of its calls would show nothing


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


def illustrate(step: str, calls: list[Call], *, is_cut_short: bool = False):
    """The figure; None where the step has nothing to show, or was recorded without its tensors.

    is_cut_short: a rank died, so which calls of the others failed is luck.
    """
    from collectives.pictures import mesh, picture, timeline, waiting

    if _only_meets(calls):
        return None
    if waiting.waits(calls):
        return waiting.draw(calls, title=step)
    if mesh.grid(calls):
        return mesh.draw(calls, title=step)
    together, found = _together(calls), _all_data(calls)
    notes = {number: _notes(one) for number, one in enumerate(together, 1)}
    # Ranks that meet by mistake are shown by their data; what else went wrong, by its order.
    went_wrong = not is_cut_short and any(
        call.left is None or call.error is not None for call in calls
    )
    if order_matters(calls) or (went_wrong and not any(notes[number] for number, _ in found)):
        return timeline.draw(calls, title=step)
    shown = [
        picture.shown(
            **vars(one),
            caption=f"call {number} of {len(together)}" if len(together) > 1 else "",
            notes=notes[number],
        )
        for number, one in _chosen(together, found)
    ]
    if shown:
        return picture.draw_calls(shown)
    return timeline.draw(calls, title=step) if _goes_on(calls) else None


def _only_meets(calls: list[Call]) -> bool:
    """Whether the ranks only make their group and meet at barriers: such pictures are all alike."""
    names = {call.name for call in calls}
    went_well = all(call.left is not None and call.error is None for call in calls)
    return went_well and "init_process_group" in names and names <= {*GROUPS, "barrier"}


def _goes_on(calls: list[Call]) -> bool:
    """Whether a rank waits for a Work, and there are not too many calls to see their order."""
    return len(calls) <= MOST_COLLECTIVES and any(call.name == "wait" for call in calls)


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
    """The collectives that can be traced, each with its number, from 1; none of very many."""
    together = _together(calls)
    if len(together) > MOST_COLLECTIVES:
        return []
    found = ((number, _traced(one)) for number, one in enumerate(together, 1))
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
    """The data of one collective; None if half of the values or more cannot be traced."""
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
    states = [cell.state for row in origins.after for cell in row or ()]
    is_clear = states.count("unknown") * 2 < len(states)
    return found if is_clear and not origins.summary else None


def _notes(together: list[Call]) -> list[str]:
    """What differs between the ranks, though they meet in one collective."""
    found = []
    if len({call.op for call in together}) > 1:
        who = _by_rank(together, lambda call: f"for {call.op}")
        found.append(f"The ranks ask for different reductions: {who}.")
    if len({(call.file, call.line) for call in together}) > 1:
        who = _by_rank(together, lambda call: f"in line {call.line}")
        found.append(f"The ranks stand in different lines of the program: {who}.")
    return found


def _by_rank(together: list[Call], words: Callable[[Call], str]) -> str:
    """ "rank 0 for MAX, ranks 1 and 2 for SUM" """
    ranks = defaultdict(list)
    for call in together:
        ranks[words(call)].append(str(call.rank))
    return ", ".join(
        f"rank{'s' * (len(who) > 1)} {' and '.join(who)} {what}" for what, who in ranks.items()
    )
