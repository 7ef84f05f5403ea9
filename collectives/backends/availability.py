"""What each backend needs, and whether this machine has it."""

import ctypes
import difflib
import importlib.util
import os
import shutil
import socket
import sys

# The network interface for connections within this machine.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# The devices that each backend works on, the default first.
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",), "mpi": ("cpu",), "by_hand": ("cpu",)}

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


def missing_for_mpi() -> str | None:
    """What our MPI backend lacks on this machine, or None. Does not start MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py"
    return None if mpiexec() else "mpiexec"


def mpiexec() -> str | None:
    """The path of mpiexec: next to this Python, where pip installs it, or else on the PATH."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")


def unavailable(backend: str, device: str, nproc: int) -> str | None:
    """Why this machine cannot run `nproc` ranks of `backend` on `device`; None if it can."""
    import torch.distributed as dist

    if device == "cuda" and not gpu_count():
        needs = (
            "nccl needs one GPU per rank" if backend == "nccl" else f"{backend} on cuda needs a GPU"
        )
        return f"{needs}: 0 visible"
    if backend == "gloo" and not dist.is_gloo_available():
        return "this build of torch has no gloo"
    if backend == "mpi" and (missing := missing_for_mpi()):
        return f"mpi needs {missing}, which is not here: pip install 'collectives[mpi]' brings it"
    if backend == "by_hand" and sys.platform != "linux":
        return "by_hand needs Linux, whose unix sockets have addresses that are no files"
    return _nccl_unavailable(nproc) if backend == "nccl" else None


def _nccl_unavailable(nproc: int) -> str | None:
    version = nccl_version()
    if version is None:
        return "this build of torch has no nccl"
    gpus = gpu_count()
    if gpus >= nproc or version >= NCCL_SEVERAL_RANKS_PER_GPU:
        return None
    wanted, found = (
        ".".join(map(str, numbers)) for numbers in (NCCL_SEVERAL_RANKS_PER_GPU, version)
    )
    return (
        f"nccl needs one GPU per rank: {nproc} ranks, {gpus} visible "
        f"(NCCL {wanted} would share one, this is {found})"
    )


def choose(backend: str | None, device: str | None, nproc: int) -> tuple[str, str]:
    """The backend and the device type for `nproc` ranks on this machine; None asks for the default.

    Raises ValueError if they do not fit or are not known, Unavailable if this machine lacks them.
    """
    device = None if device is None else str(device).partition(":")[0]
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device={device!r} is not known here: use 'cpu' or 'cuda'.")
    if backend is None:
        if device == "cpu" or unavailable("nccl", "cuda", nproc):
            backend, device = "gloo", device or "cpu"
        else:
            backend, device = "nccl", "cuda"
    known = known_backends()
    backend = str(backend).lower()
    if backend not in known:
        near = difflib.get_close_matches(backend, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"backend={backend!r} is not known to this torch: {hint}It knows {', '.join(known)}."
        )
    devices = DEVICES.get(backend, ("cpu", "cuda"))
    device = device or devices[0]
    if device not in devices:
        raise ValueError(
            f"backend={backend!r} does not work on {device}: use device={devices[0]!r}, "
            "or another backend."
        )
    if reason := unavailable(backend, device, nproc):
        raise Unavailable(f"backend={backend!r} cannot run here: {reason}.")
    return backend, device


def address_of_interface(name: str) -> str:
    """The IPv4 address of an interface, of the first one in a list such as GLOO_SOCKET_IFNAME has.

    Raises OSError if there is none.
    """
    import psutil

    for one in psutil.net_if_addrs().get(name.partition(",")[0], []):
        if one.family == socket.AF_INET:
            return one.address
    raise OSError(f"GLOO_SOCKET_IFNAME={name}: no interface of this machine has that name")


def known_backends() -> list[str]:
    """The names that this torch knows, including registered third-party backends."""
    import torch.distributed as dist

    return sorted({*DEVICES, *(name for name in dist.Backend.backend_list if name != "undefined")})


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
    variables = {}
    if one_machine:
        variables |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        variables["UCX_TLS"] = "self,sm"  # MPICH's transport: shared memory needs no socket
    if backend == "nccl" and gpu_count() < nproc:
        # Experimental in NCCL 2.30. NVLS needs a GPU per rank, and the thread blocks of all ranks
        # must fit on one GPU.
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
        variables |= {name: os.environ.get(name, value) for name, value in shared.items()}
    return variables
