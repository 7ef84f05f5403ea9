"""A run by the clock, for the terminal: a lane for each rank, and a table of the calls.

All ranks of a machine read the same monotonic clock, so their times can be compared. Times of
different machines cannot.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collectives.pictures import happens_before
from collectives.pictures.colours import colour_of, ink
from collectives.recording.call import Call

MOST_ROWS = 100


def timeline(calls: Sequence[Call], columns: int = 100) -> RenderableType:
    """The lanes, `columns` characters wide, and the table.

    Times are milliseconds since the first call of any rank.
    """
    if not calls:
        return Text("No calls were recorded: nothing was asked of torch.distributed.")
    begin = min(call.entered for call in calls)
    end = max(call.left or call.entered for call in calls)
    if any(call.left is None for call in calls):
        end += (end - begin) // 8  # room to see the calls that never ended
    width = max(columns - len("rank 00 "), 20)
    lanes = [Text(f"{'ms':<8}0{_ms(end - begin):>{width - 1}}")]
    for rank in sorted({call.rank for call in calls}):
        lanes.append(_lane(rank, [call for call in calls if call.rank == rank], begin, end, width))
    return Group(*lanes, Text(), _table(calls, begin))


def _lane(rank: int, calls: list[Call], begin: int, end: int, width: int) -> Text:
    """One rank. A call is [name===], as wide as it took, or | if it took less than a character."""
    lane = [" "] * width
    bars = []
    for call in sorted(calls, key=lambda call: call.number):
        first, last = (
            min(width - 1, (at - begin) * width // max(1, end - begin))
            for at in (call.entered, call.left or end)
        )
        room = last - first - 1
        lane[first : last + 1] = f"[{call.name[:room]:=<{room}}]" if room >= 0 else "|"
        bars.append((first, last + 1))
    text = Text(f"rank {rank:<3}" + "".join(lane), no_wrap=True, overflow="crop")
    colour = colour_of(rank)
    for first, last in bars:
        text.stylize(f"{ink(colour)} on {colour}", 8 + first, 8 + last)
    return text


def _table(calls: Sequence[Call], begin: int) -> RenderableType:
    sends = {
        (order.after.rank, order.after.number): order.before
        for order in happens_before.messages(calls)
    }
    table = Table("at ms", "took", "rank", "call", "message", "where", box=None, pad_edge=False)
    for column in table.columns[:2]:
        column.justify = "right"
    shown = sorted(calls, key=lambda call: (call.entered, call.rank))[:MOST_ROWS]
    for call in shown:
        sent = sends.get((call.rank, call.number))
        message = f"from rank {sent.rank}, sent at {_ms(sent.entered - begin)}" if sent else ""
        took = "-" if call.left is None else _ms(call.left - call.entered)
        where = f"{call.file.rpartition('/')[2]}:{call.line}"
        name = " ".join(happens_before.words(call))
        row = [_ms(call.entered - begin), took, str(call.rank), name, message, where]
        table.add_row(*map(Text, row))
    more = len(calls) - len(shown)
    if not more:
        return table
    return Group(table, Text(f"... and {more} more: --trace FILE.json shows them all."))


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f}"
