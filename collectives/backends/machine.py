"""Facts about this machine and its software, for bug reports and the header of pytest."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess

from collectives.backends import availability

# Environment variables that change what a backend does.
_SETTINGS = (
    "NCCL_",
    "GLOO_",
    "TORCH_DISTRIBUTED_",
    "TORCH_NCCL_",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)


def version(package: str = "torch-collectives") -> str | None:
    """The installed version of a package; None without it. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> list[tuple[str, str]]:
    """Names and values, as text. Opens no CUDA context and does not start MPI."""
    import torch

    gpus = availability.gpu_count()
    works, missing = _backends()
    return [
        ("collectives", version() or "not installed, run from its folder"),
        ("torch", f"{torch.__version__} ({_build()})"),
        ("CUDA", torch.version.cuda or "none in this build of torch"),
        ("NCCL", _nccl()),
        ("GPUs", f"{gpus} visible" + (f" ({_gpu_names()})" if gpus else "")),
        ("cores", _cores()),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("platform", platform.platform()),
        ("MPI", _mpi()),
        ("backends", ", ".join(works)),
        ("not here", "; ".join(missing) or "-"),
        ("settings", _settings()),
    ]


def _settings() -> str:
    variables = sorted(os.environ.items())
    set_here = [f"{name}={value}" for name, value in variables if name.startswith(_SETTINGS)]
    return ", ".join(set_here) or "-"


def _build() -> str:
    import torch

    if torch.version.hip:
        return f"ROCm {torch.version.hip} build"
    return f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"


def _nccl() -> str:
    version = availability.nccl_version()
    return ".".join(map(str, version)) if version else "none in this build of torch"


def _gpu_names() -> str:
    """Asked of nvidia-smi, because torch would open a CUDA context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no nvidia-smi to name them"
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {type(error).__name__}"
    kinds = dict.fromkeys(
        line.strip().replace(", ", ", driver ") for line in answer.splitlines() if line.strip()
    )
    return "; ".join(kinds)


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()} usable"


def _mpi() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"

    start = "mpiexec found" if availability.mpiexec() else "no mpiexec"
    return f"mpi4py {version('mpi4py') or 'of unknown version'}, {start}"


def _backends() -> tuple[list[str], list[str]]:
    """What works here with one rank, such as "gloo on cpu", and why the rest does not."""
    works, missing = [], []
    for backend in availability.BACKENDS.values():
        for device in backend.devices:
            reason = availability.unavailable(backend.name, device, 1)
            if reason is None:
                works.append(f"{backend.name} on {device}")
            else:
                missing.append(reason)
    return works, missing
