"""What else helps to understand a verdict: it follows the lines of the ranks. Pure."""

import ast
import dataclasses
import linecache
import os

from collectives.diagnosis.rules.matching import kind_of
from collectives.diagnosis.rules.report import format_call, location
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.recording.call import Call
from collectives.recording.ending import Ending
from collectives.semantics.calls import GROUPS, POINT_TO_POINT, RECEIVES

# So many are told of each kind.
_MOST = 4


def with_asides(snapshot: Snapshot, verdict: Verdict) -> Verdict:
    """The verdict with these notes."""
    notes = [*_not_sent(snapshot, verdict), *_not_awaited(snapshot), *_caught(snapshot, verdict)]
    return dataclasses.replace(verdict, notes=(*verdict.notes, *notes))


def _not_sent(snapshot: Snapshot, verdict: Verdict) -> list[str]:
    """Receives that nobody matches, where ranks wait for other messages than for these."""
    waits = {rank: call for rank, call in snapshot.inside.items() if kind_of(call) == "isend"}
    if verdict.kind is not Ending.HUNG:
        return []
    found = [
        call
        for call in snapshot.matching.messages.unmatched()
        if call.name == "irecv" and call.rank in waits and snapshot.matching.knows_messages_of(call)
    ]
    return [
        f"no rank sent what rank {call.rank} receives by {format_call(call)}: {location(call)}"
        for call in found[:_MOST]
    ]


def _not_awaited(snapshot: Snapshot) -> list[str]:
    """Sends of ranks that have left, for which these did not wait, and which others still need."""
    needed = {
        (call.peer, rank) for rank, call in snapshot.inside.items() if kind_of(call) in RECEIVES
    }
    found = [
        call
        for rank, calls in snapshot.matching.unawaited.items()
        if rank in snapshot.states and snapshot.states[rank].status.is_over
        for call in calls.values()
        if (rank, call.peer) in needed or (None, call.peer) in needed
    ]
    return [
        f"rank {call.rank} never waited for {format_call(call)}: {location(call)}; "
        "what it has not sent by its end is lost"
        for call in found[:_MOST]
    ]


def _caught(snapshot: Snapshot, verdict: Verdict) -> list[str]:
    """Exceptions that guilty ranks caught, or may have caught, after their last calls."""
    notes = []
    for rank in sorted({call.rank for call in verdict.guilty} & snapshot.states.keys()):
        state = snapshot.states[rank]
        if rank in snapshot.inside or state.status.is_failure:
            continue
        if state.caught:
            notes.append(f"rank {rank} caught {state.caught}")
        elif handlers := _handlers(snapshot, rank):
            notes.append(f"rank {rank} may have come there by an exception: {handlers}")
    return notes


def _handlers(snapshot: Snapshot, rank: int) -> str:
    """The `except` lines of the `try` that the rank has left since its last collective."""
    path = [
        step
        for step in snapshot.matching.paths.get(rank, ())
        if step[0] not in GROUPS | POINT_TO_POINT
    ]
    here = _here(snapshot, rank)
    if not path or path[-1][2] != here.file:
        return ""
    last_line = path[-1][3]
    try:
        tree = ast.parse("".join(linecache.getlines(here.file)))
    except (SyntaxError, ValueError):
        return ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try) or not node.handlers:
            continue
        body = range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
        if last_line in body and here.line not in body:
            lines = [handler.lineno for handler in node.handlers]
            texts = [linecache.getline(here.file, line).strip() for line in lines]
            file = os.path.basename(here.file)
            return "; ".join(
                f"{text} ({file}:{line})" for text, line in zip(texts, lines, strict=True)
            )
    return ""


def _here(snapshot: Snapshot, rank: int) -> Call:
    file, line, function = snapshot.states[rank].where
    if file:
        return Call("", rank=rank, file=file, line=line, function=function)
    return snapshot.place(rank)
