"""Record what the function of a launch calls: `launch(..., record="calls")`."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from collectives.launcher.failure import LaunchError
from collectives.recording import call_log
from collectives.recording.call import Call, RiskyCall

# What `launch` can record. With "tensors", also copies of the tensors that the calls were given.
KINDS = ("calls", "tensors")


class Results(list[Any]):
    """The results of a launch in rank order, and what its ranks called, if that was recorded.

    calls: rank by rank, in order of entry. risky_calls: what they noticed of their own calls.
    """

    calls: list[Call]
    risky_calls: list[RiskyCall]


def launch_recorded(
    launch: Callable[[Callable[..., Any]], list[Any]], fn: Callable[..., Any], record: str
) -> Results:
    """Call `launch` with a function that does what `fn` does, and records its calls.

    A LaunchError gets `calls` and `risky_calls`, too. They come from files that are still there
    when a rank has died. In a launcher's world these are the rank's own.
    """
    with _folder() as folder:
        recorded = functools.partial(call_recorded, fn, record, folder)
        try:
            returned = launch(functools.wraps(fn)(recorded))
        except LaunchError as error:
            logs = _logs(folder)
            error.calls = [call for log in logs for call in _final_calls(log)]
            error.risky_calls = [risky for log in logs for risky in log.noticed()]
            raise
        results = Results(result for result, _ in returned)
        results.calls = [call for _, calls in returned for call in calls]
        results.risky_calls = [risky for log in _logs(folder) for risky in log.noticed()]
    return results


def call_recorded(
    fn: Callable[..., Any],
    record: str,
    folder: Path | None,
    rank: int,
    world_size: int,
    device: Any,
    *args: Any,
) -> tuple[object, list[Call]]:
    """Runs in a rank: what `fn` returns, and its calls. They also go into a file in `folder`."""
    from collectives.recording.record import attach
    from collectives.recording.sink import Memory, Sink

    memory = Memory(tensors=record == "tensors")
    sinks: list[Sink] = [memory]
    with contextlib.suppress(OSError):  # a full folder: only a failure would need the file
        if folder is not None:
            with (folder / str(rank)).open("xb+") as file:
                sinks.append(call_log.Writer(file, rank, world_size))
    for sink in sinks:
        recorder = attach(sink)
    try:
        result = fn(rank, world_size, device, *args)
    finally:
        for sink in sinks:
            recorder.detach(sink)
    return result, memory.calls(rank)


@contextlib.contextmanager
def _folder() -> Iterator[Path | None]:
    """A temporary folder; None where there is no room for one."""
    try:
        # The fork server removes what lies in there if this process is killed.
        folder = tempfile.TemporaryDirectory(dir=get_temp_dir())
    except OSError:
        yield None
        return
    with folder as path:
        yield Path(path)


def _logs(folder: Path | None) -> list[call_log.LogReader]:
    """The files of the ranks that came to their function, in rank order."""
    logs = []
    for path in sorted(folder.iterdir(), key=lambda path: int(path.name)) if folder else ():
        with contextlib.suppress(ValueError), path.open("rb+") as file:
            logs.append(call_log.LogReader(file))
    return logs


def _final_calls(log: call_log.LogReader) -> list[Call]:
    """The calls of a process that has ended: an open one is told once."""
    return list({call.number: call for call in log.poll(has_ended=True)}.values())
