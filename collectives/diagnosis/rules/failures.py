"""Ranks that raised, died or left: which of them is to blame, and which only lost the others. Pure."""

import re
from dataclasses import replace

from collectives.diagnosis.rules.compare import Difference, compare
from collectives.diagnosis.rules.report import ranks
from collectives.diagnosis.rules.snapshot import (
    LEFT,
    NOT_ENDED,
    Scene,
    State,
    Verdict,
    is_lost,
    timed_out,
)
from collectives.diagnosis.rules.wait_graph import kind_of, waits_for
from collectives.recording.call import WORLD
from collectives.spec.calls import POINT_TO_POINT


def failed(scene: Scene) -> Verdict | None:
    """A rank that raised or died of its own accord; not one that only lost the others."""
    failed = {
        rank: state
        for rank, state in scene.states.items()
        if (state.status == "died" and not _waited_in_vain(scene, rank))
        or (state.status == "raised" and not is_lost(state.text))
    }
    if not failed:
        return None
    # Who died while waiting for others, or as it lost them, was more likely ended because of them.
    rank = min(
        failed,
        key=lambda rank: (failed[rank].status == "died" and _waited(scene, rank), failed[rank].at),
    )
    state, here = failed[rank], scene.place(rank)
    if state.status == "died":
        alike, headline = [rank], f"died: rank {rank} {state.text}"
    else:
        alike = [
            other
            for other, one in failed.items()
            if other == rank or (one.where[0] and _raised(one) == _raised(state))
        ]
        alike = _named(alike, [failed[other].text for other in alike]) or alike
        state = failed[rank if rank in alike else alike[0]]
        headline = f"raised: {ranks(alike)}: {state.text}"
    guilty = tuple(map(scene.place, alike))
    return scene.verdict(
        state.status, headline, guilty=guilty, group=here.group if here.name else None, seq=here.seq
    )


def _raised(state: State) -> tuple:
    """The kind of the exception, and where it came from: what else it says may differ from rank to rank."""
    return state.status, state.text.partition(":")[0], state.where


def _named(raised: list[int], texts: list[str]) -> list[int]:
    """The one of the ranks which all their messages name, as do those of DDP for a model that differs in one rank."""
    named = set.intersection(
        *(
            {int(rank) for rank in re.findall(r"\brank (\d+)", text, re.IGNORECASE)}
            for text in texts
        )
    )
    return list(named) if len(named) == 1 and named <= set(raised) else []


def _waited(scene: Scene, rank: int) -> bool:
    last = scene.matching.last.get(rank)
    return bool(scene.matching.open.get(rank)) or (last is not None and is_lost(last.error or ""))


def _waited_in_vain(scene: Scene, rank: int) -> bool:
    """Whether a rank that died waits for one that had returned before, or that had lost somebody else, or lost it: its death is
    only what came of that."""
    opened, last = scene.matching.open.get(rank), scene.matching.last.get(rank)
    call = opened[max(opened)] if opened else last if last and last.error else None
    others = waits_for(scene.matching, call) if call else []
    earlier = [
        other
        for other in others
        if other in scene.states and scene.states[other].at < scene.states[rank].at
    ]
    returned = [other for other in earlier if scene.states[other].status == "returned"]
    lost = [
        other
        for other in earlier
        if scene.states[other].status == "raised" and other in scene.inside
    ]
    return bool(returned) or any(
        scene.waits_for(other) and rank not in scene.waits_for(other) for other in lost
    )


def aborted(scene: Scene) -> Difference | None:
    """gloo ends a process by SIGABRT if what comes has no room in its tensor: calls of C++ and Python that met may explain that."""
    ended = [
        rank
        for rank, state in scene.states.items()
        if state.status == "died" and "SIGABRT" in state.text
    ]
    if not ended:
        return None
    inside = scene.inside | {rank: call for rank in ended if (call := scene.place(rank)).name}
    for here in map(
        scene.place, scene.states.keys() - inside.keys()
    ):  # what it called from C++ is gone with it
        alike = [
            replace(call, rank=here.rank)
            for call in inside.values()
            if (call.file, call.line) == (here.file, here.line)
        ]
        inside |= {call.rank: call for call in alike[:1]}
    for rank in inside.keys() & set(ended):
        calls = {
            other: call
            for other, call in inside.items()
            if call.group == inside[rank].group and call.seq is not None
        }
        members = tuple(
            sorted(calls.keys() | {member for call in calls.values() for member in call.members})
        )
        if len(calls) > 1 and (
            found := compare(
                {other: replace(call, members=members) for other, call in calls.items()}
            )
        ):
            return found
    return None


def left_early(scene: Scene) -> Verdict | None:
    """A rank lost others that had joined its call, and that had left, without a word, before it was done."""
    returned = {rank: state for rank, state in scene.states.items() if state.status == "returned"}
    for rank, call in scene.inside.items():
        state = scene.states[rank]
        if state.status != "raised":
            continue
        others = (
            [call.peer]
            if kind_of(call) in POINT_TO_POINT
            else scene.states
            if call.group == WORLD
            else call.members
        )
        # When somebody left by os._exit nobody knows: `at` is when it was seen.
        left = [
            one
            for one in others
            if one in returned and (returned[one].text == LEFT or 0 < returned[one].at < state.at)
        ]
        if left:
            headline = f"raised: {ranks(left)} left before {kind_of(call)} was done; rank {rank}: {state.text}"
            return scene.verdict(
                "raised",
                headline,
                guilty=tuple(map(scene.place, left)),
                group=call.group,
                seq=call.seq,
            )
    return None


def lost(scene: Scene) -> Verdict | None:
    """Ranks that lost the others, and no sign of why: the first of them. If it timed out, those that were last seen elsewhere."""
    raised = {rank: state.at for rank, state in scene.states.items() if state.status == "raised"}
    if not raised or (
        not scene.stalled and any(state.status in NOT_ENDED for state in scene.states.values())
    ):
        return None
    rank = min(raised, key=raised.get)
    here, text = scene.place(rank), scene.states[rank].text
    seen = {other: scene.states[other].where[:2] for other in scene.computing}
    slow = [other for other, where in seen.items() if where[0] and where != (here.file, here.line)]
    if slow and here.name and timed_out(text):
        headline = (
            f"slow: {ranks(slow)} had not come to {kind_of(here)} when rank {rank} gave up: {text}"
        )
        return scene.verdict(
            "slow", headline, guilty=tuple(map(scene.place, slow)), group=here.group, seq=here.seq
        )
    return scene.verdict("raised", f"raised: rank {rank}: {text}", guilty=(here,))
