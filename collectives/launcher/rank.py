"""What runs in a rank that we start: become like a fresh process, call `fn`, send the result."""

import contextlib
import ctypes
import datetime
import faulthandler
import importlib
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
from multiprocessing import connection, forkserver
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

# subtle: functions in there have the default group of the time of their import as an argument. Who
# first makes an optimizer imports it. After init_process_group, it would keep the group beyond
# destroy_process_group, until the interpreter ends and a thread of gloo may crash the process.
import torch.distributed.nn.functional

from collectives.backends import (
    availability,
    register,  # noqa: F401  its import makes torch know our backends
)
from collectives.launcher.call_record import call_recorded, memory_for
from collectives.launcher.failure import Raised
from collectives.launcher.rank_spec import RankSpec
from collectives.recording import exit_hooks, stack
from collectives.recording.inject import Recording
from collectives.semantics import torch_names

# On this signal a rank writes its stack. faulthandler does so in C, also if Python is blocked.
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)

# The process group's timeout is this many seconds longer than the launch's, so that the launch is
# first to report which rank hung.
GROUP_PATIENCE = 60.0

# What the fork server found when it imported torch. A fresh process would look again.
_THREADS_AT_IMPORT = torch.get_num_threads()
_OMP_AT_IMPORT = os.environ.get("OMP_NUM_THREADS")

# True in a rank while its function runs: calling launch there is a mistake.
inside = False


def main(
    spec: RankSpec, results_pipe: connection.Connection, stack_pipe: connection.Connection
) -> None:
    """Run one rank. `results_pipe` brings the pickled function and takes the outcome."""
    global inside
    _end_with_the_parent()
    _write_stacks_to(stack_pipe)
    inside = True
    recording = Recording()
    try:
        payload = results_pipe.recv_bytes()
    except EOFError:  # the launch has ended already
        return
    try:
        _be_like_a_fresh_process(spec)
        # In a program under diagnosis the calls are noted already.
        if spec.calls is not None and (spec.record or "COLLECTIVES_DIAGNOSE" not in os.environ):
            recording.begin_in_rank(os.fdopen(spec.calls.fd, "rb+"))
        result = _call(spec, payload, recording)
    except BaseException as error:
        recording.exits.note(error)
        results_pipe.send_bytes(b"E" + cloudpickle.dumps(describe(error)))
        # Keep the connections to the other ranks open until the parent ends this process. If they
        # broke now, the other ranks would fail too, and hide which one was first.
        with contextlib.suppress(EOFError, OSError):
            results_pipe.recv_bytes()
        os._exit(1)
    _flush()
    recording.end()
    results_pipe.send_bytes(b"R" + result)


def dump_result(result: object) -> bytes:
    """Pickle a result, with all tensors on the CPU: the parent must not open a CUDA context."""
    buffer = io.BytesIO()
    _ResultPickler(buffer).dump(result)
    return buffer.getvalue()


