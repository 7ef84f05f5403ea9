"""What one machine tells another of a rank: the calls that have found no counterpart among those that it knows. Pure."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.messages import channel
from collectives.recording.call import Call, from_plain, plain, sequence_key
from collectives.spec.calls import POINT_TO_POINT, SENDS


@dataclass(frozen=True)
class LeftOver:
    """`last`: the rank's last call. `before`: by channel, how many of its sends and receives came before those in `calls`."""

    calls: tuple[Call, ...] = ()
    last: Call | None = None
    before: tuple[tuple[tuple, int], ...] = ()


def left_over(matching: Matching, rank: int) -> LeftOver:
    found = {}
    for its in matching.sequences.values():
        found |= {
            joined[rank].number: joined[rank] for joined in its.pending.values() if rank in joined
        }
    found |= {
        call.number: call for call in matching.messages.from_any.values() if call.rank == rank
    }
    before = []
    for at, ends in ((1, matching.messages.sends), (2, matching.messages.receives)):
        for key, end in ends.items():
            if key[at] == rank:
                before.append((("send" if at == 1 else "recv", *key), end.before))
                found |= {
                    number: dataclasses.replace(call, peer=key[3 - at])
                    for (_, number), call in end.waiting.items()
                }
    inside = matching.open[rank]
    found = {
        number: call if call.left else dataclasses.replace(call, left=call.entered)
        for number, call in found.items()
    } | inside
    return LeftOver(
        tuple(found[number] for number in sorted(found)), matching.last.get(rank), tuple(before)
    )


def together(left_overs: Iterable[LeftOver]) -> Matching:
    """All ranks' left-over calls. What came before the window of one of them can no longer be compared, and is left out."""
    left_overs = list(left_overs)
    first: dict[tuple, int] = {}
    for one in left_overs:
        own: dict[tuple, int] = {}
        for call in one.calls:
            if call.seq is not None and call.name != "wait":
                own.setdefault(sequence_key(call.group, call.name), call.seq)
        first |= {key: max(seq, first.get(key, 0)) for key, seq in own.items()}
    before = {key: count for one in left_overs for key, count in one.before}
    surplus = {
        key: max(0, before.get((_OTHER[key[0]], *key[1:]), count) - count)
        for key, count in before.items()
    }
    matching = Matching()
    for call in (call for one in left_overs for call in one.calls):
        if call.name in POINT_TO_POINT and call.peer is not None:
            key = "send" if call.name in SENDS else "recv", *channel(call)
            if surplus.get(key, 0):
                surplus[key] -= 1
                continue
        elif (
            call.seq is not None
            and call.name != "wait"
            and call.seq < first[sequence_key(call.group, call.name)]
        ):
            continue
        matching.note(call)
    matching.last |= {one.last.rank: one.last for one in left_overs if one.last is not None}
    return matching


_OTHER = {"send": "recv", "recv": "send"}


def to_json(one: LeftOver) -> dict:
    last = None if one.last is None else plain(one.last)
    return {
        "calls": [plain(call) for call in one.calls],
        "last": last,
        "before": [[list(key), count] for key, count in one.before],
    }


def from_json(told: dict) -> LeftOver:
    last = None if told["last"] is None else from_plain(told["last"])
    return LeftOver(
        tuple(map(from_plain, told["calls"])),
        last,
        tuple((tuple(key), count) for key, count in told["before"]),
    )
