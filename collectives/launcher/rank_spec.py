"""What a launch has to do, and what travels to its ranks for that: their parameters, and `fn`.

`fn` travels by value: its code is sent, so that a rank need not import its module. This makes
lambdas, notebook cells and functions of scripts work.
"""

import functools
import io
import linecache
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from multiprocessing import reduction
from multiprocessing.util import get_temp_dir
from types import CodeType, ModuleType
from typing import IO, Any

import cloudpickle

from collectives.backends import availability
from collectives.launcher.server import SAFE_PATH, default_start_method
from collectives.launcher.world import World
from collectives.process_groups.mpi import pmi
from collectives.recording import launchers, stack

# cloudpickle keeps one register of modules for the whole process.
_pickling = threading.Lock()


@dataclass(frozen=True)
class LaunchSpec:
    """Start the ranks of a world on this machine, to call `fn`.

    With `store` (host, port and prefix of a TCPStore), start one rank only: that of the world's
    worker. The others are started elsewhere, and meet it there. `start_method` None: the default.
    """

    world: World
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    start_method: str | None = None
    store: tuple[str, int, str] | None = None

    @property
    def method(self) -> str:
        return self.start_method or default_start_method()


class Descriptor:
    """A file descriptor of the parent, duplicated into the rank when the rank starts."""

    def __init__(self, fd: int):
        self.fd = fd

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()


@dataclass(frozen=True)
class RankSpec:
    """Sent to the process of a rank when it starts."""

    rank: int
    world: World
    store: str | tuple[str, int, str]  # the path of a FileStore, or a TCPStore's host, port, prefix
    environ: dict[str, str]
    sources: dict[str, tuple[Any, ...]]  # entries of linecache
    modules: tuple[str, ...]  # the rank imports them: they register a backend
    stdout: Descriptor | None
    stderr: Descriptor | None
    pmi: Descriptor | None = None  # the socket where a rank of MPI asks who it is
    calls: Descriptor | None = None  # the file in which the rank notes its calls
    record: str | None = None  # one of call_record.KINDS


def for_world(world: World, manager: pmi.Manager | None) -> tuple[list[RankSpec], IO[bytes]]:
    """A spec for each rank of a new world, and the file of their store, which the caller closes.

    `manager` answers the ranks of an MPI world; None for other backends.
    """
    file, path = _new_store()
    environ, common = _environ(world), _common_fields(world, path)
    specs = []
    for rank in range(world.nproc):
        own, socket = _rank_variables(rank, rank), None
        if manager is not None:
            # UCX unlinks a file as soon as it has made it. If a rank is killed in between, the
            # file is removed with this process's temporary directory.
            own |= manager.environment(rank) | {"UCX_POSIX_DIR": get_temp_dir()}
            socket = Descriptor(manager.rank_ends[rank].fileno())
        specs.append(RankSpec(rank=rank, environ=environ | own, pmi=socket, **common))
    return specs, file


def for_shared_rank(world: World, store: tuple[str, int, str]) -> RankSpec:
    """The spec of the one rank that we start in a world whose store belongs to somebody else."""
    worker = world.worker
    assert worker is not None
    environ = _environ(world) | _rank_variables(worker.rank, worker.local_rank)
    return RankSpec(rank=worker.rank, environ=environ, **_common_fields(world, store))


def _environ(world: World) -> dict[str, str]:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(launchers.FOREIGN)
    }
    if SAFE_PATH in own.items():  # another thread is starting a rank
        del own[SAFE_PATH[0]]
    sizes = {"WORLD_SIZE": str(world.nproc), "LOCAL_WORLD_SIZE": str(world.ranks_here)}
    return own | sizes | world.environment


def _rank_variables(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _common_fields(world: World, store: str | tuple[str, int, str]) -> dict[str, Any]:
    """The fields of RankSpec that are the same for all ranks."""
    return {
        "world": world,
        "store": store,
        # A notebook cell has no file. Tracebacks and inspect need its source in the rank.
        "sources": {
            name: entry
            for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None
        },
        "modules": tuple(availability.imported),
        "stdout": _descriptor(1),
        "stderr": _descriptor(2),
    }


def _new_store() -> tuple[IO[bytes], str]:
    """An empty file for a FileStore, and its path. Closing the file deletes it.

    On Linux it has no name in any folder, so that nothing is left if this process is killed. (Where
    there is no /proc, as in a bare chroot, the ranks could not open it.) It is
    not a TCPStore, because a file does not listen on a port, and because each client of a TCPStore
    looks up the name of ::ffff:127.0.0.1 (seen in torch 2.13), which takes 5 s if the name server
    does not answer.
    """
    if sys.platform == "linux" and os.path.exists("/proc/self/fd"):
        memory = os.fdopen(os.memfd_create("store"), "w+b")
        return memory, f"/proc/{os.getpid()}/fd/{memory.fileno()}"
    file = tempfile.NamedTemporaryFile(prefix="store-", dir=get_temp_dir())  # noqa: SIM115  closed by the caller
    return file, file.name


def _descriptor(fd: int) -> Descriptor | None:
    """None if the caller has closed `fd`, or on Windows, which cannot duplicate it."""
    if sys.platform == "win32":
        return None
    try:
        os.fstat(fd)
    except OSError:
        return None
    return Descriptor(fd)


def pickle_by_value(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a function and its arguments. Raises ValueError if they cannot be pickled."""
    with _pickling:
        registered = cloudpickle.list_registry_pickle_by_value()
        modules = [module for module in _by_value(fn) if module.__name__ not in registered]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            payload = io.BytesIO()
            _Pickler(payload).dump((fn, args))
            return payload.getvalue()
        except Exception as error:
            name = getattr(fn, "__name__", repr(fn))
            raise ValueError(
                f"{name} or its arguments cannot travel to the ranks "
                f"({type(error).__name__}: {error}): create inside the function "
                "what cannot be pickled, such as locks, open files, sockets and generators."
            ) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Code keeps the name of its file, without which no error could name a line.

    cloudpickle 3.1.3 leaves it out.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_of, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def _code_of(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file)


def _by_value(fn: Callable[..., Any]) -> list[ModuleType]:
    """The modules to pickle by value: that of `fn`, and those that a rank cannot import by name."""
    defining = getattr(fn, "__module__", None)
    own = [
        module
        for name, module in list(sys.modules.items())
        if (name == defining or "." not in name)
        and (file := getattr(module, "__file__", None))
        and not _holds_a_library(os.path.dirname(file))
        and (name == defining or not _is_importable(name, module))
    ]
    names = sys.modules.keys() - {"__main__"}
    return [module for module in own if module.__name__ in names]


@functools.cache  # a launch asks for each module, and there are few folders
def _holds_a_library(folder: str) -> bool:
    """Whether Python, an installed package or this one lies there."""
    return stack.is_library(folder + os.sep)


def _is_importable(name: str, module: ModuleType) -> bool:
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == module.__file__
