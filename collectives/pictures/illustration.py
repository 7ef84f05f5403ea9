"""Choose what the picture of a step shows: who waits for whom, a grid of groups, order, or data.

A step that hangs is shown by its waits, and one that sends messages, meets at barriers or makes
groups by order, unless the groups are a grid. So is one whose data cannot be traced, if it goes on
while a collective runs. A step that only starts and ends has no picture, nor has one that sends a
single message, or that calls more often than can be drawn. Of several collectives with data, the
picture shows four at most, and says what the others are like. What a buffer is called, and which
calls are only a proof, is read in the text of the program.
"""

import ast
import functools
import linecache
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import ExpectedCall, Row, trace
from collectives.recording.call import SPAN, WORLD, Call
from collectives.semantics.calls import BY_NAME, GROUPS, POINT_TO_POINT, CallSpec, Layout
from collectives.words import ranks, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SHOWN = 4
MOST_COLLECTIVES = 40  # the loop of a training: four of its calls would show nothing
_LONGEST = 18  # letters of a name on a picture


def order_matters(calls: Sequence[Call]) -> bool:
    """Whether the calls include work of the program's own, a message, or a barrier or group."""
    if any(call.name == SPAN for call in calls):
        return True
    specs = (BY_NAME[call.name] for call in calls if call.name != "wait")
    return any(spec.name in POINT_TO_POINT or (spec.lesson and not spec.buffers) for spec in specs)


def draw(
    calls: Sequence[Call],
    title: str = "",
    *,
    died: Mapping[int, str] | None = None,
    roles: Sequence[str] = (),
) -> list["Figure"]:
    """The figure of a run, for `picture.svg` and `picture.save`; none if there is nothing to see.

    `calls`: of all ranks, recorded with their tensors. `died`: how a rank died, by rank. `roles`:
    what each rank is, to be written below its name where data is shown. Without a `title` there are
    words that say what the figure shows.
    """
    if died:  # which calls of the other ranks failed is luck, and so is how far they came
        calls = [
            replace(call, error=died.get(call.rank)) if call.left is None else call
            for call in calls
        ]
    figure = _draw_calls(calls, title, breaks_are_luck=bool(died), roles=roles)
    return [figure] if figure is not None else []


def _draw_calls(
    calls: Sequence[Call], title: str, breaks_are_luck: bool, roles: Sequence[str]
) -> "Figure | None":
    from collectives.pictures import mesh, picture, timeline, waiting

    calls = [
        call
        for call in calls
        if call.left is None or call.error is not None or not is_for_the_proof(call)
    ]
    if not calls or _only_meets(calls) or _is_one_message(calls):
        return None
    if waiting.waits(calls):
        return waiting.draw(calls, title=title)
    if grid := mesh.grid(calls):
        return mesh.draw(calls, grid, title)
    # Ranks that meet by mistake are shown by their data; what else went wrong, by its order.
    went_wrong = not breaks_are_luck and _went_wrong(calls)
    by_mistake = any(panel.notes for _, panel in all_data(calls))
    by_order = order_matters(calls) and not (_in_one_group(calls) and all_data(calls))
    if by_order or (went_wrong and not by_mistake):
        # A call needs at least one step. Words in place of a picture only disturb a reader.
        most = max(Counter(call.rank for call in calls).values())
        return timeline.draw(calls, title=title) if most <= timeline.MOST_STEPS else None
    if shown := data(calls):
        return picture.draw(shown, roles, title=title)
    return timeline.draw(calls, title=title) if _goes_on(calls) else None


def _only_meets(calls: Sequence[Call]) -> bool:
    """Whether the ranks only make their group, exchange objects and meet at barriers, or at one.

    Such pictures are all alike.
    """
    names = {call.name for call in calls}
    starts = "init_process_group" in names or "all_gather_object" in names
    meets_once = len(calls) == len({call.rank for call in calls})
    return (
        (starts or meets_once)
        and not _went_wrong(calls)
        and names <= {*GROUPS, "barrier", "all_gather_object"}
    )


def _is_one_message(calls: Sequence[Call]) -> bool:
    """Whether one message without a tag arrives, and nothing else happens."""
    arrived = not _went_wrong(calls) and not any(call.tag for call in calls)
    return arrived and sorted(call.name for call in calls) == ["recv", "send"]


def _went_wrong(calls: Sequence[Call]) -> bool:
    return any(call.left is None or call.error is not None for call in calls)


def _goes_on(calls: Sequence[Call]) -> bool:
    """Whether a rank waits for a Work, and there are not too many calls to see their order."""
    return len(calls) <= MOST_COLLECTIVES and any(call.name == "wait" for call in calls)


