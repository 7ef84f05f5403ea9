"""What goes wrong between ranks of NCCL: whether the rank that is at fault is named."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tools.first_gpu_run.plan import COLLECTIVES, PYTHON, TORCHRUN

LIMIT = 30.0  # seconds for what hangs, the start of its ranks included


def _stay_away(rank: int, world_size: int, device, seconds: float = 600) -> None:
    """The last rank never comes to the second all_reduce."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    if rank == world_size - 1:
        time.sleep(seconds)
    dist.all_reduce(x)
    x.item()  # on a GPU, it is here that the host waits


def _do_not_agree(rank: int, world_size: int, device) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4 + rank, device=device))
    torch.cuda.synchronize()


def _die(rank: int, world_size: int, device) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    if rank == world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    x.item()


def _named(program: Callable, ranks: int, kind: str, **options) -> bool:
    """Print what `launch` says of a program, and return whether it names the last rank."""
    from collectives import LaunchError, launch

    try:
        print(launch(program, ranks, backend="nccl", timeout=LIMIT, **options))
    except LaunchError as error:
        print(error)
        return error.rank == ranks - 1 and error.kind == kind
    return False


def hang(ranks: int) -> bool:
    return _named(_stay_away, ranks, "hung")


def mismatch(ranks: int) -> bool:
    return _named(_do_not_agree, ranks, "mismatch", diagnose=True)


def dead_rank(ranks: int) -> bool:
    return _named(_die, ranks, "died")


def watched() -> None:
    """A rank of `watchdog`: the last one stays away for longer than the others wait."""
    import torch
    import torch.distributed as dist

    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=5))
    _stay_away(rank, n, device, 3 * LIMIT)


def watchdog(ranks: int) -> bool:
    """What torch's watchdog writes of a hang, and what `collectives diagnose --log` reads in it."""
    from collectives.backends import availability

    with tempfile.TemporaryDirectory() as folder:
        log, dumps = Path(folder, "log"), Path(folder, "nccl_trace_rank_")
        # Each setting by its older and by its newer name.
        environ = os.environ | availability.rank_environment("nccl", ranks)
        environ |= dict.fromkeys(("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"), "2000")
        environ |= dict.fromkeys(
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"), str(dumps)
        )
        environ |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "20"}
        program = "from tools.first_gpu_run import failures; failures.watched()"
        command = [*TORCHRUN, "--nproc-per-node", str(ranks), "--no-python", PYTHON, "-c", program]
        with log.open("wb") as output, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=environ, stdout=output, stderr=output, timeout=2.5 * LIMIT)
        print(log.read_text(encoding="utf-8", errors="replace"))
        found = sorted(Path(folder).glob(f"{dumps.name}*"))
        for file in found:
            print(f"{file.name}: {json.dumps(pickle.loads(file.read_bytes()), default=str)}")
        says = [
            subprocess.run([*COLLECTIVES, "diagnose", "--log", *map(str, files)]).returncode
            for files in ([log], found)
            if files
        ]
    return says == [1, 1]


TRIES: dict[str, Callable[[int], bool]] = {
    one.__name__: one for one in (hang, watchdog, mismatch, dead_rank)
}
