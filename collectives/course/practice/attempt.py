"""Runs in a rank: call the reader's function in each case, and note what came of it.

The notes go into a file, line by line, so that they are there when the rank hangs or dies.
"""

import inspect
import json
import math
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from collectives.course.practice import registry
from collectives.course.practice.exercise import Case, Exercise
from collectives.course.practice.process_group import Sent, watch
from collectives.semantics.check import equal

_MOST_SHOWN = 9  # elements of a tensor


def attempt(
    rank: int, world_size: int, device: Any, name: str, program: str | Callable, folder: str
) -> None:
    """Try all cases of the exercise. `program`: a file, or the function itself."""
    wanted, file = registry.find(name), file_of(program)
    with open(os.path.join(folder, str(rank)), "w", buffering=1) as notes:

        def note(**what: Any) -> None:
            notes.write(json.dumps(what) + "\n")

        sent = watch(wanted)
        try:
            function = program if callable(program) else _read(wanted, file)
        except BaseException as error:
            note(case=-1, raised=own_frames(error, file))
            raise
        names = list(inspect.signature(function).parameters)
        for number, case in enumerate(wanted.cases(rank, world_size)):
            given = {name: _text(value) for name, value in zip(names, case.args, strict=False)}
            note(case=number, begins=case.label, given=given)
            try:
                note(case=number, **outcome(function, names, case, sent))
            except BaseException as error:
                note(case=number, raised=own_frames(error, file))
                raise


def file_of(program: str | Callable) -> str:
    """The file of a function that was defined in a cell has a name, too."""
    return program.__code__.co_filename if callable(program) else program


def _read(wanted: Exercise, file: str) -> Callable:
    program: dict[str, Any] = {"__name__": wanted.name, "__file__": file}
    exec(compile(Path(file).read_text("utf-8"), file, "exec"), program)
    return program[wanted.function]


def outcome(function: Any, names: list[str], case: Case, sent: Sent) -> dict[str, Any]:
    """The case as texts, and what is wrong with it: `problem`, or None."""
    given = tuple(map(_copy, case.args))
    # The tensors of a list, also if the function puts others into the list.
    held = tuple(list(value) if isinstance(value, list) else value for value in case.args)
    sent.reset()
    got = function(*case.args)
    problem = (
        sent.misuse
        or sent.forgotten
        or _difference(case, given, held, got, names)
        or _too_much(case, sent)
    )
    results = {name: _texts(*both) for name, both in _returned(case, got).items()}
    for position, value in case.after.items():
        results[f"{names[position]} afterwards"] = _texts(held[position], value)
    return {"results": results, "problem": problem}


def _returned(case: Case, got: Any) -> dict[str, tuple[Any, Any]]:
    """By name what it returned, and what it should have returned."""
    if case.wanted is None:
        return {}
    if not case.parts or _type(got) != _type(case.wanted):
        return {"returned": (got, case.wanted)}
    return dict(zip(case.parts, zip(got, case.wanted, strict=True), strict=True))


def _difference(case: Case, given: tuple, held: tuple, got: Any, names: list[str]) -> str | None:
    for position, value in enumerate(held):
        if position in case.after:
            if not _same(value, case.after[position]):
                if len(case.after) == 1:
                    return "wrong"
                is_old = equal(value, given[position], 0.0)
                return f"`{names[position]}` {'was not changed' if is_old else 'is wrong'}"
        elif not equal(value, given[position], 0.0):
            return (
                f"`{names[position]}` was changed: it was {_text(given[position])}, "
                f"and is {_text(value)} now, but the caller still needs it"
            )
    if case.wanted is None:
        return None
    if got is None:
        return "it returned nothing"
    if _type(got) != _type(case.wanted):
        return f"it returned {_type(got)}, not {_type(case.wanted)}"
    for name, (one, wanted) in _returned(case, got).items():
        what = f"`{name}`" if case.parts else "the result"
        if isinstance(one, torch.Tensor) and one.dtype != wanted.dtype:
            return f"{what} is of type {one.dtype}, not {wanted.dtype}"
        if not _same(one, wanted):
            why = case.explain(got) if case.explain else None
            return why or (f"{what} is wrong" if case.parts else "wrong")
    return None


def _same(got: Any, wanted: Any) -> bool:
    """Sums of the same numbers in another order are the same."""
    if isinstance(got, float) and isinstance(wanted, float):
        return math.isclose(got, wanted, rel_tol=1e-6)
    one = wanted[0] if isinstance(wanted, list) and wanted else wanted
    rounds = isinstance(one, torch.Tensor) and one.is_floating_point()
    return equal(got, wanted, 1e-9 if rounds else 0.0)


def _too_much(case: Case, sent: Sent) -> str | None:
    for made, most, what in (
        (sent.messages, case.messages, "it sent {} messages"),
        (sent.calls, case.calls, "it made {} calls"),
        (sent.bytes, case.bytes, "it sent {} bytes"),
        (sent.reduced, case.reduced, "it gave {} bytes to all_reduce"),
    ):
        if most is not None and made > most:
            return f"{what.format(made)}; {most} {'is' if most == 1 else 'are'} enough"
    return None


def _type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_type, value))})"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def own_frames(error: BaseException, file: str) -> dict[str, Any]:
    """The error, and the lines of the reader's file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [(frame.lineno, frame.name) for frame in frames if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        own = [(error.lineno, "")]
    # Without the rank, time and file that torch puts in front: "[rank0]:[F1123 15:50:17 ...]".
    says = re.sub(r"^\[rank\d+\]:\[[^]]*\] ", "", str(error).split("\n")[0])
    return {"type": type(error).__name__, "says": says, "frames": own}


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copy(one) for one in value] if isinstance(value, list) else value


def _texts(got: Any, wanted: Any) -> tuple[str, str]:
    """With six decimals, unless the difference is smaller."""
    short = _text(got), _text(wanted)
    if short[0] != short[1] or _same(got, wanted):
        return short
    return _text(got, decimals=None), _text(wanted, decimals=None)


def _text(value: Any, decimals: int | None = 6) -> str:
    if isinstance(value, torch.Tensor):
        if decimals is not None and value.is_floating_point():
            value = value.detach().double().round(decimals=decimals)
        if value.numel() <= _MOST_SHOWN:
            return str(value.tolist())
        first = ", ".join(str(one) for one in value.flatten()[:3].tolist())
        return f"[{first}, ... {value.numel()} elements]"
    if isinstance(value, list | tuple):
        begin, end = "[]" if isinstance(value, list) else "()"
        return begin + ", ".join(_text(one, decimals) for one in value) + end
    if decimals is not None and isinstance(value, float):
        value = round(value, decimals)
    return repr(value)