def _together(calls: Sequence[Call]) -> list[list[Call]]:
    """The collectives that move data among all ranks, or all of them in one group.

    Each is the calls of its ranks, in order. Worlds of one rank each share none.
    """
    moving = _moving(calls)
    group = moving[0].group if _in_one_group(calls) else WORLD
    ranks = {*moving[0].members} if _in_one_group(calls) else {call.rank for call in calls}
    found: dict[tuple[int, str], dict[int, Call]] = defaultdict(dict)
    for call in moving:
        if call.group == group and ranks <= {*call.members}:
            found[call.seq or 0, call.name][call.rank] = call
    whole = (found[key] for key in sorted(found, key=lambda key: key[0]))
    return [[one[rank] for rank in sorted(ranks)] for one in whole if one.keys() == ranks]


def _moving(calls: Sequence[Call]) -> list[Call]:
    """The collectives that move data."""
    return [call for call in calls if _moves(call)]


def _moves(call: Call) -> bool:
    is_one = call.name not in (SPAN, "wait") and call.seq is not None
    return is_one and bool(BY_NAME[call.name].buffers)


def _in_one_group(calls: Sequence[Call]) -> bool:
    """Whether some ranks make a group, and nothing happens but collectives in it."""
    moving = _moving(calls)
    others = {call.name for call in calls if not _moves(call)}
    groups = {call.group for call in moving}
    return len(groups) == 1 and WORLD not in groups and others == {"new_group"}


def data(calls: Sequence[Call]) -> list[CallPanel]:
    """The collectives of all ranks that can be traced, of many the first ones of each kind."""
    together, found = _together(calls), dict(all_data(calls))
    if len(together) == 1:
        return [*found.values()]
    kinds: dict[tuple, list[int]] = defaultdict(list)
    for number, one in found.items():
        line = together[number - 1][0].line
        kinds[one.title, line, one.origins.op, one.origins.root].append(number)
    shown = [*found] if len(found) < MOST_SHOWN else [numbers[0] for numbers in kinds.values()]
    shown = shown[:MOST_SHOWN]
    panels = [replace(found[one], caption=f"call {one} of {len(together)}") for one in shown]
    notes = [_not_shown(numbers, shown) for numbers in kinds.values() if {*numbers} - {*shown}]
    if found and (hidden := [one for one in range(1, len(together) + 1) if one not in found]):
        notes.append(f"{_calls(hidden)} cannot be traced.")
    return [*panels[:-1], *(replace(last, notes=(*last.notes, *notes)) for last in panels[-1:])]


def _not_shown(numbers: list[int], shown: list[int]) -> str:
    rest = [number for number in numbers if number not in shown]
    if numbers[0] not in shown:
        return f"{_calls(rest)} would not fit on the page."
    return f"{_calls(rest)} {'are' if len(rest) > 1 else 'is'} like call {numbers[0]}."


def _calls(numbers: list[int]) -> str:
    return f"Call{'s' * (len(numbers) > 1)} {', '.join(runs(numbers))}"


def all_data(calls: Sequence[Call]) -> list[tuple[int, CallPanel]]:
    """The collectives that can be traced, each with its number, from 1; none of very many."""
    together = _together(calls)
    if len(together) > MOST_COLLECTIVES:
        return []
    found: list[tuple[int, CallPanel]] = []
    for number, one in enumerate(together, 1):
        results = [earlier.origins.after for _, earlier in found]
        if panel := _traced(one, 1 + max(call.rank for call in calls), results):
            found.append((number, panel))
    return found


def _traced(together: list[Call], ranks: int, earlier: Sequence[Sequence[Row]]) -> CallPanel | None:
    """The data of one collective; None if half of the values or more cannot be traced."""
    first = together[0]
    spec = BY_NAME[first.name]
    if spec.objects or spec.gives is None or spec.gets is None:
        return None
    if any(buffer.layout is Layout.SEVERAL for buffer in spec.buffers):  # nobody knows how many
        return None
    of_rank = {call.rank: call for call in together}
    absent = tuple(rank for rank in range(ranks) if rank not in of_rank)
    nothing = replace(first, before={}, after={}, splits=None)
    all_calls = [of_rank.get(rank, nothing) for rank in range(ranks)]
    before, after = ([getattr(call, when) for call in all_calls] for when in ("before", "after"))
    if None in before or None in after:
        return None  # it was recorded without copies, or nobody waited for it
    ops = sorted({call.op for call in together if call.op})
    root = first.peer if spec.peer else None
    agree = len(ops) <= 1 and len({call.peer for call in together}) == 1
    splits = [call.splits for call in all_calls]
    expected = ExpectedCall(spec, root, splits, absent)
    origins = trace(
        [tensors.get(spec.gives) for tensors in before],
        [tensors.get(spec.gets) for tensors in after],
        op=first.op if len(ops) == 1 else None,
        root=root,
        in_place=spec.in_place,
        expected=expected if agree else None,
        asked=ops,
        earlier=earlier,
        padding=_padding(together, spec),
    )
    if origins is None:
        return None
    states = [cell.state for row in origins.after for cell in row or ()]
    is_clear = states.count("unknown") * 2 < len(states)
    if not is_clear:
        return None
    names, notes = _names(together, spec), tuple(_notes(together))
    return CallPanel(origins, first.name, notes=notes, names=names, absent=absent)


