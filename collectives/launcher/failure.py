"""LaunchError, and how to make one: which rank failed, in what way, and where it stood."""

import os
import signal as signals
import tempfile
from collections.abc import Sequence
from traceback import extract_tb, format_exc, format_list
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from collectives.recording.call import Call, RiskyCall
from collectives.recording.ending import Ending
from collectives.recording.stack import is_library, main_thread, where
from collectives.words import printable

if TYPE_CHECKING:
    from collectives.diagnosis.rules.snapshot import Verdict


class Raised(NamedTuple):
    """An exception of a rank, in words: it may not be possible to pickle the exception itself."""

    error_type: str
    error_text: str  # may be empty
    traceback: str
    at: float  # time.monotonic()

    @property
    def summary(self) -> str:
        return _summary(self.error_type, self.error_text)


def _summary(error_type: str, error_text: str) -> str:
    return f"{error_type}: {error_text}" if error_text else error_type


class LaunchError(RuntimeError):
    """A world did not return its results.

    `rank` is the rank to look at first. `kind` is "raised", "died", "hung" or "mismatch": the
    ranks' calls do not match. `exitcode` and `signal` are those of a process that died; as in
    multiprocessing, `exitcode` is negative for a signal. `error_type`, `error_text` and `traceback`
    are those of the exception of a rank that raised, else empty.
    `stacks` holds faulthandler's stacks by rank. `calls` and `risky_calls`: what the ranks called
    until then, and what they noticed of it; empty unless `launch` was asked to record.

    >>> def step(rank, world_size, device):
    ...     if rank == 1:
    ...         raise KeyError("weights")
    ...     dist.barrier()
    >>> try:
    ...     launch(step, 2)
    ... except LaunchError as error:
    ...     print(error.rank, error.kind, error.error_type)
    1 raised KeyError
    """

    calls: list[Call]
    risky_calls: list[RiskyCall]

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        kind: Ending,
        exitcode: int | None = None,
        signal: signals.Signals | int | None = None,
        error_type: str = "",
        error_text: str = "",
        traceback: str = "",
        stacks: dict[int, str] | None = None,
    ):
        super().__init__(printable(message))  # it holds texts of the ranks
        self.rank = rank
        self.kind = kind
        self.exitcode = exitcode
        self.signal = signal
        self.error_type = error_type
        self.error_text = error_text
        self.traceback = traceback
        self.stacks = stacks or {}
        self.calls, self.risky_calls = [], []

    @property
    def summary(self) -> str:
        """What a rank raised, type and text, or else the whole message."""
        return _summary(self.error_type, self.error_text) if self.error_type else str(self)

    @property
    def headline(self) -> str:
        """The first line of the message: which rank failed, and how."""
        return str(self).splitlines()[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self), self.__dict__)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the frames of the user's own code, and the message."""
        own = [frame for frame in extract_tb(self.__traceback__) if not is_library(frame.filename)]
        return [*(text.rstrip() for text in format_list(own)), f"LaunchError: {self}"]


def _rebuild(message: str, state: dict[str, Any]) -> LaunchError:
    error = LaunchError(message, rank=state["rank"], kind=state["kind"])
    vars(error).update(state)
    return error


def raised(rank: int, error: Raised, returned: Sequence[int] = ()) -> LaunchError:
    """The function raised in rank `rank`. `returned`: the ranks that had returned before."""
    message = f"rank {rank} raised {error.summary}\n\n{error.traceback}"
    if returned:
        message += f"\nHad returned by then: rank {', '.join(map(str, returned))}.\n"
    error_type, error_text, traceback, _ = error
    return LaunchError(
        message,
        rank=rank,
        kind=Ending.RAISED,
        error_type=error_type,
        error_text=error_text,
        traceback=traceback,
    )


