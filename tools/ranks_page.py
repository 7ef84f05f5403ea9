"""docs/ranks/data.js: what every rank holds before and after a call, recorded on gloo.

All states of a world size run in one world. The messages of the algorithms come from the schedules,
by the interpreter `lockstep`.
"""

import ast
import itertools
import json
from collections.abc import Iterator
from typing import Any

import torch

from collectives import launch
from collectives.pictures import colours
from tools.ranks_program import BARRIER, CALLS, SPLITS, State, program, template
from tools.ranks_steps import OPS, ways

SIZES, LENGTHS = (2, 3, 4, 8), (1, 4, 5)


def states(n: int) -> Iterator[State]:
    """Those that are recorded in a world of `n` ranks."""
    for name, call in CALLS.items():
        # subtle: the product of 1, 10, ..., 10**7 has more digits than int64.
        ops = [op for op in OPS if n < 8 or op != "PRODUCT"] if "op" in call.holes else [""]
        roots: list[int | str] = [0, n - 1] if "root" in call.holes else [""]
        splits = SPLITS if "splits" in call.holes else [""]
        for op, root, split, length in itertools.product(ops, roots, splits, LENGTHS):
            yield State(name, n, length, op, root, split)


def script() -> str:
    """The file. Every state has a line of its own."""
    recorded = {state: one for n in SIZES for state, one in record(n, list(states(n)))}
    parts: dict[str, Any] = {
        "torch": torch.__version__.partition("+")[0],
        "calls": {
            name: {"lesson": call.lesson, "holes": call.holes, "program": template(name)}
            for name, call in CALLS.items()
        },
        "ops": list(OPS),
        "splits": SPLITS,
        "sizes": SIZES,
        "lengths": LENGTHS,
        "colours": colours.PALETTE,
        "inks": [colours.ink(colour) for colour in colours.PALETTE],
        "states": {state.key: one for state, one in recorded.items()},
        "ways": {state.key: ways(state, one["before"]) for state, one in recorded.items()},
    }
    return assignment("RANKS", "ranks", parts)


def assignment(name: str, section: str, parts: dict[str, Any]) -> str:
    """A script that gives the page these values, by this name."""
    lines = [f"{json.dumps(part)}: {_lines(value)}" for part, value in parts.items()]
    body = ",\n".join(lines)
    return f"// Made by `make docs ARGS={section}`.\nconst {name} = {{\n{body}\n}};\n"


def _lines(part: Any) -> str:
    """As JSON. A dict has a line for each of its keys."""
    if not isinstance(part, dict):
        return _json(part)
    return "{\n" + ",\n".join(f"{_json(key)}: {_json(one)}" for key, one in part.items()) + "\n}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def record(n: int, wanted: list[State]) -> Iterator[tuple[State, dict]]:
    """Run the programs of these states in one world, and read what every rank prints."""
    texts = [without_group(program(state)) for state in wanted]
    ranks = launch(_run_all, n, args=(texts,), backend="gloo", device="cpu", diagnose=False)
    for number, state in enumerate(wanted):
        yield state, read(state, [rank[number] for rank in ranks])


def without_group(text: str) -> str:
    """A program for a rank whose process group somebody else makes and ends."""
    for line in ('dist.init_process_group("gloo")', BARRIER, "dist.destroy_process_group()"):
        text = text.replace(line, "")
    return text


def _run_all(rank: int, n: int, device: object, texts: list[str]) -> list[list[str]]:
    """What the programs print in this rank; at last the error, if one raises."""
    found = []
    for text in texts:
        printed: list[str] = []

        def note(line: str, flush: bool, printed: list[str] = printed) -> None:
            printed.append(line)

        try:
            exec(compile(text, "try_it.py", "exec"), {"print": note})
        except RuntimeError as error:
            printed.append(f"{type(error).__name__}: {error}".splitlines()[0])
        found.append(printed)
    return found


def read(state: State, printed: list[list[str]]) -> dict:
    """What the page shows of a state, from what its ranks have printed."""
    before = [held(lines[0]) for lines in printed]
    found: dict = {"before": before}
    if errors := {lines[1] for lines in printed if not lines[1].startswith("rank ")}:
        (found["error"],) = errors
        return found
    found["after"] = [held(lines[1]) for lines in printed]
    found["from"] = [origins(state, before, one, rank) for rank, one in enumerate(found["after"])]
    return found


def held(line: str) -> Any:
    """The value of a line such as "rank 0 before: [1, 2]"."""
    return ast.literal_eval(line.partition(": ")[2])


def origins(state: State, before: list, after: Any, rank: int) -> Any:
    """For every number of a rank, the ranks that it was made from, as bits; 0 if unknown."""
    if after is None:
        return None
    if after and isinstance(after[0], list):
        return [origins(state, before, part, rank) for part in after]
    if not state.op:
        givers = {x: 1 << rank for rank, one in enumerate(before) for x in flat(one)}
        return [givers.get(x, 0) for x in after]
    first = rank * state.length if "scatter" in state.call else 0
    columns = list(zip(*map(flat, before), strict=False))[first:]
    known = [_reduced(state.op, column, x) for column, x in zip(columns, after, strict=False)]
    return known + [0] * (len(after) - len(known))


def flat(held: Any) -> list[int]:
    """The numbers of a rank, one after the other."""
    if held and isinstance(held[0], list):
        return [x for part in held for x in part]
    return held or []


def _reduced(op: str, column: tuple, value: int) -> int:
    """The ranks whose numbers reduce to this value: all of them, or else the fewest."""
    everyone = (1 << len(column)) - 1
    for mask in (everyone, *sorted(range(1, everyone), key=int.bit_count)):
        chosen = [x for rank, x in enumerate(column) if mask >> rank & 1]
        if OPS[op](chosen) == value:
            is_one_ranks = op in ("MIN", "MAX")
            return sum(1 << r for r, x in enumerate(column) if x == value) if is_one_ranks else mask
    return 0