class _ResultPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return _identity, (_on_cpu(value),)
        return super().reducer_override(value)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the same kind: an optimizer, for one, takes leaves, and a module its parameters."""
    if not tensor.is_leaf:
        return tensor.cpu()
    copy = tensor.detach().cpu()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def _identity(value: Any) -> Any:
    return value


def _call(spec: RankSpec, payload: bytes, recording: Recording) -> bytes:
    """Call the function in a process group; return its pickled result."""
    try:
        fn, args = cloudpickle.loads(payload)
    except Exception as error:
        error.add_note(
            "The function or its arguments could not be rebuilt in the rank: "
            "can it import every module they need?"
        )
        raise
    for module in spec.modules:
        importlib.import_module(module)
    world = spec.world
    device = availability.rank_device(world.device, int(spec.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=world.timeout + GROUP_PATIENCE)
    store = _store(spec, patience)
    enter_group(world.backend, store, spec.rank, world.nproc, patience)
    own_pid = os.getpid()
    memory = memory_for(spec.record)
    with recording.function():
        try:
            result = call_recorded(memory, fn, spec.rank, world.nproc, device, *args)
        finally:
            if os.getpid() != own_pid:  # `fn` has forked this process: its copy is no rank
                _end_copy()
    try:
        result = dump_result(result)
    except Exception as error:
        error.add_note(
            f"The result ({type(result).__name__}) cannot travel to the parent: "
            "return tensors, numbers, lists."
        )
        raise
    leave_group(store)
    return result


def _end_copy() -> None:
    """End this process as a program would that ends now, but send no result."""
    error, status = sys.exc_info()[1], 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exc()
        status = 1
    _flush()
    os._exit(status)


def _store(spec: RankSpec, patience: datetime.timedelta) -> dist.Store:
    if isinstance(spec.store, str):
        file_store = dist.FileStore(spec.store, -1)
        file_store.set_timeout(patience)
        return file_store
    host, port, prefix = spec.store
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
    return dist.PrefixStore(prefix, store)


def enter_group(
    backend: str, store: dist.Store, rank: int, world_size: int, patience: datetime.timedelta
) -> None:
    with torch_names.quiet() if backend == "gloo" else contextlib.nullcontext():
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=patience
        )
    if backend == "nccl":  # the current GPU, which a barrier takes, is this rank's own
        warnings.filterwarnings("ignore", r"barrier\(\): using the device under current context")
    if store.add("entered", 1) == world_size:
        store.set("all have entered", "")


def leave_group(store: dist.Store) -> None:
    # subtle: a rank with little to do could leave while another one still connects to it. That
    # connection would fail.
    store.wait(["all have entered"])
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_with_the_parent() -> None:
    """Leave no rank behind, and nothing that it has forked, however the parent ends."""
    # What this rank forks is in its group, and the parent kills the group. subtle: a session, not
    # only a group: a group in the background of a terminal is stopped when it reads from it, as the
    # debugger of `dist.breakpoint()` does.
    if hasattr(os, "setsid"):
        os.setsid()
    # Ctrl-C reaches every process of the terminal until then. The parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _end_with_the_thread_above()
        _end_forks_with_this_process()
        # A fork server lives as long as any process holds the other end of this pipe. Only the
        # parent should hold it.
        server: Any = forkserver._forkserver
        if getattr(server, "_forkserver_alive_fd", None) is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_alive_fd = None
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch the parent", daemon=True).start()


def _end_with_the_thread_above() -> None:
    """Also if this process never runs Python code again. Linux alone can do it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end_forks_with_this_process() -> None:
    """If the parent is killed, nobody else ends what `fn` forks in the main thread.

    subtle: what another thread forks would end with that thread, which may be sooner.
    """
    is_main = False

    def before() -> None:
        nonlocal is_main
        is_main = threading.current_thread() is threading.main_thread()

    def in_child() -> None:
        if is_main:
            _end_with_the_thread_above()

    os.register_at_fork(before=before, after_in_child=in_child)


def _write_stacks_to(pipe: connection.Connection) -> None:
    """When STACK_SIGNAL arrives, and when the process crashes."""
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, file=pipe.fileno(), all_threads=True)
        faulthandler.enable(file=pipe.fileno(), all_threads=False)


def _be_like_a_fresh_process(spec: RankSpec) -> None:
    """Replace what a fork inherits from the fork server: output, environment, generators ..."""
    for descriptor, fd in ((spec.stdout, 1), (spec.stderr, 2)):
        if descriptor is not None and descriptor.fd != fd:
            os.dup2(descriptor.fd, fd)
            os.close(descriptor.fd)
    os.environ.clear()
    os.environ.update(spec.environ)
    if spec.pmi is not None:
        os.environ["PMI_FD"] = str(spec.pmi.fd)
    linecache.cache.update(spec.sources)
    dist.set_debug_level_from_env()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads != _OMP_AT_IMPORT:
        torch.set_num_threads(int(threads) if threads and threads.isdigit() else _cores())
    torch.seed()
    random.seed()
    # If numpy.random is not loaded yet, its import in this process makes a new generator.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _THREADS_AT_IMPORT


def describe(error: BaseException) -> Raised:
    """An exception as text, without the frames of this package above the caller's function."""
    frame = error.__traceback__
    while frame and frame.tb_next and stack.is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frame))
    lines = [exit_hooks.text_of(error).strip(), *map(str, getattr(error, "__notes__", ()))]
    text = " ".join(line for line in lines if line)
    return Raised(type(error).__name__, _printable(text), _printable(trace), time.monotonic())


def _printable(text: str) -> str:
    """Half of a surrogate pair, as in the name of a file, could not be printed."""
    return text.encode(errors="backslashreplace").decode()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
