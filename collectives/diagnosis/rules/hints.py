"""What the ranks noticed of themselves -> hints: what is risky though all calls fit, and what to do. They change no verdict."""

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.backends import claims
from collectives.diagnosis.rules.compare import dtype, plain_name
from collectives.diagnosis.rules.report import place, ranks, told
from collectives.recording.call import Call, Noticed
from collectives.spec.calls import BY_NAME, Flow


@dataclass(frozen=True)
class Hint:
    """`risk`: what the rank of the call did; `cure`: what may come of it, and what to do."""

    call: Call
    risk: str
    cure: str


def hints(noticed: Iterable[Noticed], kind: str) -> tuple[Hint, ...]:
    """`kind`: that of the verdict."""
    found = {}
    for one in noticed:
        # What failed could not wait any more.
        if (hint := _KINDS[one.kind](one)) and (kind == "ok" or one.kind != "unawaited"):
            found[one.call.rank, one.call.file, one.call.line, hint.risk] = hint
    return tuple(found[key] for key in sorted(found))


def write(found: Iterable[Hint]) -> list[tuple[str, str]]:
    """In which ranks that did the same stand together: what they did, and where and what to do."""
    together: dict[tuple[str, str], list[int]] = {}
    for hint in found:
        together.setdefault((hint.risk, f"{place(hint.call)}: {hint.cure}"), []).append(
            hint.call.rank
        )
    return [(f"hint: {ranks(numbers)} {risk}", rest) for (risk, rest), numbers in together.items()]


def _changed(one: Noticed) -> Hint:
    wait = place(
        Call(one.call.rank, -1, "wait", file=one.at[0], line=one.at[1], function=one.at[2])
    )
    cure = f"what was there or what is there now may be taken; change it below that wait() ({wait}), or hand over a clone()"
    return Hint(one.call, f"changed the tensor of {told(one.call)} before its wait()", cure)


def _unawaited(one: Noticed) -> Hint | None:
    call = one.call
    # On a GPU what uses the result stands in line behind the call, with or without wait().
    if call.device != "cpu" or _gives_only(call):
        return None
    cure = "what it brings may come after it is read: keep the Work that it returns, and wait() for that before you read"
    return Hint(call, f"never waited for {told(call)}", cure)


def _gives_only(call: Call) -> bool:
    """Whether the call brings this rank nothing new."""
    spec, is_root = BY_NAME[call.name], call.rank == call.peer
    if spec.flow is Flow.FROM_ROOT:
        return is_root and spec.in_place
    return spec.flow is Flow.SEND or (spec.flow is Flow.TO_ROOT and not is_root)


def _gaps(one: Noticed) -> Hint | None:
    call = one.call
    cell = {
        "backend": call.backend,
        "device": call.device,
        "form": f"{plain_name(call)}:noncontiguous",
        "op": call.op,
    }
    cell |= {"dtype": dtype(call.tensors[0]), "world_size": len(call.members)}
    claim = claims.expected(cell, importlib.metadata.version("torch"))
    if claim is None or claim.state != "wrong":
        return None
    cure = f"{claim.reason}; hand over a contiguous() copy, and copy the result back"
    return Hint(call, f"gave {told(call)} a tensor with gaps", cure)


_KINDS = {"changed": _changed, "unawaited": _unawaited, "gaps": _gaps}
