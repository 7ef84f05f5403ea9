"""Make hints of what the ranks noticed in their own calls. They do not change the verdict.

A hint says what is risky although all calls fit together, and what to do.
"""

import functools
from collections.abc import Callable, Iterable

from collectives.diagnosis.rules.report import format_call, location
from collectives.diagnosis.rules.snapshot import Hint
from collectives.recording.call import Call, RiskyCall
from collectives.recording.ending import Ending
from collectives.recording.stack import NOWHERE
from collectives.semantics.calls import BY_NAME, Flow
from collectives.words import ranks


def hints(
    noticed: Iterable[RiskyCall],
    verdict: Ending,
    wrong_with_gaps: Callable[[Call], str],
) -> tuple[Hint, ...]:
    """The hints for a run that ended with this kind of verdict.

    Only if nothing is wrong is a missing wait worth a hint: a rank that failed could not wait any
    more. `wrong_with_gaps` says why a backend gives wrong results for a tensor with gaps, or "".
    """
    kinds = _KINDS | {"gaps": functools.partial(_gaps, wrong_with_gaps)}
    found = {}
    for risk in noticed:
        hint = kinds[risk.kind](risk)
        if hint is None or (verdict is not Ending.OK and risk.kind == "unawaited"):
            continue
        found[hint.call.rank, hint.call.file, hint.call.line, hint.risk] = hint
    return tuple(found[key] for key in sorted(found))


def write(all_hints: Iterable[Hint]) -> list[tuple[str, str]]:
    """Lines for the report, in pairs: which ranks did what; where they did it, and what to do.

    Ranks that did the same share a pair.
    """
    together: dict[tuple[str, str], list[int]] = {}
    for hint in all_hints:
        together.setdefault((hint.risk, f"{location(hint.call)}: {hint.cure}"), []).append(
            hint.call.rank
        )
    return [(f"hint: {ranks(numbers)} {risk}", rest) for (risk, rest), numbers in together.items()]


def _changed(risk: RiskyCall) -> Hint:
    call, (file, line, function) = risk.call, risk.at or NOWHERE
    wait = location(Call("wait", file=file, line=line, function=function))
    cure = (
        "the call may use the old values or the new ones; "
        f"change the tensor below that wait() ({wait}), or pass a clone()"
    )
    return Hint(call, f"changed the tensor of {format_call(call)} before its wait()", cure)


def _unawaited(risk: RiskyCall) -> Hint | None:
    call = risk.call
    if not call.device or _gives_only(call):  # a barrier brings nothing
        return None
    cure = (
        "its data may arrive after you have read the tensor: "
        "keep the Work that it returns, and wait() for it before you read"
    )
    return Hint(call, f"never waited for {format_call(call)}", cure)


def _gives_only(call: Call) -> bool:
    """Whether the call brings this rank nothing new."""
    spec, is_root = BY_NAME[call.name], call.rank == call.peer
    if spec.flow is Flow.FROM_ROOT:
        return is_root and spec.in_place
    return spec.flow is Flow.SEND or (spec.flow is Flow.TO_ROOT and not is_root)


def _gaps(wrong_with_gaps: Callable[[Call], str], risk: RiskyCall) -> Hint | None:
    if not (reason := wrong_with_gaps(risk.call)):
        return None
    cure = f"{reason}; pass a contiguous() copy, and copy the result back"
    return Hint(risk.call, f"gave {format_call(risk.call)} a tensor with gaps", cure)


def _shares(risk: RiskyCall) -> Hint:
    cure = (
        "what arrives last overwrites the rest; "
        "make one tensor for each rank, as in [torch.empty_like(x) for _ in range(n)]"
    )
    return Hint(
        risk.call, f"gave {format_call(risk.call)} a list whose tensors share storage", cure
    )


def _forked(risk: RiskyCall) -> Hint:
    call = risk.call
    child = f"in a forked child of rank {call.rank}, where a group does not work"
    cure = "make the call in the rank itself, or a group of its own in the child"
    return Hint(call, f"called {format_call(call)} {child}", cure)


_KINDS = {
    "changed": _changed,
    "unawaited": _unawaited,
    "shares": _shares,
    "forked": _forked,
}
