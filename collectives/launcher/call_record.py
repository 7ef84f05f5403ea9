"""Record what the function of a launch calls: `launch(..., record="calls")`."""

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives.recording.call import Call, RiskyCall

if TYPE_CHECKING:
    from collectives.recording.sink import Memory

# What `launch` can record. With "tensors", also copies of the tensors that the calls were given.
KINDS = ("calls", "tensors")


class Results(list[Any]):
    """The results of a launch in rank order, and what its ranks called, if that was recorded.

    calls: rank by rank, in order of entry. risky_calls: what they noticed of their own calls.
    """

    calls: list[Call]
    risky_calls: list[RiskyCall]


class Recorded(NamedTuple):
    """The result of one rank, and what its function called."""

    result: Any
    calls: list[Call]
    risky_calls: list[RiskyCall]


def memory_for(record: str | None) -> "Memory | None":
    """What takes the calls in a rank; None if nothing is recorded."""
    from collectives.recording.sink import Memory

    return Memory(tensors=record == "tensors") if record else None


def call_recorded(memory: "Memory | None", fn: Callable[..., Any], rank: int, *args: Any) -> Any:
    """In a rank: what `fn` returns; a Recorded if `memory` takes its calls."""
    from collectives.recording.record import attached

    with attached(memory) if memory is not None else contextlib.nullcontext():
        result = fn(rank, *args)
    if memory is None:
        return result
    return Recorded(result, memory.calls(rank), memory.risky_calls(rank))


def results(returned: Iterable[Any], record: str | None) -> Results:
    """`returned`: what `call_recorded` returned in each rank."""
    if record is None:
        return Results(returned)
    ranks: list[Recorded] = list(returned)
    found = Results(rank.result for rank in ranks)
    found.calls = [call for rank in ranks for call in rank.calls]
    found.risky_calls = [risky for rank in ranks for risky in rank.risky_calls]
    return found
