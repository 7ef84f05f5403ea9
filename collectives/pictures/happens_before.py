"""Find the order that a run enforces: which call could not end before another rank began its call.

This is Lamport's happens-before relation, from recorded calls. Times play no part, so a program
has the same order in every run. One event comes before another if one of these rules says so, or
several of them in a row:

- A rank makes its calls one after the other.
- A message is received after it is sent: the sender enters `send` before the receiver leaves
  `recv`, or the `wait` for an `irecv`.
- A rank that gets data from a collective leaves it, or the `wait` for it, after the ranks that give
  this data have entered it. In all_reduce, all_gather, barrier and their like these are all ranks,
  in broadcast and scatter the root. In reduce and gather only the root gets data.

- A span that a program calls "late" is left after the other ranks have come to the first call in
  which they may have to wait for this rank.

torch.distributed promises no more. gloo's `send` also waits for its receiver, but other backends
need not do so; new_group ends with a barrier only if TORCH_DIST_INIT_BARRIER=1.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import groupby

from collectives.recording.call import SPAN, WORLD, Call
from collectives.semantics.calls import ALL_TO_ALL, FROM_ROOT, RECEIVES, SENDS, TO_ROOT

LATE = "late"  # the name of a span in which a rank lets the others wait


@dataclass(frozen=True)
class Order:
    """The call `after` is left only when the call `before` has been entered."""

    before: Call
    after: Call


def messages(calls: Iterable[Call]) -> list[Order]:
    """Each message, from its send to the receive, or the wait for a receive, with which it arrived.

    Messages between two ranks, in one group and with one tag, arrive in the order in which they
    are sent. Sends and receives without another end are left out.
    """
    sent: dict[tuple, list[Call]] = defaultdict(list)
    found = []
    for call in _in_order(calls):
        if call.name in SENDS and call.error is None:
            sent[call.rank, call.peer, call.group, call.tag].append(call)
    ends = _ends(calls)
    for call in _in_order(calls):
        if call.name in RECEIVES and (end := ends.get(call.key)):
            ranks = (call.source, end.source, call.peer)
            source = next((rank for rank in ranks if rank is not None), None)
            if queue := sent[source, call.rank, call.group, call.tag]:
                found.append(Order(queue.pop(0), end))
    return found


def in_every_run(calls: Iterable[Call], observed: Iterable[Order]) -> list[Order]:
    """The same messages, as they are in every run.

    Which of several receives from any source takes which message differs from run to run. After the
    last receive of such a row all messages have arrived, in every run in which the same ranks send.
    So each of them is said to arrive with that last receive.
    """
    last = {
        end.key: max(row, key=lambda end: end.number) for row in rows_from_any(calls) for end in row
    }
    orders = (Order(order.before, last.get(order.after.key, order.after)) for order in observed)
    # Sorted, because the order in which they arrived differs from run to run.
    return sorted(orders, key=lambda order: (order.after.key, order.before.key))


def rows_from_any(calls: Iterable[Call]) -> list[list[Call]]:
    """The receives from any source, or their waits: those that follow one another in a list."""
    ends = _ends(calls)
    others = (call for call in _in_order(calls) if call.name != "wait")
    rows = (
        [ends[call.key] for call in row if call.key in ends]
        for (_, is_any), row in groupby(others, lambda call: (call.rank, _from_any(call)))
        if is_any
    )
    return [row for row in rows if row]


def data_flow(calls: Iterable[Call]) -> list[Order]:
    """The orders that collectives enforce between a rank that gives data and a rank that gets it.

    Calls belong together if they are the n-th collective of a group and agree on name and root.
    """
    ends, together = _ends(calls), defaultdict(list)
    for call in _in_order(calls):
        if call.name in FROM_ROOT | TO_ROOT | ALL_TO_ALL:
            together[call.group, call.seq, call.name, call.peer].append(call)
    return [
        Order(giver, end)
        for members in together.values()
        for giver in members
        for taker in members
        if giver is not taker and _gives(giver, taker) and (end := ends.get(taker.key))
    ]


def steps(
    calls: Iterable[Call], orders: Iterable[Order], instant: Collection[tuple[int, int]] = ()
) -> dict[tuple[int, int], tuple[int, int]]:
    """The step with which each call begins and the one with which it ends, by (rank, number).

    Each call takes one step, those in `instant` none, and begins as early as the orders allow. A
    call that its rank never left ends with the last step of all.
    """
    graph: dict[tuple, set] = defaultdict(set)
    weight: dict[tuple, int] = defaultdict(int)
    previous = None
    for call in _in_order(calls):
        enter, leave = (call.key, "enter"), (call.key, "leave")
        if previous and previous.rank == call.rank:
            graph[enter].add((previous.key, "leave"))
        else:
            graph[enter] = set()
        graph[leave].add(enter)
        weight[enter, leave] = 0 if call.key in instant else 1
        previous = call
    for order in orders:
        graph[order.after.key, "leave"].add((order.before.key, "enter"))
        weight[(order.before.key, "enter"), (order.after.key, "leave")] = 1
    for late, met in _lateness(calls):
        graph[late.key, "leave"].add((met.key, "enter"))
    at: dict[tuple, int] = {}
    for event in TopologicalSorter(graph).static_order():
        at[event] = max((at[before] + weight[before, event] for before in graph[event]), default=0)
    end = max(at.values(), default=0)
    return {
        call.key: (at[call.key, "enter"], end if call.left is None else at[call.key, "leave"])
        for call in calls
    }


def _lateness(calls: Iterable[Call]) -> Iterator[tuple[Call, Call]]:
    """Each span that is called "late", with the first call in which another rank may wait."""
    calls = _in_order(calls)
    blocking: dict[int, Call] = {}
    for call in calls:
        if call.name != SPAN and not call.is_async:
            blocking.setdefault(call.rank, call)
    for call in calls:
        if call.name == SPAN and call.awaited == LATE:
            yield from ((call, met) for rank, met in blocking.items() if rank != call.rank)


def words(call: Call) -> list[str]:
    """The call's name, its root, peer or claimed rank, its group unless WORLD, and if it failed."""
    if call.name == SPAN:
        return [str(call.awaited)]
    peer = "any" if call.peer is None else call.peer
    parts = [call.name]
    if call.name == "wait":
        parts.append(f"for {call.awaited}")
    elif call.name in SENDS:
        parts.append(f"to {peer}")
    elif call.name in RECEIVES:
        parts.append(f"from {peer}")
    elif call.name in FROM_ROOT | TO_ROOT:
        parts.append(f"root {peer}")
    elif call.name == "init_process_group" and call.peer is not None:
        parts.append(f"as rank {peer}")
    if call.tag and call.name != "wait":
        parts[-1] += f", tag {call.tag}"
    if call.group != WORLD and call.name != "wait":
        parts.append("in " + ", ".join(map(str, call.members)))
    if call.left is None:
        parts.append(call.error or "never returned")
    elif call.error is not None:
        parts.append("failed")
    return parts


def _gives(giver: Call, taker: Call) -> bool:
    """Whether the taker gets data from the giver, when both are in one collective."""
    if giver.name in FROM_ROOT:
        return giver.rank == giver.peer
    if giver.name in TO_ROOT:
        return taker.rank == taker.peer
    pieces = giver.splits[1] if giver.splits else None
    return not pieces or pieces[giver.members.index(taker.rank)] > 0


def _ends(calls: Iterable[Call]) -> dict[tuple[int, int | None], Call]:
    """By call, the call with which it was done: itself, or the first wait for its Work.

    Calls that failed, or were never done, are left out.
    """
    ends: dict[tuple[int, int | None], Call] = {}
    for call in _in_order(calls):
        if call.left is None or call.error is not None:
            continue
        if call.name == "wait":
            ends.setdefault((call.rank, call.of), call)
        elif not call.is_async:
            ends[call.key] = call
    return ends


def _from_any(call: Call) -> bool:
    return call.name in RECEIVES and call.peer is None


def _in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.key)
