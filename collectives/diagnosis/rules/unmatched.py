"""What one node tells another of a rank: its calls that found no counterpart there. Pure."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.diagnosis.rules.matching import Matching, channel
from collectives.recording.call import Call, as_tuples, call_from_json, sequence_key
from collectives.semantics.calls import POINT_TO_POINT, SENDS

_OTHER = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Unmatched:
    """The calls of one rank that found no counterpart on its node, and its last call.

    `before`: by channel, how many of its sends and receives came before those in `calls`. `since`:
    if calls of it were missed, the number from which on all are known.
    """

    calls: tuple[Call, ...] = ()
    last: Call | None = None
    before: tuple[tuple[tuple, int], ...] = ()
    since: int | None = None


def unmatched(matching: Matching, rank: int) -> Unmatched:
    calls: dict[int, Call] = {}
    for sequence in matching.sequences.values():
        joined = (calls_of[rank] for calls_of in sequence.pending.values() if rank in calls_of)
        calls |= {call.number: call for call in joined}
    from_any = matching.messages.from_any.values()
    calls |= {call.number: call for call in from_any if call.rank == rank}
    before = []
    sides = (("send", 1, matching.messages.sends), ("recv", 2, matching.messages.receives))
    for kind, at, ends in sides:
        for key, end in ends.items():
            if key[at] == rank:
                before.append(((kind, *key), end.before))
                waiting = ((number, call) for (_, number), call in end.waiting.items())
                peer = key[3 - at]
                calls |= {number: dataclasses.replace(call, peer=peer) for number, call in waiting}
    for number, call in calls.items():
        if not call.left:  # it may have returned since; those that have not are added below
            calls[number] = dataclasses.replace(call, left=call.entered)
    calls |= matching.open[rank]
    in_order = tuple(calls[number] for number in sorted(calls))
    since = matching.since.get(rank)
    return Unmatched(in_order, matching.last.get(rank), tuple(before), since)


def merge(ranks: Iterable[Unmatched]) -> Matching:
    """Match the calls of all ranks.

    Calls before the first known one of another rank cannot be compared, and are left out.
    """
    ranks = list(ranks)
    first = _first_known(ranks)
    surplus = _surplus(ranks)
    matching = Matching()
    matching.since |= {
        rank.last.rank: rank.since for rank in ranks if rank.last and rank.since is not None
    }
    for call in (call for rank in ranks for call in rank.calls):
        if call.name in POINT_TO_POINT and call.peer is not None:
            key = "send" if call.name in SENDS else "recv", *channel(call)
            if surplus.get(key, 0):
                surplus[key] -= 1
                continue
        elif _is_collective(call) and (call.seq or 0) < first[sequence_key(call.group, call.name)]:
            continue
        matching.note(call)
    matching.last |= {rank.last.rank: rank.last for rank in ranks if rank.last is not None}
    return matching


def _is_collective(call: Call) -> bool:
    return call.seq is not None and call.name != "wait"


def _first_known(ranks: list[Unmatched]) -> dict[tuple, int]:
    """Of each sequence, the first seq from which the calls of all ranks are known."""
    first: dict[tuple, int] = {}
    for rank in ranks:
        own: dict[tuple, int] = {}
        for call in filter(_is_collective, rank.calls):
            own.setdefault(sequence_key(call.group, call.name), call.seq or 0)
        first |= {key: max(seq, first.get(key, 0)) for key, seq in own.items()}
    return first


def _surplus(ranks: list[Unmatched]) -> dict[tuple, int]:
    """Of each side of a channel, how many calls met other ends that are no longer known."""
    before = {key: count for rank in ranks for key, count in rank.before}
    surplus = {}
    for (kind, *ends), count in before.items():
        other = before.get((_OTHER[kind], *ends), count)
        surplus[kind, *ends] = max(0, other - count)
    return surplus


def from_json(values: list) -> Unmatched:
    """From a tuple of an Unmatched that went through JSON."""
    calls, last, before, since = values
    last = last and call_from_json(last)
    return Unmatched(tuple(map(call_from_json, calls)), last, as_tuples(before), since)