def unpickled(results: Sequence[bytes]) -> list[Any]:
    """The results of all ranks. Raises LaunchError if one cannot be rebuilt in this process."""
    values = []
    for rank, result in enumerate(results):
        try:
            values.append(cloudpickle.loads(result))
        except Exception as error:
            cause = _summary(type(error).__name__, str(error))
            raise LaunchError(
                f"rank {rank} returned a result that cannot be rebuilt in the parent ({cause}): "
                "return tensors, numbers, lists.",
                rank=rank,
                kind=Ending.RAISED,
                error_type=type(error).__name__,
                error_text=str(error),
                traceback=format_exc(),
            ) from error
    return values


def not_started(rank: int, error: Exception) -> LaunchError:
    """Starting the process raised `error`: no memory, too many processes, a broken fork server."""
    cause = _summary(type(error).__name__, str(error))
    message = f"rank {rank} died: its process could not be started ({cause})"
    if isinstance(error, FileNotFoundError) or "AF_UNIX" in str(error):
        folder = tempfile.gettempdir()
        message += f". The fork server needs a temporary folder with a short path; TMPDIR: {folder}"
    return LaunchError(message, rank=rank, kind=Ending.DIED)


def server_died(status: int) -> LaunchError:
    """The fork server ended, and the ranks with it. None is to blame: rank 0 stands for all."""
    signal, cause = None, f"ended with exit status {status}"
    if status < 0:
        signal, cause = _signal(-status)
    message = f"every rank died: the fork server, of which they are forks, {cause}"
    return LaunchError(message, rank=0, kind=Ending.DIED, exitcode=status, signal=signal)


def died(rank: int, exitcode: int, stack: str, returned: bool) -> LaunchError:
    """The process ended before the function returned, or with an error status after that."""
    signal, cause = None, f"ended its process with exit status {exitcode}"
    if exitcode < 0:
        signal, cause = _signal(-exitcode)
    when = "after it had returned its result" if returned else "before it returned a result"
    message = f"rank {rank} died: it {cause} {when}"
    if stack:
        message += f"\n  it was in {where(stack)}"
    stacks = {rank: stack} if stack else {}
    return LaunchError(
        message, rank=rank, kind=Ending.DIED, exitcode=exitcode, signal=signal, stacks=stacks
    )


def _signal(number: int) -> tuple[signals.Signals | int, str]:
    """The signal, by its name if Python knows one, and what it did."""
    try:
        signal = signals.Signals(number)
    except ValueError:
        return number, f"was killed by signal {number}"
    return signal, f"was killed by {signal.name} (signal {number})"


def from_verdict(verdict: "Verdict", error: LaunchError | None = None) -> LaunchError:
    """The ranks' calls do not match, or ranks wait for each other.

    `error`: the failure that followed from it, if any.
    """
    rank = verdict.guilty[0].rank if verdict.guilty else 0
    stacks, trace = (error.stacks, error.traceback) if error else ({}, "")
    return LaunchError(verdict.says, rank=rank, kind=verdict.kind, stacks=stacks, traceback=trace)


def hung(
    timeout: float,
    stacks: dict[int, str],
    returned: list[int],
    verdict: "Verdict | None" = None,
) -> LaunchError:
    """Time is up. `stacks` has every rank that has not returned, `verdict` explains why."""
    # A rank outside torch.distributed is the likely cause: the others wait for it. On a GPU they
    # wait outside, too.
    outside = [rank for rank in sorted(stacks) if not _in_collective(stacks[rank])]
    guilty = {call.rank for call in verdict.guilty} if verdict else set()
    rank = min(guilty.intersection(outside) or outside or stacks)
    lines = [f"rank {rank} hung: not every rank had returned after {timeout:g} s"]
    for number in sorted({*stacks, *returned}):
        place = "had returned" if number in returned else where(stacks[number])
        lines.append(f"  rank {number}  {place}")
    if verdict:
        lines.append(verdict.says)
    return LaunchError("\n".join(lines), rank=rank, kind=Ending.HUNG, stacks=stacks)


def _in_collective(stack: str) -> bool:
    files = (file for file, *_ in main_thread(stack))
    return any(f"{os.sep}torch{os.sep}distributed{os.sep}" in file for file in files)
