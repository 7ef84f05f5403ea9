"""A verdict as text: a headline, then a line for each rank with its call and its place."""

import itertools
import linecache
import os
from collections.abc import Collection, Iterable

from collectives.recording.call import MADE_BY, Call, TensorKind
from collectives.semantics.calls import BY_NAME, GROUPS, Layout
from collectives.words import ranks

# At most as many lines for ranks; ranks that do the same in the same place share a line.
_LINES = 12


def format_call(call: Call) -> str:
    """As in all_reduce(SUM, float32[4]), or wait() for all_reduce(SUM, float32[4])."""
    text = f"{call.awaited or call.name}({format_arguments(call)})"
    return f"wait() for {text}" if call.awaited else text


def format_arguments(call: Call) -> str:
    """As in SUM, float32[4]."""
    name = call.awaited or call.name
    words = [call.op] if call.op else []
    for tensors in _by_buffer(call):
        words += _counted(tensors)
    if call.peer is not None:
        words.append(f"{BY_NAME[name].peer or 'rank'}={call.peer}")  # init_process_group has a rank
    words += [f"tag={call.tag}"] if call.tag is not None else []
    if call.splits not in (None, (None, None)):
        words += [
            f"{word} splits {list(sizes)}"
            for word, sizes in zip(("output", "input"), call.splits, strict=True)
            if sizes
        ]
    words += [str(list(ranks)) for ranks in call.ranks or ()]
    words += [_group(call)] if call.group != "WORLD" and not call.group.startswith(MADE_BY) else []
    return ", ".join(words)


def numbered(call: Call) -> str:
    """As in all_reduce #7 of group WORLD, or new_group #1 of ranks 1,2."""
    name, number = call.awaited or call.name, number_of(call)
    return f"{name}{' ' if number[0] == '#' else ', '}{number} of {_group(call)}"


def number_of(call: Call) -> str:
    """As in #7, the number that torch gives it.

    Python call #7, if torch counts none in its group: then it is the seventh that Python made.
    Calls that make groups are counted by name.
    """
    is_counted = call.torch_seq is not None or (call.awaited or call.name) in GROUPS
    return f"{'' if is_counted else 'Python call '}#{call.shown_seq}"


def _group(call: Call) -> str:
    return call.group if call.group.startswith(MADE_BY) else f"group {call.group}"


def location(call: Call) -> str:
    """As in train.py:88 in step."""
    if not call.file:
        return ""
    file = os.path.relpath(call.file) if call.file.startswith(os.getcwd() + os.sep) else call.file
    function = f" in {call.function}" if call.function not in ("", "<module>") else ""
    return f"{file}:{call.line}{function}"


def locations(calls: dict[int, Call]) -> str:
    """As in rank 0 at train.py:88 in step; ranks 1,2 at train.py:90 in step."""
    there: dict[str, list[int]] = {}
    for rank, call in calls.items():
        there.setdefault(location(call), []).append(rank)
    return "; ".join(f"{ranks(numbers)} at {where}" for where, numbers in there.items())


def what_torch_does(calls: Iterable[Call]) -> list[str]:
    """As in model(x) at train.py:19 in step: DDP's forward broadcasts its buffers."""
    found: dict[str, None] = {}
    for call in calls:
        if call.torch_does:
            text = linecache.getline(call.file, call.line).strip()
            found[f"{text} at {location(call)}: {call.torch_does}".removeprefix(" at ")] = None
    return list(found)


def against(guilty: Iterable[int], all_of_them: Iterable[int]) -> str:
    """As in rank 2 against ranks 0,1."""
    rest = set(all_of_them) - set(guilty)
    return f"{ranks(guilty)} against {ranks(rest)}" if rest else f"{ranks(guilty)} disagree"


def join_as(wrong: Collection[int], named: Collection[int]) -> str:
    """As in ranks 2,3 join as ranks 0,1, which others are."""
    is_one = len(wrong) == 1
    others = "another is" if is_one else "others are"
    return f"{ranks(wrong)} join{'s' * is_one} as {ranks(named)}, which {others}"


def write(headline: str, lines: dict[int, tuple[str, str]], notes: Iterable[str]) -> str:
    """`lines`: by rank, what it does, and where."""
    together: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(lines):
        together.setdefault(lines[rank], []).append(rank)
    # "rank" gets a space more than "ranks", so that the numbers are aligned.
    rows = [
        (ranks(them).replace("rank ", "rank  "), doing, where)
        for (doing, where), them in together.items()
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    text = [headline]
    for who, doing, where in rows[:_LINES]:
        text.append(
            f"  {who.ljust(widths[0])}  {doing.ljust(min(widths[1], 60))}  {where}".rstrip()
        )
    if len(rows) > _LINES:
        text.append(f"  ... and {len(rows) - _LINES} more kinds of ranks")
    return "\n".join(text + [f"  {note}" for note in notes])


def _by_buffer(call: Call) -> list[tuple[TensorKind, ...]]:
    """The tensors of a call, those of a list apart from a single one."""
    spec = BY_NAME.get(call.awaited or call.name)
    layouts = [buffer.layout for buffer in spec.buffers] if spec and not spec.objects else []
    if len(layouts) != 2 or Layout.LIST not in layouts:
        return [call.tensors]
    counts = {Layout.ONE: 1, Layout.LIST: len(call.tensors) // 2}
    at = counts[layouts[0]] if layouts[0] == layouts[1] or layouts[0] is Layout.ONE else -1
    return [call.tensors[:at], call.tensors[at:]]


def _counted(tensors: tuple[TensorKind, ...]) -> list[str]:
    """Equal neighbours once, with their number: 3 x float32[4]."""
    counts = ((kind, len(list(same))) for kind, same in itertools.groupby(tensors))
    return [str(kind) if count == 1 else f"{count} x {kind}" for kind, count in counts]
