"""What went wrong in a world: which rank, how, and where it stood."""

import os
import signal as signals
from traceback import extract_tb, format_list

from collectives.recording.stack import is_library, main_thread, where


class LaunchError(RuntimeError):
    """A world did not bring back its results.

    `rank` is the rank to look at first; `kind` is "raised", "died", "hung" or, where calls do not fit, "mismatch"; `exitcode` and
    `signal` are those of a process that died (a signal is a negative `exitcode`, as in multiprocessing); `traceback` is that of a
    rank that raised; `stacks` says, by rank, where each one stood.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        kind: str,
        exitcode: int | None = None,
        signal: signals.Signals | int | None = None,
        traceback: str = "",
        stacks: dict[int, str] | None = None,
    ):
        super().__init__(message)
        self.rank = rank
        self.kind = kind
        self.exitcode = exitcode
        self.signal = signal
        self.traceback = traceback
        self.stacks = stacks or {}

    def __reduce__(self):
        return _rebuild, (str(self), self.__dict__)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the reader's own lines and the message, without the launcher's frames between them."""
        own = [frame for frame in extract_tb(self.__traceback__) if not is_library(frame.filename)]
        return [*(text.rstrip() for text in format_list(own)), f"LaunchError: {self}"]


def _rebuild(message: str, state: dict) -> LaunchError:
    return LaunchError(message, **state)


def raised(rank: int, summary: str, traceback: str, returned: list[int] = ()) -> LaunchError:
    """Rank `rank` left its function by an exception; the ranks in `returned` had left theirs, and so no longer answered."""
    message = f"rank {rank} raised {summary}\n\n{traceback}"
    if returned:
        message += f"\nHad returned by then: rank {', '.join(map(str, returned))}.\n"
    return LaunchError(message, rank=rank, kind="raised", traceback=traceback)


def not_started(rank: int, error: Exception) -> LaunchError:
    """The process of rank `rank` could not be started: no memory, no more processes, or a server that broke."""
    cause = f"{type(error).__name__}: {error}".rstrip(": ")
    return LaunchError(
        f"rank {rank} died: its process could not be started ({cause})", rank=rank, kind="died"
    )


def died(rank: int, exitcode: int, stack: str, returned: bool) -> LaunchError:
    """The process of rank `rank` ended before it had a result, or badly after that."""
    signal = None
    if exitcode < 0:
        try:
            signal = signals.Signals(-exitcode)
            cause = f"was killed by {signal.name} (signal {-exitcode})"
        except ValueError:
            signal, cause = -exitcode, f"was killed by signal {-exitcode}"
    else:
        cause = f"ended its process with exit status {exitcode}"
    message = f"rank {rank} died: it {cause} {'after it had returned its' if returned else 'before it returned a'} result"
    if stack:
        message += f"\n  it stood in {where(stack)}"
    stacks = {rank: stack} if stack else {}
    return LaunchError(
        message, rank=rank, kind="died", exitcode=exitcode, signal=signal, stacks=stacks
    )


def differ(verdict, error: LaunchError | None = None) -> LaunchError:
    """The ranks' calls do not fit, or they wait for each other: `verdict` is a diagnosis.Verdict, `error` what came of it."""
    rank, kind = (
        verdict.guilty[0].rank if verdict.guilty else 0,
        "hung" if verdict.kind == "hang" else verdict.kind,
    )
    stacks, trace = (error.stacks, error.traceback) if error else ({}, "")
    return LaunchError(verdict.says, rank=rank, kind=kind, stacks=stacks, traceback=trace)


def hung(
    timeout: float, stacks: dict[int, str], returned: list[int], diagnosis: str = ""
) -> LaunchError:
    """Time is up; `stacks` holds the stack of each rank that had not returned. `diagnosis`: what their calls say."""
    # A rank outside torch.distributed is the likelier culprit: the others wait for it.
    rank = next((rank for rank in sorted(stacks) if not _in_collective(stacks[rank])), min(stacks))
    lines = [f"rank {rank} hung: not every rank had returned after {timeout:g} s"]
    for number in sorted({*stacks, *returned}):
        lines.append(
            f"  rank {number}  {'had returned' if number in returned else where(stacks[number])}"
        )
    return LaunchError(
        "\n".join([*lines, *([diagnosis] if diagnosis else [])]),
        rank=rank,
        kind="hung",
        stacks=stacks,
    )


def _in_collective(stack: str) -> bool:
    files = (file for file, *_ in main_thread(stack))
    return any(f"{os.sep}torch{os.sep}distributed{os.sep}" in file for file in files)
