"""The store of a world that mpiexec started: its ranks know each other already, and only have to be told a port."""

import contextlib
import datetime
import os
import socket
import time
from pathlib import Path

import torch.distributed as dist

_store = None


def open(timeout: float) -> tuple[dist.Store, int, int]:
    """The store, opened once for all, the rank and the world size. RuntimeError if a rank does not come within `timeout` seconds.

    It lives in rank 0. If all ranks are on one machine it listens on loopback; else on the address of rank 0's host name.
    """
    global _store
    from collectives.backends.mpi.library import MPI, world

    everyone = world()
    if _store is None:
        _complete(everyone.Ibarrier(), timeout)
        forget_shared_memory()
        neighbours = everyone.Split_type(MPI.COMM_TYPE_SHARED)
        host = "127.0.0.1" if neighbours.size == everyone.size else socket.gethostname()
        neighbours.Free()
        patience = datetime.timedelta(seconds=timeout)
        place = bytearray(300)
        if everyone.rank == 0:
            listener = socket.create_server((host, 0), backlog=max(128, everyone.size))
            port = listener.getsockname()[1]
            fd = listener.detach()
            options = {"is_master": True, "wait_for_workers": False, "timeout": patience}
            _store = dist.TCPStore(host, port, **options, master_listen_fd=fd)
            text = f"{host} {port}".encode()
            place[: len(text)] = text
        _complete(everyone.Ibcast(place), timeout)
        if everyone.rank:
            host, port = place.rstrip(b"\0").decode().split()
            _store = dist.TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=patience
            )
    return _store, everyone.rank, everyone.size


def forget_shared_memory() -> None:
    """When all ranks have opened the memory that MPICH's ranks of one machine share, none needs its name any more.

    MPICH removes the file in MPI_Finalize, which a killed rank does not reach: removed now, no kill can leave it behind.
    """
    with contextlib.suppress(OSError):  # no /proc, or another rank was first
        for line in Path("/proc/self/maps").read_text().splitlines():
            if (file := line.split()[-1]).startswith("/dev/shm/mpich_shm_"):
                os.unlink(file)


def _complete(request, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"not every rank had come to init_process_group, or launch, after {timeout:g} s [mpi]"
            )
        time.sleep(0.001)
