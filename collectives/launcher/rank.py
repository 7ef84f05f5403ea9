"""What runs inside a rank that we start: make it like a fresh process, call the function, send its result home."""

import contextlib
import ctypes
import datetime
import faulthandler
import io
import linecache
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing import connection, forkserver, reduction

import cloudpickle
import torch
import torch.distributed as dist

from collectives.backends import availability as backends
from collectives.backends import register as process_groups  # noqa: F401  process_groups: torch learns the backends that we bring
from collectives.recording import exit_hooks, inject
from collectives.spec.calls import CALLS

# On this signal a rank writes where it stands. faulthandler answers in C, also while Python code cannot run.
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)

# The process group waits this much longer than the launch, so that it is the launch that says which rank hung.
GROUP_PATIENCE = 60.0

# What the process that we were forked from found when it imported torch; a fresh process would look again.
_THREADS_AT_IMPORT = torch.get_num_threads()
_OMP_AT_IMPORT = os.environ.get("OMP_NUM_THREADS")

# True in a rank, while its function runs: a launch in there is a mistake.
inside = False


class Descriptor:
    """A file descriptor of the parent, duplicated into the rank when the rank starts."""

    def __init__(self, fd: int):
        self.fd = fd

    def __getstate__(self):
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate):
        self.fd = duplicate.detach()


@dataclass(frozen=True)
class Seat:
    """A rank's place in its world, and the caller's surroundings that it takes over. `store`: a file, or host, port, prefix."""

    rank: int
    world_size: int
    backend: str
    device: str
    timeout: float
    store: str | tuple[str, int, str]
    environ: dict[str, str]
    sources: dict[str, tuple]
    stdout: Descriptor | None
    stderr: Descriptor | None
    mpi: Descriptor | None  # where a rank of MPI asks who it is
    calls: Descriptor | None = None  # the file in which it notes its calls


def main(seat: Seat, home: connection.Connection, stacks: connection.Connection) -> None:
    """The life of a rank. `home` brings the pickled function and takes the outcome; `stacks` takes where it stands."""
    global inside
    _end_with_the_parent()
    _report_stacks_to(stacks)
    _be_like_a_fresh_process(seat)
    if seat.calls is not None:
        inject.watch(os.fdopen(seat.calls.fd, "rb+"))
    inside = True
    try:
        payload = home.recv_bytes()
    except EOFError:  # the launch is over already
        return
    try:
        result = _call(seat, payload)
    except BaseException as error:
        exit_hooks.note(error)
        home.send_bytes(b"E" + cloudpickle.dumps(describe(error)))
        # Hold the connections to the other ranks open until the parent ends this process: were they to break now, the
        # others would fail too, and hide who was first.
        with contextlib.suppress(EOFError, OSError):
            home.recv_bytes()
        os._exit(1)
    _flush()
    inject.end()
    home.send_bytes(b"R" + result)


def dump_result(result) -> bytes:
    """Pickle a result. Tensors arrive on the CPU: the parent must not open a CUDA context for them."""
    buffer = io.BytesIO()
    _ResultPickler(buffer).dump(result)
    return buffer.getvalue()


class _ResultPickler(cloudpickle.Pickler):
    def reducer_override(self, value):
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return _same, (value.cpu(),)
        return super().reducer_override(value)


def _same(value):
    return value


def _call(seat: Seat, payload: bytes) -> bytes:
    try:
        fn, args = cloudpickle.loads(payload)
    except Exception as error:
        error.add_note(
            "The function or its arguments could not be rebuilt in the rank: can it import every module they need?"
        )
        raise
    device = backends.rank_device(seat.device, int(seat.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=seat.timeout + GROUP_PATIENCE)
    store = _store(seat, patience)
    enter_group(seat.backend, store, seat.rank, seat.world_size, patience)
    result = fn(seat.rank, seat.world_size, device, *args)
    try:
        result = dump_result(result)
    except Exception as error:
        error.add_note(
            f"The result ({type(result).__name__}) cannot travel to the parent: return tensors, numbers, lists."
        )
        raise
    leave_group(store)
    return result


def _store(seat: Seat, patience: datetime.timedelta) -> dist.Store:
    if isinstance(seat.store, str):
        store = dist.FileStore(seat.store, -1)
        store.set_timeout(patience)
        return store
    host, port, prefix = seat.store
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
    return dist.PrefixStore(prefix, store)


def enter_group(
    backend: str, store: dist.Store, rank: int, world_size: int, patience: datetime.timedelta
) -> None:
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=patience
    )
    if store.add("entered", 1) == world_size:
        store.set("all have entered", "")
    # Since torch 2.13 two stable names warn that they have newer ones (2.15 has both and warns about neither).
    names = "|".join(name for name, spec in CALLS.items() if spec.aliases)
    warnings.filterwarnings(
        "ignore", f".*torch.distributed.({names})` is deprecated", FutureWarning
    )


def leave_group(store: dist.Store) -> None:
    # subtle: a rank with little to do could leave while another still connects to it, which would fail there.
    store.wait(["all have entered"])
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_with_the_parent() -> None:
    """Leave no rank behind, however the parent ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of the terminal; the parent decides.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(
            1, signal.SIGKILL
        )  # PR_SET_PDEATHSIG: works also when a rank never runs Python again
        # A fork server lives as long as anyone holds the other end of its pipe. Let that be the parent alone.
        if (alive := getattr(forkserver._forkserver, "_forkserver_alive_fd", None)) is not None:
            os.close(alive)
            forkserver._forkserver._forkserver_alive_fd = None
    parent = multiprocessing.parent_process()

    def watch():
        parent.join()
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=watch, name="watch the parent", daemon=True).start()


def _report_stacks_to(stacks: connection.Connection) -> None:
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, file=stacks.fileno(), all_threads=True)
        faulthandler.enable(file=stacks.fileno(), all_threads=False)


def _be_like_a_fresh_process(seat: Seat) -> None:
    """Undo what a forked process inherits from its server: old output, environment, debug level, thread count, generators."""
    for descriptor, fd in ((seat.stdout, 1), (seat.stderr, 2)):
        if descriptor is not None and descriptor.fd != fd:
            os.dup2(descriptor.fd, fd)
            os.close(descriptor.fd)
    os.environ.clear()
    os.environ.update(seat.environ)
    if seat.mpi is not None:
        os.environ["PMI_FD"] = str(seat.mpi.fd)
    linecache.cache.update(seat.sources)
    dist.set_debug_level_from_env()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads != _OMP_AT_IMPORT:
        torch.set_num_threads(int(threads) if threads and threads.isdigit() else _cores())
    torch.seed()
    random.seed()
    if (
        "numpy.random" in sys.modules
    ):  # else whoever imports it here gets a generator of this process
        sys.modules["numpy.random"].seed()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _THREADS_AT_IMPORT


def describe(error: BaseException) -> dict:
    """An exception as text, without the frames above the caller's function."""
    frame = error.__traceback__
    while (
        frame.tb_frame.f_code.co_filename.startswith(os.path.dirname(os.path.dirname(__file__)))
        and frame.tb_next is not None
    ):
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frame))
    notes = " ".join(getattr(error, "__notes__", ()))
    lines = [line for line in (str(error).strip(), notes) if line]
    summary = f"{type(error).__name__}: {' '.join(lines)}" if lines else type(error).__name__
    return {"summary": summary, "traceback": trace, "at": time.monotonic()}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
