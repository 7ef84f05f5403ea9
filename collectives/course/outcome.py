"""How a rank ends that runs a mistake. The rank itself finds out, and writes it into a file."""

import inspect
import json
import linecache
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path

from collectives.recording import stack
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import PEER_IS_GONE
from collectives.semantics.check import Mismatch

# What differs from run to run in torch's messages: places in its source, addresses, times. A report
# holds none of it, so that a notebook does not change. RankOutcome.text holds all of it.
_NOISE = (
    (r"^\[[^]]*\]\W*", ""),
    (r" \[[^ ]*\]:\d+", ""),
    (r" at 0x[0-9a-f]+", ""),
    (r"\d+ ?ms\b", "n ms"),
)

_SENTENCE = re.compile(r".*?(?=\.?(\s+This is | *\n|\. |$))", re.DOTALL)

# The kinds of outcome, in words. A rank with `peer_lost` failed because other ranks had ended.
_WORDS = {
    Ending.DIED: "died {}",
    Ending.LEFT: "ended {}",
    Ending.RAISED: "raised {}",
    Ending.HUNG: "waited in {}",
    Ending.WRONG: "{}",
    Ending.PEER_LOST: "lost its connection to another rank",
    Ending.RETURNED: "returned",
}


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended: a key of _WORDS, the details, and the line of the step's file (or 0).

    `text` is what the reader would see of it: the end of the traceback, or what the process wrote
    on stderr before it died. It differs from run to run, and no report shows it. `error` is the
    type of the exception, `signal` the one that killed the process.
    """

    kind: Ending
    detail: str = ""
    line: int = 0
    text: str = field(default="", compare=False)
    error: str = ""
    signal: int = 0

    def __str__(self) -> str:
        return _WORDS[self.kind].format(self.detail)


def run_and_record(
    rank: int,
    world_size: int,
    device,
    step: Callable,
    folder: Path,
    agent_port: int | None,
    limit: float,
):
    """Call the step in this rank, and write its RankOutcome into `folder`. Return its result.

    A rank that still waits `limit` seconds after all ranks have begun is said to hang.

    With `agent_port`, the port of a store on this machine, the step finds no process group but the
    environment in which torchrun starts its ranks. A rank that hangs does not return.
    """
    import torch.distributed as dist

    # What a process writes to stderr when it dies differs from run to run: no report shows it.
    os.dup2(os.open(stderr_of(folder, rank), os.O_WRONLY | os.O_CREAT), 2)
    if "DistributedDataParallel" in step.__code__.co_names:
        # DDP imports it when it is first used. That takes a second or more, and is no hang.
        import torch._dynamo  # noqa: F401
    store = dist.distributed_c10d._get_default_store()
    _meet(store, "here", world_size)
    if agent_port is not None:
        _set_torchrun_environment(agent_port)
        # subtle: unwrapped, so that no record of the step's calls holds this one.
        inspect.unwrap(dist.destroy_process_group)()
        _meet(store, "fresh", world_size)
    with _hang_limit(limit, folder, rank, world_size, step.__code__.co_filename):
        try:
            result, outcome = step(rank, world_size, device), RankOutcome(Ending.RETURNED)
        except (Exception, SystemExit) as error:
            result, outcome = None, _outcome_of(error, step)
    _record(folder, rank, world_size, outcome)
    return result


def _meet(store, where: str, world_size: int) -> None:
    """A barrier that needs no process group."""
    if store.add(where, 1) == world_size:
        store.set(f"all are {where}", "")
    store.wait([f"all are {where}"])


def _outcome_of(error: BaseException, step: Callable) -> RankOutcome:
    raised_in = [
        (frame.filename, frame.lineno or 0, frame.name)
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]
    line = stack.line_of(step.__code__.co_filename, raised_in)
    if isinstance(error, Mismatch):
        return RankOutcome(Ending.WRONG, error.difference)
    if isinstance(error, SystemExit):
        ending = Ending.DIED if error.code else Ending.LEFT
        return RankOutcome(ending, f"(exit status {error.code or 0})", line)
    message = str(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    if PEER_IS_GONE.search(message):
        return RankOutcome(Ending.PEER_LOST, "", line, text)
    for pattern, replacement in _NOISE:
        message = re.sub(pattern, replacement, message)
    sentence = _SENTENCE.match(message)
    kind = type(error).__name__
    detail = f"{kind}: {sentence[0] if sentence else message}"
    return RankOutcome(Ending.RAISED, detail, line, text, kind)


def _set_torchrun_environment(port: int) -> None:
    """Set the variables with which torchrun tells `init_process_group()` where the store is.

    subtle: a client of the store asks the name server for the name of ::ffff:127.0.0.1. A name
    server that does not answer must not look like a mistake that hangs: the C library is told to
    wait 1 s instead of 5.
    """
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RES_OPTIONS": "timeout:1 attempts:1",
    }


@contextmanager
def _hang_limit(
    limit: float, folder: Path, rank: int, world_size: int, file: str
) -> Iterator[None]:
    """After `limit` seconds, record the line that the main thread waits in.

    subtle: a rank that waits in C++ cannot be interrupted. Another thread records its outcome, and
    stops the process or ends it.
    """

    def record_hang() -> None:
        line = stack.line_of(file, stack.stands())
        code = linecache.getline(file, line).partition("  #")[0].strip()
        outcome = RankOutcome(Ending.HUNG, code or "an unknown place", line)
        _record(folder, rank, world_size, outcome)

    timer = threading.Timer(limit, record_hang)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _record(folder: Path, rank: int, world_size: int, outcome: RankOutcome) -> None:
    """Write down this rank's outcome. In a world that hangs, the last rank to do so ends the world.

    subtle: a rank that hangs stops, with all its threads, and is killed later. If it ended now, the
    ranks that wait for it would lose it, and their calls would fail in their last moment.
    """
    draft = folder / f"{rank}.draft"
    draft.write_text(json.dumps(astuple(outcome)))
    draft.rename(draft.with_suffix(".json"))
    recorded = read_outcomes(folder)
    if any(other.kind is Ending.HUNG for other in recorded.values()):
        if len(recorded) == world_size:
            os._exit(0)
        if outcome.kind is Ending.HUNG:
            os.kill(os.getpid(), signal.SIGSTOP)


def stderr_of(folder: Path, rank: int) -> Path:
    """The file that this rank writes its stderr to."""
    return folder / f"{rank}.stderr"


def read_outcomes(folder: Path) -> dict[int, RankOutcome]:
    """The outcomes that are written down so far, by rank."""
    written = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {rank: RankOutcome(Ending(kind), *more) for rank, (kind, *more) in written.items()}
