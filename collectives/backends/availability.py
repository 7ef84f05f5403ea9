"""What each backend is and needs, whether this machine has it, and `--import` of others'."""

import ctypes
import functools
import importlib
import importlib.util
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collectives.process_groups.interfaces import LOOPBACK
from collectives.process_groups.mpi import installation
from collectives.words import did_you_mean

# Since this version several ranks may share a GPU if NCCL_MULTI_RANK_GPU_ENABLE=1 (release notes of
# NCCL 2.30).
NCCL_SEVERAL_RANKS_PER_GPU = (2, 30)


class Unavailable(ValueError):
    """The request is valid, but this machine cannot fulfil it."""


def gpu_count() -> int:
    """The number of GPUs that torch sees. Opens no CUDA context: ranks that start later can."""
    import torch

    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def nccl_version() -> tuple[int, ...] | None:
    """The version of the NCCL that torch uses; None without NCCL.

    torch itself reports the version it was built with, which is another one if a newer library is
    preloaded.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return None
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # not Linux, or linked into torch
        return tuple(torch.cuda.nccl.version())
    return number.value // 10000, number.value // 100 % 100, number.value % 100


def _lacks_gpu(device: str) -> bool:
    return device == "cuda" and not gpu_count()


def _gloo_missing(device: str, nproc: int) -> str | None:
    import torch.distributed as dist

    if not dist.is_gloo_available():
        return "this build of torch has no gloo"
    return "gloo on cuda needs a GPU: 0 visible" if _lacks_gpu(device) else None


def missing_for_mpi() -> str | None:
    """Why our MPI backend cannot run on this machine, or None. Does not start MPI."""
    if importlib.util.find_spec("mpi4py") and not mpiexec():
        return f"mpi needs mpiexec, which is not here: {installation.CURE}"
    return installation.fault()


def mpiexec() -> str | None:
    """The path of mpiexec: next to this Python, where pip installs it, or else on the PATH."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")


def _mpi_missing(device: str, nproc: int) -> str | None:
    return missing_for_mpi()


def _by_hand_missing(device: str, nproc: int) -> str | None:
    if sys.platform != "linux":
        return "by_hand needs Linux, whose unix sockets have addresses that are no files"
    return None


def _engine_missing(name: str, device: str, nproc: int) -> str | None:
    import torch
    from torch.distributed import distributed_c10d as c10d

    if not hasattr(c10d, f"_register_builtin_{name.replace('-', '_')}_backend"):
        return (
            f"torch {torch.__version__} has no {name}, which came with torch 2.14 "
            "(docs/which-nccl.md tells what it is)"
        )
    return _nccl_missing(device, nproc)


def _nccl_missing(device: str, nproc: int) -> str | None:
    if not gpu_count():
        return "nccl needs one GPU per rank: 0 visible"
    version = nccl_version()
    if version is None:
        return "this build of torch has no nccl"
    gpus = gpu_count()
    if gpus >= nproc or version >= NCCL_SEVERAL_RANKS_PER_GPU:
        return None
    wanted, installed = (
        ".".join(map(str, numbers)) for numbers in (NCCL_SEVERAL_RANKS_PER_GPU, version)
    )
    return (
        f"nccl needs one GPU per rank: {nproc} ranks, {gpus} visible "
        f"(NCCL {wanted} would share one, this is {installed})"
    )


@dataclass(frozen=True)
class Backend:
    """A backend that we know, by the name that init_process_group takes.

    The first of its `devices` is the default. `missing(device, nproc)` is why this machine cannot
    run so many ranks on it, or None. `group` is the process group of a backend of ours, as
    "module:class": the fork server imports the module for all ranks.
    """

    name: str
    devices: tuple[str, ...]
    missing: Callable[[str, int], str | None]
    group: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.group.partition(":")[0],) if self.group else ()


_MPI = "collectives.process_groups.mpi.group:ProcessGroupMPI"
_BY_HAND = "collectives.process_groups.by_hand.group:ProcessGroupByHand"
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("gloo", ("cpu", "cuda"), _gloo_missing),
        Backend("nccl", ("cuda",), _nccl_missing),
        Backend("mpi", ("cpu",), _mpi_missing, _MPI),
        Backend("by_hand", ("cpu",), _by_hand_missing, _BY_HAND),
    )
}

# Other engines over NCCL, which torch has under names of their own. Nothing is claimed of them, and
# only who names one gets it.
_NCCL_ENGINES = {
    name: Backend(name, ("cuda",), functools.partial(_engine_missing, name))
    for name in ("nccl2", "nccl-legacy", "nccl-lazy")
}
_KNOWN = BACKENDS | _NCCL_ENGINES

# For help texts.
NAMES = ", ".join(BACKENDS)


def unavailable(backend: str, device: str, nproc: int) -> str | None:
    """Why this machine cannot run `nproc` ranks of `backend` on `device`; None if it can."""
    import torch.distributed as dist

    if backend in _KNOWN:
        return _KNOWN[backend].missing(device, nproc)
    is_built = getattr(dist, f"is_{backend}_available", None)
    if is_built is not None and not is_built():
        return f"this build of torch has no {backend}"
    return f"{backend} on cuda needs a GPU: 0 visible" if _lacks_gpu(device) else None


