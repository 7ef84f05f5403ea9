"""What is wrong with what a function did in one case, and its values as texts."""

import contextlib
import math
import reprlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from collectives.course.practice.exercise import ExerciseCase
from collectives.course.practice.process_group import Copies, Sent
from collectives.semantics.check import equal
from collectives.words import counted

_MOST_SHOWN = 9  # elements of a tensor
_LONGEST = 200  # characters of a text

_AS_IT_WAS = (
    "`{}` is as it was: if you used `=`, it only gave the name to another tensor, so write into "
    "this one, as `copy_` does"
)
_NO_CALL = "`{}` is as it was: this rank made no call"
_STILL_NAN = _AS_IT_WAS + "; and nan plus a number, or times a number, is still nan"


def outcome(
    function: Any,
    names: list[str],
    case: ExerciseCase,
    sent: Sent,
    others_wait: Callable[[], bool],
) -> dict[str, Any]:
    """The case as texts, and what is wrong with it: `problem`, or None. `others_wait`: whether all
    other ranks are inside a call.
    """
    given = tuple(map(_copy, case.args))
    # The tensors of a list, also if the function puts others into the list.
    held = tuple(list(value) if isinstance(value, list) else value for value in case.args)
    memory = tuple(map(_memory, held))
    if case.together:
        _hold_back(case, others_wait)
    sent.reset(case.held)
    made = sent.made
    with contextlib.nullcontext() if case.held is None else Copies(but=case.args):
        got = function(*case.args)
    problem = (
        sent.misuse
        or sent.forgotten
        or _difference(case, given, held, got, names, sent.made > made)
        or _other_memory(case, held, memory, got, names)
        or (_alone(case) if case.together else None)
        or _wrong_amount(case, sent)
    )
    results = {name: _texts(*both) for name, both in _returned(case, got).items()}
    for position, value in case.after.items():
        results[f"{names[position]} afterwards"] = _texts(held[position], value)
    return {"results": results, "problem": problem}


def _returned(case: ExerciseCase, got: Any) -> dict[str, tuple[Any, Any]]:
    """By name what it returned, and what it should have returned."""
    if case.wanted is None:
        return {}
    if not case.parts or _type(got) != _type(case.wanted):
        return {"returned": (got, case.wanted)}
    return dict(zip(case.parts, zip(got, case.wanted, strict=True), strict=True))


def _difference(
    case: ExerciseCase, given: tuple, held: tuple, got: Any, names: list[str], called: bool
) -> str | None:
    for position, value in enumerate(held):
        name, before, wanted = names[position], given[position], case.after.get(position)
        if position not in case.after:
            if not equal(value, before, 0.0):
                return (
                    f"`{name}` was changed: it was {text(before)}, and is {text(value)} now, but "
                    "the caller still needs it"
                )
        elif not _same(value, wanted):
            if equal(value, before, 0.0):
                as_it_was = _STILL_NAN if _has_nan(value) else _AS_IT_WAS
                return (as_it_was if called else _NO_CALL).format(name)
            return _too_large(value, wanted, f"`{name}`") or (
                "wrong" if len(case.after) == 1 else f"`{name}` is wrong"
            )
    if case.wanted is None:
        return None
    if got is None:
        return "it returned nothing"
    if _type(got) != _type(case.wanted):
        return f"it returned {_type(got)}, not {_type(case.wanted)}"
    for part, (value, wanted) in _returned(case, got).items():
        what = f"`{part}`" if case.parts else "the result"
        if isinstance(value, torch.Tensor) and value.dtype != wanted.dtype:
            return f"{what} is of type {value.dtype}, not {wanted.dtype}"
        if not _same(value, wanted):
            why = case.explain(got) if case.explain else None
            why = why or _too_large(value, wanted, what)
            return why or (f"{what} is wrong" if case.parts else "wrong")
    return None


def _has_nan(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.isnan().any())


def _too_large(value: Any, wanted: Any, what: str) -> str | None:
    """The commonest wrong mean is the sum."""
    n = dist.get_world_size()
    if n > 1 and _same(value, _times(n, wanted)):
        return f"{what} is {n} times too large, so it is the sum and not the mean"
    return None


def _times(n: int, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_times(n, part) for part in value)
    is_number = isinstance(value, torch.Tensor | float)
    return value * n if is_number and not isinstance(value, bool) else value


def _same(got: Any, wanted: Any) -> bool:
    """Sums of the same numbers in another order are the same."""
    if isinstance(got, float) and isinstance(wanted, float):
        return math.isclose(got, wanted, rel_tol=1e-6)
    first = wanted[0] if isinstance(wanted, list) and wanted else wanted
    rounds = isinstance(first, torch.Tensor) and first.is_floating_point()
    return equal(got, wanted, 1e-9 if rounds else 0.0)