def _padding(together: list[Call], spec: CallSpec) -> float | None:
    """The value with which the program fills up what it passes."""
    name = buffer_name(together[0], spec.gives)
    return padding(together[0], name) if name else None


def _names(together: list[Call], spec: CallSpec) -> tuple[str, str]:
    """The buffers' name in the program; before and after, where there is none, or not one."""

    def name(parameter: str | None, when: str) -> str:
        with_buffer = (call for call in together if parameter in (getattr(call, when) or {}))
        found = {buffer_name(call, parameter) for call in with_buffer} - {""}
        if len(found) != 1:
            return when
        return f"{found.pop()} {when}" if spec.in_place else found.pop()

    return name(spec.gives, "before"), name(spec.gets, "after")


def _notes(together: list[Call]) -> list[str]:
    """What differs between the ranks, though they meet in one collective."""
    found = []
    if len({call.op for call in together}) > 1:
        who = _by_rank(together, lambda call: f"for {call.op}")
        found.append(f"The ranks ask for different reductions: {who}.")
    if len({(call.file, call.line) for call in together}) > 1:
        who = _by_rank(together, lambda call: f"in line {call.line}")
        found.append(f"The ranks call from different lines of the program: {who}.")
    return found


def _by_rank(together: list[Call], words: Callable[[Call], str]) -> str:
    """ "rank 0 for MAX, ranks 1,2 for SUM" """
    members = defaultdict(list)
    for call in together:
        members[words(call)].append(call.rank)
    return ", ".join(f"{ranks(who)} {what}" for what, who in members.items())


def buffer_name(call: Call, parameter: str | None) -> str:
    """The variable that the program passes for a parameter; empty if that is another expression."""
    places = [buffer.parameter for buffer in BY_NAME[call.name].buffers]
    for node in _nodes("".join(linecache.getlines(call.file))):
        if not isinstance(node, ast.Call) or _called(node) != call.name:
            continue
        if not node.lineno <= call.line <= (node.end_lineno or 0):
            continue
        given = dict(zip(places, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        name = _expression(given.get(parameter or ""))
        return name if len(name) <= _LONGEST else ""
    return ""


def padding(call: Call, name: str) -> float | None:
    """The value with which the program last filled up this variable; None if it did not."""
    found = None
    for node in _nodes("".join(linecache.getlines(call.file))):
        if not isinstance(node, ast.Assign) or node.lineno >= call.line:
            continue
        if ast.unparse(node.targets[0]) == name:
            found = _fill(node.value)
    return found


def _fill(value: ast.AST) -> float | None:
    if not isinstance(value, ast.Call) or _called(value) != "pad":
        return None
    fills = [word.value for word in value.keywords if word.arg == "value"]
    try:
        return ast.literal_eval(fills[0]) if fills else 0
    except ValueError:  # the program computes it
        return None


def is_for_the_proof(call: Call) -> bool:
    """Whether the program makes it below a comment `# proof`, in the same function."""
    for line in reversed(linecache.getlines(call.file)[: max(0, call.line - 1)]):
        if line.lstrip().startswith("# proof"):
            return True
        if line.lstrip().startswith("def "):
            return False
    return False


@functools.lru_cache(4)
def _nodes(text: str) -> list[ast.AST]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell of a notebook may hold a %magic
        return []
    return [*ast.walk(tree)]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _expression(node: ast.AST | None) -> str:
    if isinstance(node, ast.IfExp):  # pieces if rank == 0 else None
        return _expression(node.body) or _expression(node.orelse)
    if isinstance(node, ast.Call) and _called(node) == "view":
        return ast.unparse(node)
    is_name = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    return ast.unparse(node) if node and is_name else ""
