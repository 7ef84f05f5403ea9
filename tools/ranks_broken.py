"""docs/ranks/broken.js: what gloo did when one rank called otherwise, and what diagnose says of it.

Each case has a world of its own, which ends as soon as the diagnosis is certain. A rank that loses
another one may raise or still wait then: that differs from run to run.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collectives import LaunchError, launch
from tools.ranks_page import assignment, held, origins, without_group
from tools.ranks_program import CALLS, Change, State, program

# The call that is broken: its ranks, and the length of its tensors or pieces.
N, LENGTH = 4, 4

# Worlds at a time: most of them wait.
_AT_ONCE = 3


def cases() -> Iterator[tuple[State, Change]]:
    for name, call in CALLS.items():
        op = "SUM" if "op" in call.holes else ""
        root = 0 if "root" in call.holes else ""
        state = State(name, N, LENGTH, op, root, "even" if "splits" in call.holes else "")
        for rank in range(N):
            yield state, Change(rank, "missing")
            yield state, Change(rank, "length", LENGTH + 1)
            if op:
                yield state, Change(rank, "op", "MAX")
            if root == 0:
                yield state, Change(rank, "root", N - 1)


def key(state: State, change: Change) -> str:
    return f"{state.key} {'/'.join(map(str, change))}"


def script() -> str:
    wanted = list(cases())
    found = zip(wanted, record(wanted), strict=True)
    parts = {"broken": {key(*one): recorded for one, recorded in found}}
    return assignment("BROKEN", "ranks-broken", parts)


def record(wanted: list[tuple[State, Change]]) -> Iterator[dict]:
    """What the ranks of each case end with, and what the diagnosis says of them."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_record, wanted)


def _record(case: tuple[State, Change]) -> dict:
    text, says = without_group(program(*case)), ""
    with tempfile.TemporaryDirectory() as folder:
        args = text, folder
        try:
            launch(_run, N, args=args, backend="gloo", device="cpu", timeout=120, diagnose=True)
        except LaunchError as error:
            says = str(error)
            if len(list(Path(folder).glob("*.out"))) < N:  # no rank has begun: it says nothing
                raise
        notes = [Path(folder, f"{rank}.out").read_text().splitlines() for rank in range(N)]
        errors = [Path(folder, f"{rank}.err").read_text() for rank in range(N)]
    before = [held(lines[0]) for lines in notes]
    ranks = [
        {"before": before[rank]} | _end(case[0], before, rank, notes[rank][1:], errors[rank])
        for rank in range(N)
    ]
    return {"ranks": ranks, "says": says}


def _run(rank: int, n: int, device: object, text: str, folder: str) -> None:
    # What C++ says when it ends the process goes to descriptor 2.
    with open(Path(folder, f"{rank}.err"), "w") as errors:
        os.dup2(errors.fileno(), 2)
    with open(Path(folder, f"{rank}.out"), "w", buffering=1) as notes:

        def note(line: str, flush: bool) -> None:
            notes.write(line + "\n")

        try:
            exec(compile(text, "try_it.py", "exec"), {"print": note})
        except Exception as error:
            note(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)
            raise


def _end(state: State, before: list, rank: int, notes: list[str], errors: str) -> dict:
    """How the program of a rank ended: with numbers, an error, its process, or not at all."""
    if notes and notes[0].startswith("rank "):
        after = held(notes[0])
        return {"after": after, "from": origins(state, before, after, rank)}
    if notes:
        return {"raised": _in_short(notes[0])}
    if died := re.search(r"what\(\):\s*(.*)", errors):
        return {"died": _in_short(died[1])}
    return {"waits": True}


def _in_short(error: str) -> str:
    """Without what only this run has, the file in gloo, and advice on its mailing lists."""
    error = re.sub(r"\[(enforce fail at )?/\S*\] ?", "", error)
    error = re.sub(r"(\[[\d.:a-f]+\]):\d+", r"\1", error)
    return re.split(r"\. (?:This is typically|Is there)", error)[0]