def _wrong_amount(case: ExerciseCase, sent: Sent) -> str | None:
    """Too much was sent, or too little, or to the wrong rank. With what the task says of it."""
    for field, made, fact in (
        ("messages", sent.messages, f"it sent {counted(sent.messages, 'message')}"),
        ("calls", sent.calls, f"it made {counted(sent.calls, 'call')}"),
        ("bytes", sent.bytes, f"it sent {sent.bytes} bytes"),
        ("reduced", sent.reduced, f"it gave {sent.reduced} bytes to all_reduce"),
        ("held", sent.held, f"it kept {sent.held} bytes of what others sent"),
    ):
        most, least = getattr(case, field), getattr(case, f"least_{field}", 0)
        if most is not None and made > most:
            return _ruled(case, field, f"{fact}; {most} {_verb(most)} enough")
        if made < least:
            return _ruled(case, f"least_{field}", f"{fact}; at least {least} {_verb(least)} needed")
    others = [rank for rank in sent.peers if case.peers is not None and rank not in case.peers]
    return _ruled(case, "peers", sent.peers[min(others)]) if others else None


def _verb(number: int) -> str:
    return "is" if number == 1 else "are"


def _ruled(case: ExerciseCase, field: str, fact: str) -> str:
    return f"{fact}. The task says: {case.says[field]}" if field in case.says else fact


# Seconds for which the last rank is held back while all others wait in a call, and while one does
# something else: it may pause, and return afterwards.
_HELD_BACK, _HELD_BACK_LONGER = 0.2, 2.0


def _hold_back(case: ExerciseCase, others_wait: Callable[[], bool]) -> None:
    """The last rank comes when another one has returned, which is wrong, or has not for long."""
    store = dist.distributed_c10d._get_default_store()
    if (n := dist.get_world_size()) > 1 and dist.get_rank() == n - 1:
        begin = waits = time.monotonic()
        while not store.check([f"{case.label}: returned"]):
            now = time.monotonic()
            if not others_wait():
                waits = now
            if now > waits + _HELD_BACK or now > begin + _HELD_BACK_LONGER:
                break
            time.sleep(0.001)
        store.set(f"{case.label}: the last has come", "")


def _alone(case: ExerciseCase) -> str | None:
    store, n = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    if n == 1 or store.check([f"{case.label}: the last has come"]):
        return None
    store.set(f"{case.label}: returned", "")
    return _ruled(case, "together", f"it returned before rank {n - 1} had come")


def _memory(value: Any) -> list[int]:
    """Where the numbers of a tensor lie, or of those of a list."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage().data_ptr()] if value.numel() else []
    return [place for part in value for place in _memory(part)] if _is_list(value) else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _other_memory(
    case: ExerciseCase, held: tuple, memory: tuple, got: Any, names: list[str]
) -> str | None:
    """It changed an argument in another way than in place, or returned one of them."""
    for position in case.after:
        if _memory(held[position]) != memory[position]:
            return (
                f"`{names[position]}` has the right numbers in other memory: write into the "
                "tensor, as `copy_` does, because others may hold it, too"
            )
    for name, places in zip(names, memory, strict=False):
        if case.apart and {*places} & {*_memory(got)}:
            fact = f"what it returned shares memory with `{name}`: who changes one changes both"
            return _ruled(case, "apart", fact)
    return None


def _type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_type, value))})"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copy(part) for part in value] if isinstance(value, list) else value


def _texts(got: Any, wanted: Any) -> tuple[str, str]:
    """With six decimals, unless the difference is smaller."""
    short = text(got), text(wanted)
    if short[0] != short[1] or _same(got, wanted):
        return short
    return text(got, decimals=None), text(wanted, decimals=None)


def text(value: Any, decimals: int | None = 6) -> str:
    """A value as the reader sees it, cut if it is long."""
    return cut(_text(value, decimals))


def cut(words: str) -> str:
    if len(words) <= _LONGEST:
        return words
    return f"{words[: _LONGEST // 2]} ... ({len(words)} characters)"


def _text(value: Any, decimals: int | None) -> str:
    if isinstance(value, torch.Tensor):
        if decimals is not None and value.is_floating_point():
            value = value.detach().double().round(decimals=decimals)
        if value.numel() <= _MOST_SHOWN:
            return str(value.tolist())
        first = ", ".join(str(number) for number in value.flatten()[:3].tolist())
        return f"[{first}, ... {value.numel()} elements]"
    if isinstance(value, list | tuple):
        begin, end = "[]" if isinstance(value, list) else "()"
        return begin + ", ".join(_text(part, decimals) for part in value[:_LONGEST]) + end
    if decimals is not None and isinstance(value, float):
        value = round(value, decimals)
    return _REPR.repr(value)


# It survives a `__repr__` that raises, too.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxdict = _REPR.maxset = _REPR.maxlong = _LONGEST
_REPR.maxother = 10 * _LONGEST
