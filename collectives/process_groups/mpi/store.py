"""The store of a world that mpiexec started: MPI tells the ranks the address."""

import contextlib
import datetime
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

_store: dist.TCPStore | None = None


def open(timeout: float) -> tuple[dist.Store, int, int]:
    """The store, which is opened only once; the rank; and the world size.

    Rank 0 holds it. It listens on loopback if all ranks are on one machine, else on the address of
    rank 0's host name. Raises RuntimeError if a rank does not come within `timeout` seconds.
    """
    global _store
    from collectives.process_groups.mpi import library

    MPI, everyone = library.MPI, library.world()
    if _store is None:
        _complete(everyone.Ibarrier(), timeout)
        forget_shared_memory()
        neighbours = everyone.Split_type(MPI.COMM_TYPE_SHARED)
        library.several_machines = neighbours.size < everyone.size
        host = socket.gethostname() if library.several_machines else "127.0.0.1"
        neighbours.Free()
        patience = datetime.timedelta(seconds=timeout)
        address = bytearray(300)
        if everyone.rank == 0:
            listener = socket.create_server((host, 0), backlog=max(128, everyone.size))
            port = listener.getsockname()[1]
            fd = listener.detach()
            _store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=patience,
                master_listen_fd=fd,
            )
            text = f"{host} {port}".encode()
            address[: len(text)] = text
        _complete(everyone.Ibcast(address), timeout)
        if everyone.rank:
            host, port = address.rstrip(b"\0").decode().split()
            _store = dist.TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=patience
            )
    assert _store is not None
    return _store, everyone.rank, everyone.size


def forget_shared_memory() -> None:
    """Unlink the file of the memory that MPICH's ranks share, once all have opened it.

    MPICH removes it in MPI_Finalize, which a killed rank does not reach.
    """
    with contextlib.suppress(OSError):  # no /proc, or another rank has done it
        for line in Path("/proc/self/maps").read_text().splitlines():
            if (file := line.split()[-1]).startswith("/dev/shm/mpich_shm_"):
                os.unlink(file)


def _complete(request: Any, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"not every rank had come to init_process_group, or launch, after {timeout:g} s "
                "[mpi]"
            )
        time.sleep(0.001)
