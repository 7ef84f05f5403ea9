"""Of all that went wrong in a job, what came first, as a headline. Pure."""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collectives.diagnosis.log.endings import LoggedEnd
from collectives.diagnosis.log.lines import LineWriter
from collectives.diagnosis.log.messages import table
from collectives.diagnosis.log.tracebacks import LoggedError
from collectives.words import ranks

# These say that another process failed, or that somebody ended this one.
_FOLLOWS = {
    *("KeyboardInterrupt", "SystemExit", "SignalException", "ChildFailedError", "GeneratorExit"),
    *("ProcessRaisedException", "ProcessExitedException", "CalledProcessError", "CancelledError"),
    *("RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    *("EngineDeadError", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError"),
    *("RayTaskError", "EOFError", "ExceptionGroup", "BaseExceptionGroup"),
}  # fmt: skip
_LONGEST = 240
_ROWS = 8


@dataclass(frozen=True)
class Exceptions:
    """What one process raised in the end, without what only follows from another's fault.

    `error`: as in KeyError: 'loss'. `place`: as in train.py:12, or nothing. `origin`: what it
    was handling when it raised that, with the place, or nothing.
    """

    who: LineWriter
    log: str
    line: int
    error: str
    place: str
    origin: str
    time: str

    @property
    def kind(self) -> str:
        """Errors that differ in their numbers alone are of one kind."""
        return re.sub(r"\d+", "#", self.error)


def name_of(writer: LineWriter, log: str, several: bool, tasks_are_ranks: bool) -> str:
    if writer.rank is not None:
        return f"rank {writer.rank}"
    if writer.local is not None:
        return f"local rank {writer.local}"
    if writer.label.startswith("task ") and tasks_are_ranks:
        return f"rank {writer.label.removeprefix('task ')}"
    if writer.label:
        return writer.label
    return f"the process of {log}" if several else "a process"


def follows(kind: str, text: str, more: Iterable[str] = ()) -> bool:
    """Whether an exception says no more than that another process failed or did not come."""
    if kind.rpartition(".")[2].partition("(")[0] in _FOLLOWS:
        return True
    kinds = (_kinds(re.sub(r"\d", "0", said)) for said in (f"{kind}: {text}", *more))
    known = next((each for each in kinds if each), set())
    return known == {"consequence"}


@functools.lru_cache(4096)
def _kinds(said: str) -> set[str]:
    """Of the messages that a line holds."""
    return {one.kind for one in table() if one.search(said)}


def own_error(raised: LoggedError) -> Exceptions | None:
    """The last exception of a chain that is its own; nothing if there is none."""
    own = [
        number
        for number, (kind, text) in enumerate(raised.errors)
        if not follows(kind, text, raised.more if number == len(raised.errors) - 1 else ())
    ]
    if not own:
        return None
    last, first = own[-1], own[0]
    origin = ""
    if first != last:
        origin = _error(*raised.errors[first]) + _in_brackets(raised.places[first])
    error = _error(*raised.errors[last])
    if last == len(raised.errors) - 1 and "Last error:" in raised.more[:-1]:  # NCCL's own words
        error += f"; {raised.more[raised.more.index('Last error:') + 1].strip()}"
    return Exceptions(
        raised.writer,
        raised.log,
        raised.lines[last],
        error,
        raised.places[last],
        origin,
        raised.time,
    )


def own_errors(raised: Iterable[LoggedError]) -> list[Exceptions]:
    """Of each process the last one: it went on after all others.

    A process that ended by what follows from another's fault has none, unless no process has one.
    """
    by_process: dict[object, list[LoggedError]] = {}
    for number, one in enumerate(raised):
        known = one.writer != LineWriter()
        by_process.setdefault((one.log, one.writer) if known else number, []).append(one)
    last = [own_error(each[-1]) for each in by_process.values()]
    found = [one for one in last if one]
    if not found:
        each = [list(filter(None, map(own_error, ones))) for ones in by_process.values()]
        found = [ones[-1] for ones in each if ones]
    return found


def _error(kind: str, text: str) -> str:
    said = f"{kind}: {text}" if text else kind
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def _in_brackets(*places: str) -> str:
    text = ", ".join(place for place in places if place)
    return f" ({text})" if text else ""


def raised_first(
    errors: list[Exceptions], lost: set[int], several: bool, name: Callable[[LineWriter, str], str]
) -> str:
    """`lost`: ranks that lost another one, or waited for it. `name`: of a process."""
    is_ordered = len({raised.log for raised in errors}) == 1
    if not is_ordered and all(raised.time for raised in errors):
        errors, is_ordered = sorted(errors, key=lambda raised: raised.time), True
    first = errors[0]
    alike = [raised for raised in errors if raised.kind == first.kind]
    others = [raised for raised in errors if raised.kind != first.kind]
    where = f"line {first.line} of {first.log if several else 'the log'}"
    text = f"raised: {_names(alike, name)} raised {first.error}{_in_brackets(first.place, where)}"
    text += f", after {first.origin}" if first.origin else ""
    numbers = {raised.who.rank for raised in errors}
    if lost - numbers and is_ordered and first.who != LineWriter():
        text += f", before {ranks(lost - numbers)} lost it"
    rows = [
        f"  {name(raised.who, raised.log)} raised {raised.error}"
        + _in_brackets(
            raised.place, f"line {raised.line}" + (f" of {raised.log}" if several else "")
        )
        for raised in others[:_ROWS]
    ]
    if others and not is_ordered:
        rows.append("  the logs do not tell which of these was first")
    return "\n".join([text, *rows])


def _names(errors: list[Exceptions], name: Callable[[LineWriter, str], str]) -> str:
    numbers = {one.who.rank for one in errors if one.who.rank is not None}
    if all(one.who.rank is not None for one in errors):
        return ranks(numbers)
    names = list(dict.fromkeys(name(one.who, one.log) for one in errors))
    if len(names) == 1 and len(errors) > 1 and names[0] == "a process":
        return f"{len(errors)} processes"
    return ", ".join(names[:_ROWS])


def died_first(endings: list[LoggedEnd], has_errors: bool, aborted: bool) -> LoggedEnd | None:
    """A process that died without an exception. `aborted`: by a watchdog, whose words say more."""
    died = [one for one in endings if one.is_cause and not (aborted and one.number == 6)]
    sure = [one for one in died if one.is_first or one.why or not one.label.startswith("task ")]
    roots = [one for one in endings if one.is_first]
    if roots and not any(one.is_cause for one in roots):
        sure = [one for one in sure if one.why]
    if not sure and not has_errors and not roots and len(died) == len(endings):
        sure = died
    named = [one for one in sure if one.rank is not None] or [one for one in sure if one.is_first]
    return next(iter(named or sure), None)


def interrupted(raised: list[LoggedError], name: Callable[[LineWriter, str], str]) -> str:
    """Where each process was when somebody pressed Ctrl-C, or nothing if nobody did."""
    found = [one for one in raised if one.errors[-1][0] == "KeyboardInterrupt"]
    if not found:
        return ""
    rows = [
        f"  {name(one.writer, one.log)} was at {one.places[-1]}" for one in found if one.places[-1]
    ]
    headline = "interrupted: somebody pressed Ctrl-C, or sent SIGINT"
    return "\n".join([headline, *list(dict.fromkeys(rows))[:_ROWS]])
