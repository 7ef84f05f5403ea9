"""What logs and dumps of a job show, as text."""

import contextlib
import glob
import sys
from collections.abc import Iterable
from pathlib import Path

from collectives.diagnosis.log import dump
from collectives.diagnosis.log.messages import Logs, Sighting
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
    for name in (one for given in names for one in _files(given)):
        with _opened(name) as stream:
            if not dump.is_dump(stream.peek(2)[:2]):
                logs.read(name, stream)
                continue
            try:
                dumps[dump.rank_of(Path(name))] = dump.read(stream)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    texts = _of_logs(logs) if logs.names else []
    verdict = dump.verdict(dumps) if dumps else None
    if verdict is not None:
        texts.append(verdict.says)
    return "\n\n".join(texts), verdict is not None and verdict.kind == "ok" and not logs.names


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
    if not logs.sightings:
        names = ", ".join(logs.names)
        return [f"{names}: nothing there is a message that {_PAGE} explains."]
    several = len(logs.names) > 1
    return [*logs.watchdog.verdicts(), *(_of_message(one, several) for one in logs.in_order())]


def _of_message(sighting: Sighting, several: bool) -> str:
    message = sighting.message
    return "\n".join(
        [
            f'"{message.message}"',
            f"  {_where(sighting, several)}",
            f"  meaning  {message.means}",
            f"  look at  {message.rank}",
            f"  cure     {message.cure}",
            f"  more     lesson {message.lesson}, {_PAGE}",
        ]
    )


def _where(sighting: Sighting, several: bool) -> str:
    """`several`: logs were read, so the name of this one is needed."""
    lines = f"line {sighting.line}" + (f" of {sighting.log}" if several else "")
    if sighting.count > 1:
        lines = f"{sighting.count} lines, the first is {lines}"
    written = [ranks(sighting.ranks)] if sighting.ranks else []
    written += [f"local {ranks(sighting.local_ranks)}"] if sighting.local_ranks else []
    return f"{lines}; {' and '.join(written)}" if written else lines
