"""What the logs of a job say in one sentence: who failed first, or which call was not joined."""

import re
from dataclasses import replace

from collectives.diagnosis.log import cause
from collectives.diagnosis.log.cause import Exceptions
from collectives.diagnosis.log.endings import LoggedEnd
from collectives.diagnosis.log.job import Logs
from collectives.diagnosis.log.lines import LineWriter
from collectives.diagnosis.log.messages import Sighting
from collectives.words import ranks

_FEW = 6
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


def headlines(logs: Logs) -> list[str]:
    """Causes first, then what the watchdog wrote."""
    errors, later = _errors(logs)
    died = _died(logs, errors)
    watchdog = logs.watchdog.verdicts(logs.ranks)
    texts = []
    if died is not None:
        texts.append(_of_death(logs, died, errors))
    elif errors:
        said = cause.raised_first(errors, _lost(logs), _several(logs), _namer(logs))
        texts.append("\n".join([said, *_seen_by_launcher(logs, errors)]))
    texts += watchdog
    texts += [
        f"after that, {_name(logs, late.who, late.log)} raised {late.error} (line {late.line})"
        for late in later[:_FEW]
    ]
    if not texts:
        texts = _without_a_cause(logs)
    return texts


def has_cause(logs: Logs) -> bool:
    errors, _ = _errors(logs)
    return bool(errors) or _died(logs, errors) is not None


def as_ranks(logs: Logs, sighting: Sighting) -> tuple[set[int], set[str]]:
    """Who wrote it: ranks, and names of others."""
    tasks = {label for label in sighting.labels if label.startswith("task ")}
    if not logs.tasks_are_ranks:
        tasks = set()
    numbers = {int(label.removeprefix("task ")) for label in tasks}
    return sighting.ranks | numbers, sighting.labels - tasks


def _errors(logs: Logs) -> tuple[list[Exceptions], list[Exceptions]]:
    """Those before the first timeout of a watchdog; and those after it, which follow from it."""
    found = cause.own_errors(logs.tracebacks.raised)
    if logs.watchdog.first is None:
        return found, []
    log, line = logs.watchdog.first
    later = [one for one in found if one.log == log and one.line > line]
    return [one for one in found if one not in later], later


def _died(logs: Logs, errors: list[Exceptions]) -> LoggedEnd | None:
    aborted = bool(logs.watchdog.calls or logs.watchdog.groups)
    return cause.died_first(logs.endings.all, bool(errors), aborted)


def _of_death(logs: Logs, died: LoggedEnd, errors: list[Exceptions]) -> str:
    log = died.log if _several(logs) else "the log"
    how = f" by {died.how}" if died.number else f", {died.how}"
    first = ", the first to fail" if died.is_first else ""
    if logs.tasks_are_ranks and (task := re.fullmatch(r"task (\d+)", died.label)):
        died = replace(died, rank=int(task[1]))
    rows = [
        f"  {_name(logs, one.who, one.log)} raised {one.error} (line {one.line})"
        for one in errors[:_FEW]
    ]
    return "\n".join([f"died: {died.who}{how}{first} (line {died.line} of {log})", *rows])


def _seen_by_launcher(logs: Logs, errors: list[Exceptions]) -> list[str]:
    """Which process ended first, if the exceptions do not tell whose they are."""
    if any(one.who != LineWriter() for one in errors):
        return []
    ended = [one for one in logs.endings.all if one.code and one.code > 0]
    named = [one for one in ended if one.rank is not None] or ended
    return [
        f"  the launcher saw {one.who} end, by {one.how} (line {one.line})" for one in named[:1]
    ]


def _without_a_cause(logs: Logs) -> list[str]:
    """Where nothing in the logs is a cause."""
    interrupted = [
        traceback
        for traceback in logs.tracebacks.raised
        if traceback.errors[-1][0] == "KeyboardInterrupt"
    ]
    if interrupted:
        return [cause.interrupted(interrupted, _namer(logs))]
    if any(sighting.message.kind == "cause" for sighting in logs.sightings.values()):
        return []
    if waited := _waited(logs):
        return [waited]
    roots = [ending for ending in logs.endings.all if ending.is_first and (ending.code or 0) > 0]
    if roots:
        root = roots[-1]
        raised = [
            each for each in logs.tracebacks.raised if each.writer.rank == root.rank is not None
        ]
        said = "; its traceback is not in this log"
        if root.error:
            said = f" with {root.error}"
        elif raised:
            said = f", and its error in line {raised[-1].lines[-1]} speaks of another rank"
        return [f"raised: {root.who} ended first, by {root.how}{said} (line {root.line})"]
    return _lacking(logs)


def _waited(logs: Logs) -> str:
    """Where each rank gave up, if all tracebacks of ranks are those of timeouts."""
    last = {one.writer.rank: one for one in logs.tracebacks.raised if one.writer.rank is not None}
    if len(last) < 2 or not all(_TIMED_OUT.search(one.errors[-1][1]) for one in last.values()):
        return ""
    places: dict[str, set[int]] = {}
    for rank, one in sorted(last.items()):
        places.setdefault(one.places[-1] or "a line that is not in this log", set()).add(rank)
    rows = [f"  {ranks(numbers)} at {place}" for place, numbers in places.items()]
    said = "hang: each of these ranks waited for another one, until its time limit"
    return "\n".join([said, *rows])


def _lacking(logs: Logs) -> list[str]:
    """Of several logs, those that do not speak of a lost or missing rank."""
    speak = {
        log
        for one in logs.sightings.values()
        if one.message.kind == "consequence"
        for log in one.logs
    }
    silent = [name for name in logs.names if name not in speak]
    if not speak or not silent:
        return []
    rows = [f"  {name} ends with: {logs.last_lines[name] or 'nothing'}" for name in silent[:_FEW]]
    what = "these logs do" if len(silent) > 1 else "this log does"
    said = f"{len(speak)} of {len(logs.names)} logs speak of a rank that was lost or did not come"
    return ["\n".join([f"unknown: {said}, and {what} not: look there first", *rows])]


def _lost(logs: Logs) -> set[int]:
    """Ranks that say that they lost another one, or waited for it."""
    of_it = [one for one in logs.sightings.values() if one.message.kind == "consequence"]
    return {rank for one in of_it for rank in as_ranks(logs, one)[0]}


def _several(logs: Logs) -> bool:
    return len(logs.names) > 1


def _name(logs: Logs, who: LineWriter, log: str) -> str:
    return cause.name_of(who, log, _several(logs), logs.tasks_are_ranks)


def _namer(logs: Logs):
    return lambda who, log: _name(logs, who, log)