def devices_of(backend: str) -> tuple[str, ...]:
    """The kinds of devices that a backend works on, of those that we know; the default first."""
    import torch.distributed as dist

    if backend in _KNOWN:
        return _KNOWN[backend].devices
    capable = dist.Backend.backend_capability.get(backend, ())
    return tuple(device for device in ("cpu", "cuda") if device in capable) or ("cpu",)


def modules(names: list[str] | None = None) -> tuple[str, ...]:
    """What ranks of these backends import; by default of all that we know. Not of what is missing:
    the import could end the fork server.
    """
    chosen = BACKENDS if names is None else [name.lower() for name in names]
    own = [BACKENDS[name] for name in chosen if name in BACKENDS and BACKENDS[name].group]
    here = [backend for backend in own if not backend.missing(backend.devices[0], 1)]
    return tuple(module for backend in here for module in backend.modules)


def choose(backend: str | None, device: str | None, nproc: int) -> tuple[str, str]:
    """The backend and the device type for `nproc` ranks on this machine; None asks for the default.

    Raises ValueError if they do not fit or are not known, Unavailable if this machine lacks them.
    """
    device = None if device is None else str(device)
    if device is not None and device.startswith("cuda:"):
        raise ValueError(
            f"device={device!r} names one GPU, but each rank takes that of its LOCAL_RANK: "
            "use 'cuda'. CUDA_VISIBLE_DEVICES=1 leaves the GPU with number 1 alone."
        )
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device={device!r} is not known here: use 'cpu' or 'cuda'.")
    if backend is None:
        # Ranks share a GPU only if somebody asks for NCCL.
        is_own = gpu_count() >= nproc and not unavailable("nccl", "cuda", nproc)
        if device != "cpu" and is_own:
            backend, device = "nccl", "cuda"
        else:
            backend, device = "gloo", device or "cpu"
    known = known_backends()
    backend = str(backend).lower()
    if backend not in known:
        raise ValueError(
            f"backend={backend!r} is not known to this torch: {did_you_mean(backend, known)}"
            f"It knows {', '.join(known)}; with --import MODULE also one of your own."
        )
    devices = devices_of(backend)
    device = device or devices[0]
    if device not in devices:
        raise ValueError(
            f"backend={backend!r} does not work on {device}: use device={devices[0]!r}, "
            "or another backend."
        )
    if reason := unavailable(backend, device, nproc):
        raise Unavailable(f"backend={backend!r} cannot run here: {reason}.")
    return backend, device


def known_backends() -> list[str]:
    """The names that this torch knows, including registered third-party backends."""
    import torch.distributed as dist

    return sorted({*_KNOWN, *(name for name in dist.Backend.backend_list if name != "undefined")})


def rank_device(device_type: str, local_rank: int):
    """The device of a rank. If there are fewer GPUs than ranks, ranks share GPUs in turn."""
    import torch

    if device_type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", local_rank % gpu_count())


def rank_environment(backend: str, nproc: int, one_machine: bool = True) -> dict[str, str]:
    """The environment variables that a rank needs.

    On one machine its backend listens on loopback only. NCCL may share a GPU among ranks if there
    are fewer GPUs than `nproc`.
    """
    variables: dict[str, str] = {}
    if one_machine:
        variables |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        variables["UCX_TLS"] = "self,sm"  # MPICH's transport: shared memory needs no socket
    if backend in ("nccl", *_NCCL_ENGINES) and gpu_count() < nproc:
        # Experimental in NCCL 2.30. NVLS needs a GPU per rank, and the thread blocks of all ranks
        # must fit on one GPU.
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
        variables |= {name: os.environ.get(name, value) for name, value in shared.items()}
    return variables


# The same option of every command, of every lesson and of pytest.
IMPORT = "--import"
IMPORT_HELP = "Import it in every rank: it registers a backend of your own. Repeatable."

# What was imported here, by name. Ranks are processes of their own: each that this process starts
# imports the same.
imported: list[str] = []


def add_import_option(add: Callable) -> None:
    """To a parser, by what it adds options with."""
    add(IMPORT, action="append", default=[], dest="modules", metavar="MODULE", help=IMPORT_HELP)


def import_modules(names: Iterable[str]) -> None:
    """Import modules, from the current folder too, here and in the ranks that start from now on.

    ValueError, in one sentence, for a module that is missing, that raises, or that registers no
    backend.
    """
    # By itself the `collectives` command does not look in the current folder.
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if name not in imported:
            _import(name)
            imported.append(name)


def _import(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f"{IMPORT} {name}: that is no name of a module: write it as behind `import` in Python."
        )
    # What was imported before has registered its backend before.
    is_new, before = name not in sys.modules, known_backends()
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{IMPORT} {name}: {_why_not(name, error)}") from error
    if is_new and known_backends() == before:
        raise ValueError(
            f"{IMPORT} {name}: it registers no backend: it should call "
            "torch.distributed.Backend.register_backend when it is imported, with a name that no "
            "other backend has."
        )


def _why_not(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        without = f": leave out the ending, as in {name[:-3]}" if name.endswith(".py") else ""
        return f"there is no such module, here or where this Python looks for packages{without}."
    *_, frame = traceback.extract_tb(error.__traceback__)
    # The message of a SyntaxError names the place itself; nothing of the module has run.
    place = f" ({frame.filename}, line {frame.lineno})" if frame.filename[0] != "<" else ""
    return f"its import raised {type(error).__name__}: {' '.join(str(error).split())}{place}."
