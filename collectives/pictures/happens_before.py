"""What a run really ordered: which call of which rank could not end before which call of another rank had begun.

Lamport's happens-before, from recorded calls. Seconds play no part, so the same program gives the same order in every run. One
event comes before another if one of these says so, or several of them in a row:

- a rank makes its calls one after the other;
- a message is received only after it was sent: entering `send` comes before leaving `recv`, or the `wait` of an `irecv`;
- who gets data out of a collective leaves it (or its `wait`) only after those whose data it gets have entered: everybody in
  all_reduce, all_gather, barrier and their like, the root in broadcast and scatter; in reduce and gather only the root waits.

Nothing else is taken for ordered, because torch.distributed promises no more: gloo's `send` also waits for its receiver, but that
of other backends need not; and new_group ends with a barrier only where TORCH_DIST_INIT_BARRIER=1 asks for one.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter

from collectives.recording.call import WORLD, Call
from collectives.spec.calls import ALL_TO_ALL, FROM_ROOT, RECEIVES, SENDS, TO_ROOT


@dataclass(frozen=True)
class Order:
    """The rank of `after` leaves it only after the rank of `before` has entered that."""

    before: Call
    after: Call


def messages(calls: Iterable[Call]) -> list[Order]:
    """Each message, from its send to the call with which it had arrived: a receive, or the wait for one.

    Messages from one rank to another, in one group and with one tag, arrive in the order in which they were sent. What was sent or
    received in vain is left out.
    """
    sent, found = defaultdict(list), []
    for call in _in_order(calls):
        if call.name in SENDS and call.error is None:
            sent[call.rank, call.peer, call.group, call.tag].append(call)
    ends = _ends(calls)
    for call in _in_order(calls):
        if call.name in RECEIVES and (end := ends.get(_key(call))):
            source = next(
                (rank for rank in (call.source, end.source, call.peer) if rank is not None), None
            )
            if queue := sent[source, call.rank, call.group, call.tag]:
                found.append(Order(queue.pop(0), end))
    return found


def in_every_run(calls: Iterable[Call], found: Iterable[Order]) -> list[Order]:
    """The same messages, but those to receives from any source arrive with the last of a row of such receives.

    Which of them takes which message differs from run to run; that all have come after the last one does not, as long as the same
    ranks send. (Where what is sent depends on who came first, as with a server that answers, the run itself differs.)
    """
    ends, last, row = _ends(calls), {}, []
    for call in _in_order(calls):
        if row and (call.rank != row[0].rank or (call.name != "wait" and not _from_any(call))):
            row = []
        if _from_any(call) and (end := ends.get(_key(call))):
            row.append(end)
            last |= dict.fromkeys(map(_key, row), max(row, key=lambda end: end.number))
    return sorted(
        (Order(one.before, last.get(_key(one.after), one.after)) for one in found),
        key=lambda one: (_key(one.after), _key(one.before)),  # not as they came
    )


def data_flow(calls: Iterable[Call]) -> list[Order]:
    """The orders that collectives make, between each two ranks of which one gets the other's data.

    Together are the n-th collectives of a group, of the ranks that agree on what it is and on the root.
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
        if giver is not taker and _gives(giver, taker) and (end := ends.get(_key(taker)))
    ]


def steps(calls: Iterable[Call], orders: Iterable[Order]) -> dict[tuple[int, int], tuple[int, int]]:
    """Where each call begins and ends, by (rank, number): as early as the orders allow, if every call takes one step.

    A call that the rank never left ends where all else has ended.
    """
    graph, weight = defaultdict(set), defaultdict(int)
    previous = None
    for call in _in_order(calls):
        enter, leave = (_key(call), "enter"), (_key(call), "leave")
        graph[enter] |= (
            {(_key(previous), "leave")} if previous and previous.rank == call.rank else set()
        )
        graph[leave].add(enter)
        weight[enter, leave] = 1
        previous = call
    for order in orders:
        graph[_key(order.after), "leave"].add((_key(order.before), "enter"))
        weight[(_key(order.before), "enter"), (_key(order.after), "leave")] = 1
    at: dict[tuple, int] = {}
    for event in TopologicalSorter(graph).static_order():
        at[event] = max((at[before] + weight[before, event] for before in graph[event]), default=0)
    end = max(at.values(), default=0)
    return {
        _key(call): (at[_key(call), "enter"], end if call.left is None else at[_key(call), "leave"])
        for call in calls
    }


def words(call: Call) -> list[str]:
    """A call in words: its name, its other side, its group unless that is the world, and how it ended if not well."""
    peer = "any" if call.peer is None else call.peer
    told = [call.name]
    if call.name == "wait":
        told.append(f"for {call.awaited}")
    elif call.name in SENDS:
        told.append(f"to {peer}")
    elif call.name in RECEIVES:
        told.append(f"from {peer}")
    elif call.name in FROM_ROOT | TO_ROOT:
        told.append(f"root {peer}")
    if call.tag and call.name != "wait":
        told[-1] += f", tag {call.tag}"
    if call.group != WORLD and call.name != "wait":
        told.append("in " + ", ".join(map(str, call.members)))
    if call.left is None or call.error is not None:
        told.append("not left" if call.left is None else "failed")
    return told


def _gives(giver: Call, taker: Call) -> bool:
    """Whether the taker gets data from the giver, when both are in one collective."""
    if giver.name in FROM_ROOT:
        return giver.rank == giver.peer
    if giver.name in TO_ROOT:
        return taker.rank == taker.peer
    pieces = giver.splits[1] if giver.splits else None
    return not pieces or pieces[giver.members.index(taker.rank)] > 0


def _ends(calls: Iterable[Call]) -> dict[tuple[int, int], Call]:
    """For each call that was done without an error, the call with which it was done: itself, or the first wait for its Work."""
    ends = {}
    for call in _in_order(calls):
        if call.left is None or call.error is not None:
            continue
        if call.name == "wait":
            ends.setdefault((call.rank, call.of), call)
        elif not call.is_async:
            ends[_key(call)] = call
    return ends


def _from_any(call: Call) -> bool:
    return call.name in RECEIVES and call.peer is None


def _in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=_key)


def _key(call: Call) -> tuple[int, int]:
    return call.rank, call.number
