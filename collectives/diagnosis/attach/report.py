"""Where ranks stand, as text: of what one machine saw, or several. Pure."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import IO, Any

from collectives.diagnosis.rules import report
from collectives.recording.call import Call
from collectives.words import counted, ranks

# How many rows of ranks, and lines on the side, are shown.
_LINES = 24


def is_document(begin: bytes) -> bool:
    """Whether a file is what `collectives diagnose --pid PID --json FILE` wrote."""
    return begin.lstrip().startswith(b"{") and b'"standing"' in begin


def read(name: str, stream: IO[bytes]) -> dict[str, Any]:
    """One such file. Raises ValueError if it is cut."""
    try:
        return json.loads(stream.read())
    except ValueError as error:
        raise ValueError(f"{name} is not whole: {error}") from None


def somebody_waits(documents: Iterable[dict]) -> bool:
    return any(
        row["state"] in ("waits", "stopped")
        for document in documents
        for job in document["jobs"]
        for row in job["ranks"]
    )


def write(documents: list[dict]) -> str:
    """One report of all machines: a headline, and for each job where its ranks stand."""
    jobs = [job for document in documents for job in document["jobs"]]
    if len(documents) > 1 and all(len(document["jobs"]) == 1 for document in documents):
        jobs = [_merged(jobs)]  # one job on several machines
    rows = [row for job in jobs for row in job["ranks"]]
    waiting = sum(row["state"] in ("waits", "stopped") for row in rows)
    between = max(document["between"] for document in documents)
    asked = ", ".join(_asked(document, len(documents) > 1) for document in documents)
    what = f"{waiting} of {counted(len(rows), 'rank')} stood still" if waiting else "nobody waits"
    text = [f"where they stand: {what}, looked at twice, {between:g} s apart, below {asked}"]
    for number, job in enumerate(jobs, 1):
        text += [f"job {number}"] if len(jobs) > 1 else []
        text += [_job(job, len(documents) > 1)]
    for document in documents:
        if document.get("above"):
            text.append(f"  for more ranks of its job, ask --pid {document['above']}, its parent")
    return "\n".join(text)


def _asked(document: dict, several: bool) -> str:
    name = f"process {document['standing']} ({document['command'][:60]})"
    return f"{name} on {document['machine']}" if several else name


def _merged(jobs: list[dict]) -> dict:
    sizes = [job["world_size"] for job in jobs if job["world_size"]]
    return {
        "ranks": sorted(
            (row for job in jobs for row in job["ranks"]),
            key=lambda row: (row["rank"] is None, row["rank"] or 0),
        ),
        "ended": sorted({rank for job in jobs for rank in job["ended"]}),
        "world_size": max(sizes, default=None),
    }


def _job(job: dict, several: bool) -> str:
    rows = job["ranks"]
    names = {id(row): row["rank"] for row in rows}
    if any(name is None for name in names.values()):
        return _unnumbered(rows)
    lines = {row["rank"]: (_doing(row), _where(row, several)) for row in rows}
    lines |= dict.fromkeys(job["ended"], ("ended: no process has this number", ""))
    return report.write("", lines, _notes(job)).removeprefix("\n")


def _unnumbered(rows: list[dict]) -> str:
    text = ["  nothing tells which rank is which, so they are named by their processes"]
    for row in rows[:_LINES]:
        text.append(f"  process {row['pid']}  {_doing(row)}  {_where(row, False)}".rstrip())
    return "\n".join([*text, *(f"  {note}" for note in _side_notes(rows))])


def _doing(row: dict) -> str:
    call = row.get("call", "")
    if row["state"] == "waits":
        return f"in {call}" if row["inside"] else f"stands still, {call}"
    return {
        "moves": f"moves, now {'in ' if row.get('inside') else ''}{call}",
        "runs": f"runs at this line, {'in ' if row.get('inside') else ''}{call}",
        "stopped": "stopped, as by SIGSTOP or a debugger",
        "ended": "has ended since the first look",
        "unread": f"cannot be read: {row['why']}",
    }[row["state"]]


def _where(row: dict, several: bool) -> str:
    if not row.get("file"):
        return ""
    return _location(row) + (f" on {row['machine']}" if several else "") + row["source"]


def _location(place: dict) -> str:
    call = Call("", rank=0, file=place["file"], line=place["line"], function=place["function"])
    return report.location(call)


def _notes(job: dict) -> list[str]:
    rows, ended, size = job["ranks"], job["ended"], job["world_size"]
    notes = []
    seen = {row["rank"] for row in rows} | set(ended)
    if size and (elsewhere := set(range(size)) - seen):
        notes.append(
            f"not looked at: {ranks(elsewhere)} of {size}, not below this process, or ended"
        )
    waiting = [row for row in rows if row["state"] in ("waits", "stopped")]
    moving = [row["rank"] for row in rows if row["state"] in ("moves", "runs")]
    if waiting:
        notes += _odd(rows, ended)
    if waiting and moving:
        them = "it" if len(moving) == 1 else "them"
        notes.append(f"{ranks(moving)} did not stand still: the others may only wait for {them}")
    return notes + _side_notes(rows)


def _odd(rows: list[dict], ended: list[int]) -> list[str]:
    """Who stands elsewhere than most, and what differs where all stand at one place."""
    read = [row for row in rows if row.get("file")]
    places = Counter(_place(row) for row in read)
    if not places:
        return []
    (most, number), *others = places.most_common()
    still = [row for row in read if row["state"] != "moves"]
    outside = [row["rank"] for row in still if row["inside"] is False]
    shallow = [row["rank"] for row in read if row["inside"] is None]
    notes = []
    if ended:
        notes.append(f"-> {ranks(ended)} left: a collective of all ranks cannot end without")
    if not others and len(read) > 1:
        notes.append("-> all stand at one place" + _differing(read))
    elif shallow:
        notes.append(f"C++ frames could not be read, so these may be in a call: {ranks(shallow)}")
    elif outside and len(outside) < len(read):
        notes.append(f"-> outside torch.distributed: {ranks(outside)}")
    if others and 2 * number > len(read) + len(ended):
        odd = [row["rank"] for row in read if _place(row) != most]
        notes.append(f"-> {number} of {len(read)} stand at one place, elsewhere: {ranks(odd)}")
    elif others:
        notes.append("-> no majority: compare the lines")
    return notes


def _place(row: dict) -> tuple:
    """The lines and the call, whatever its arguments: one line may make several calls."""
    way = row["way"] or [[row["file"], row["line"], row["function"]]]
    return tuple(map(tuple, way)), row["call"].partition("(")[0]


def _differing(rows: list[dict]) -> str:
    """Variables of the user's function whose values differ, and not only as the rank does."""
    texts = []
    for name in rows[0]["variables"]:
        values = [row["variables"].get(name) for row in rows]
        if None in values or (len(set(values)) in (1, len(values)) and len(values) > 2):
            continue
        if len(set(values)) == 1 or values == [str(row["rank"]) for row in rows]:
            continue
        there: dict[str, list[int]] = {}
        for row, value in zip(rows, values, strict=True):
            there.setdefault(f"{value}", []).append(row["rank"])
        texts.append(", ".join(f"{name}={value} on {ranks(them)}" for value, them in there.items()))
    return (
        "; not the same there: " + "; ".join(texts)
        if texts
        else ", with equal variables as far as seen"
    )


def _side_notes(rows: list[dict]) -> list[str]:
    """What other threads and workers do."""
    notes: dict[str, list[int]] = {}
    for row in rows:
        who = row["rank"] if row["rank"] is not None else row["pid"]
        for also in row.get("also") or ():
            inside = "in " if also["inside"] else ""
            notes.setdefault(
                f"{also['who']}: {inside}{also['call']} at {_location(also)}{also['source']}", []
            ).append(who)
    return [f"{ranks(who)}: {note}" for note, who in notes.items()][:_LINES]
