"""What logs and dumps of a job show, as text."""

import contextlib
import glob
import sys
from collections.abc import Iterable
from pathlib import Path

from collectives.diagnosis.attach import report as standing
from collectives.diagnosis.log import dump, verdict
from collectives.diagnosis.log.job import Logs
from collectives.diagnosis.log.messages import MOST, Sighting
from collectives.recording.ending import Ending
from collectives.words import ranks

_PAGE = "docs/messages.md"


def report(names: Iterable[str]) -> tuple[str, bool]:
    """Of all files together: the logs of a job, and its dumps. "-" is standard input.

    A name that no file has is taken for the beginning of the names of several. Raises ValueError
    for a file that cannot be read, or is neither. Return the text, and whether dumps show that
    nothing is wrong; a log cannot show that.
    """
    dumps: dict[int, dump.Dump] = {}
    logs = Logs()
    seen: list[dict] = []  # by --pid, on each machine
    for name in (file for given in names for file in _files(given)):
        with _opened(name) as stream:
            if standing.is_document(stream.peek(64)):
                seen.append(standing.read(name, stream))
                continue
            if not dump.is_dump(stream.peek(2)[:2]):
                logs.read(name, stream)
                continue
            try:
                dumps[dump.rank_of(Path(name))] = dump.read(stream)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    texts = _of_logs(logs) if logs.names else []
    of_dumps = dump.verdict(dumps) if dumps else None
    if of_dumps is not None:
        texts.append(of_dumps.says)
    if seen:
        texts.append(standing.write(seen))
        if of_dumps is None and not logs.names:
            return texts[0], not standing.somebody_waits(seen)
    return "\n\n".join(
        texts
    ), of_dumps is not None and of_dumps.kind is Ending.OK and not logs.names


def _files(given: str) -> list[str]:
    path = Path(given)
    if given == "-" or path.exists():
        return [given]
    return sorted(map(str, path.parent.glob(f"{glob.escape(path.name)}*"))) or [given]


@contextlib.contextmanager
def _opened(name: str):
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(name, "rb") as stream:
            yield stream
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from None


def _of_logs(logs: Logs) -> list[str]:
    seen = logs.in_order()
    headlines = verdict.headlines(logs)
    if not seen and not headlines:
        return [_nothing(logs)]
    several = len(logs.names) > 1
    causes = [one for one in seen if one.message.kind == "cause"]
    reported = causes if causes or verdict.has_cause(logs) else seen
    texts = [*headlines, *(_of_message(one, logs, several) for one in reported)]
    if rest := [one for one in seen if one not in reported]:
        texts.append(
            "\n".join(["also there, and mostly not the cause:", *_short(rest, logs, several)])
        )
    return texts


def _nothing(logs: Logs) -> str:
    names = ", ".join(logs.names)
    strange = [f"{name} {why}." for name, why in logs.strange.items()]
    text = f"{names}: no traceback is there, and no message that {_PAGE} explains."
    return "\n".join([text, *strange])


def _of_message(sighting: Sighting, logs: Logs, several: bool) -> str:
    message = sighting.message
    is_other = sighting.wording != message.message
    heading = f', "{message.message}"' if is_other else ""
    return "\n".join(
        [
            f'"{sighting.wording}"',
            f"  {_where(sighting, logs, several)}",
            f"  meaning  {message.means}",
            f"  look at  {message.rank}",
            f"  cure     {message.cure}",
            f"  more     lesson {message.lesson}, {_PAGE}{heading}",
        ]
    )


def _short(seen: Iterable[Sighting], logs: Logs, several: bool) -> list[str]:
    return [f'  "{one.wording}"  {_where(one, logs, several)}' for one in seen]


def _where(sighting: Sighting, logs: Logs, several: bool) -> str:
    """`several`: logs were read, so the name of this one is needed."""
    lines = f"line {sighting.line}" + (f" of {sighting.log}" if several else "")
    if sighting.count > 1:
        many = f"{sighting.count} lines" if sighting.count < MOST else f"{MOST} lines or more"
        lines = f"{many}, the first is {lines}"
    numbers, labels = verdict.as_ranks(logs, sighting)
    written = [ranks(numbers)] if numbers else []
    written += [f"local {ranks(sighting.local_ranks)}"] if sighting.local_ranks else []
    written += sorted(labels)[:8]
    return f"{lines}; {' and '.join(written)}" if written else lines
