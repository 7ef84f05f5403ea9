"""Runs in a rank: call the reader's function in each case, and note what came of it.

The notes go into a file, line by line, so that they are there when the rank hangs or dies.
"""

import functools
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from numbers import Number
from pathlib import Path
from types import ModuleType
from typing import Any

from collectives.course.practice import registry
from collectives.course.practice.board import Board
from collectives.course.practice.exercise import Exercise
from collectives.course.practice.process_group import watch
from collectives.course.practice.result import cut, outcome, text


class NotWritten(Exception):
    """The file has no function of the wanted name."""


def run_cases(
    rank: int,
    world_size: int,
    device: Any,
    name: str,
    program: str | Callable,
    folder: str,
    prints: bool,
) -> None:
    """Run all cases of the exercise, or up to the first that is wrong on some rank.

    `program`: a file, or the function itself. Unless it `prints`, stderr is its standard output.
    """
    if not prints:
        os.dup2(2, 1)
    exercise, file = registry.find(name), file_of(program)
    board = Board(Path(folder, "board"), world_size)
    with open(os.path.join(folder, str(rank)), "w", buffering=1) as notes:

        def note(**what: Any) -> None:
            notes.write(json.dumps(what) + "\n")

        number = -1
        sent = watch(exercise, file)
        sent.tell = lambda problem: note(case=number, dropped=problem)
        board.show(rank, file, lambda: sent.made)
        try:
            function = program if callable(program) else _read(exercise, file, rank)
            if callable(program):
                program.__globals__["hash"] = hash_of(rank)
            for number, case in enumerate(exercise.cases(rank, world_size)):
                names = _parameters(function, len(case.args))
                given = {name: text(value) for name, value in zip(names, case.args, strict=True)}
                note(case=number, begins=case.label, given=given)
                result = outcome(
                    function, names, case, sent, functools.partial(board.others_wait, rank)
                )
                note(case=number, **result, messages=sent.messages, bytes=sent.bytes)
                if not board.finish(rank, result["problem"] is not None):
                    break
        except BaseException as error:
            note(case=number, raised=own_frames(error, file))
            # subtle: not the error itself, which may be one that cannot be made a text.
            raise RuntimeError("see the notes of this rank") from None


def file_of(program: str | Callable) -> str:
    """The file of a function that was defined in a cell has a name, too."""
    return program.__code__.co_filename if callable(program) else program


def hash_of(rank: int) -> Callable[[Any], int]:
    """The `hash` of an answer. Started by torchrun, each rank has a seed of its own for all but
    numbers; those of practice are forks of one process, and share one.
    """

    def own_hash(value: Any) -> int:
        return hash(value) if _consists_of_numbers(value) else hash((rank, value))

    return own_hash


def _consists_of_numbers(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_consists_of_numbers, value))
    return isinstance(value, Number)


def _read(exercise: Exercise, file: str, rank: int) -> Callable:
    """The function of the reader's file, which is read as Python reads a module."""
    path = Path(file)
    sys.dont_write_bytecode = True  # nothing is left beside the reader's files
    sys.path.insert(0, str(path.parent))
    module = sys.modules[path.stem] = ModuleType(path.stem)
    module.__file__ = file
    vars(module)["hash"] = hash_of(rank)
    exec(compile(path.read_bytes(), file, "exec", dont_inherit=True), vars(module))
    function = vars(module).get(exercise.function)
    if function is None:
        raise NotWritten(f"there is no function `{exercise.function}` in {path.name}")
    if not callable(function):
        raise NotWritten(f"`{exercise.function}` in {path.name} is {text(function)}, no function")
    return function


def _parameters(function: Callable, number: int) -> list[str]:
    """The names of so many arguments, for the reader's eyes."""
    try:
        names = list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # it is written in C
        names = []
    names += [f"argument {place + 1}" for place in range(len(names), number)]
    return names[:number]


def own_frames(error: BaseException, file: str) -> dict[str, Any]:
    """The error, and the lines of the reader's file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [(frame.lineno, frame.name) for frame in frames if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        own = [(error.lineno, "")]
    try:
        says = str(error).split("\n")[0]
    except Exception as odd:
        says = f"(its `__str__` raises {type(odd).__name__})"
    # Without the rank, time and file that torch puts in front: "[rank0]:[F1123 15:50:17 ...]".
    says = cut(re.sub(r"^\[rank\d+\]:\[[^]]*\] ", "", says))
    return {"type": type(error).__name__, "says": says, "frames": own}
