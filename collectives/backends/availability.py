"""What each backend is, what it needs, and whether this machine has it."""

import ctypes
import difflib
import importlib.util
import os
import shutil
import sys

# The interface that carries only this machine's own traffic.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# Where each backend's tensors may live, in the order in which we try them.
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",), "mpi": ("cpu",)}

# NCCL from this version on accepts several ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 release notes).
NCCL_SEVERAL_RANKS_PER_GPU = (2, 30)


class Unavailable(ValueError):
    """What was asked for is right, but this machine does not have it."""


def gpu_count() -> int:
    """The GPUs that torch sees. Does not open a CUDA context, so that the ranks started later still can."""
    import torch

    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def nccl_version() -> tuple[int, ...] | None:
    """The version of the NCCL that torch runs with, or None without NCCL.

    It may be another than torch was built with: a newer library can be preloaded, and torch tells of its own.
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
    """What our MPI backend lacks on this machine; None if it has all. Starts no MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py"
    return None if mpiexec() else "mpiexec"


def mpiexec() -> str | None:
    """The mpiexec of this Python's environment, where pip puts it, or else that of the PATH."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")


def unavailable(backend: str, device: str, nproc: int) -> str | None:
    """Why this machine cannot run `nproc` ranks of `backend` on `device`; None if it can."""
    import torch.distributed as dist

    gpus = gpu_count()
    if device == "cuda" and not gpus:
        return (
            f"{backend} on cuda needs a GPU: 0 visible"
            if backend != "nccl"
            else "nccl needs one GPU per rank: 0 visible"
        )
    if backend == "gloo" and not dist.is_gloo_available():
        return "this build of torch has no gloo"
    if backend == "mpi" and (missing := missing_for_mpi()):
        return f"mpi needs {missing}, which is not here: pip install 'collectives[mpi]' brings it"
    if backend == "nccl":
        version = nccl_version()
        if version is None:
            return "this build of torch has no nccl"
        if gpus < nproc and version < NCCL_SEVERAL_RANKS_PER_GPU:
            wanted, found = (
                ".".join(map(str, NCCL_SEVERAL_RANKS_PER_GPU)),
                ".".join(map(str, version)),
            )
            return f"nccl needs one GPU per rank: {nproc} ranks, {gpus} visible (NCCL {wanted} would share one, this is {found})"
    return None


def choose(backend: str | None, device: str | None, nproc: int) -> tuple[str, str]:
    """The backend and the kind of device for `nproc` ranks on this machine. ValueError if there is none."""
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
            f"backend={backend!r} does not work on {device}: use device={devices[0]!r}, or another backend."
        )
    if reason := unavailable(backend, device, nproc):
        raise Unavailable(f"backend={backend!r} cannot run here: {reason}.")
    return backend, device


def known_backends() -> list[str]:
    """The names that this torch knows, those of registered third parties among them."""
    import torch.distributed as dist

    return sorted({*DEVICES, *(name for name in dist.Backend.backend_list if name != "undefined")})


def rank_device(kind: str, local_rank: int):
    """The device of a rank: its own GPU where there are enough, else the GPUs in turn."""
    import torch

    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", local_rank % gpu_count())


def environment(backend: str, nproc: int, one_machine: bool = True) -> dict[str, str]:
    """What the environment of a rank must say, so that its backend listens on loopback only and may share a GPU."""
    found = {}
    if one_machine:
        found |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        found["UCX_TLS"] = "self,sm"  # MPICH's transport: shared memory needs no socket
    if backend == "nccl" and gpu_count() < nproc:
        # NCCL 2.30: experimental; NVLS wants a GPU per rank, and the thread blocks of all ranks must fit on the one GPU.
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
        found |= {name: os.environ.get(name, value) for name, value in shared.items()}
    return found
