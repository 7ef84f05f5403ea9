"""The store in which the ranks of a launcher's world exchange what they must know of each other."""

import datetime
import functools
import ipaddress
import os
import socket

import torch.distributed as dist

from collectives.launcher.worker import Worker

_launcher_store = None


def launcher_store(worker: Worker, timeout: float) -> dist.Store:
    """The launcher's own store, opened once. Give it a prefix: keys must never be used twice."""
    global _launcher_store
    if _launcher_store is None:
        patience = datetime.timedelta(seconds=timeout)
        if worker.launcher == "srun":
            _launcher_store = _store_of_step(worker, patience)
        else:
            where = "mpi://" if worker.uses_mpi else "env://"
            _launcher_store, _, _ = next(dist.rendezvous(where, timeout=patience))
    return _launcher_store


def _store_of_step(worker: Worker, patience: datetime.timedelta) -> dist.TCPStore:
    """srun has no store for its ranks: rank 0 opens one, at the address where the others expect it.

    It listens at this address alone: whoever reaches the store can end the launch.
    """
    host, port = worker.store_address
    connect = functools.partial(dist.TCPStore, wait_for_workers=False, timeout=patience)
    if worker.rank:
        return connect(host, port, is_master=False)
    cannot = f"rank 0 cannot open the store of this Slurm step at {host}, port {port}:"
    choose = "Choose another address: export MASTER_ADDR and MASTER_PORT before srun."
    try:
        listener = socket.create_server((host, port), backlog=max(128, worker.world_size))
    except OSError as error:
        raise ValueError(f"{cannot} {error.strerror}. {choose}") from error
    address = listener.getsockname()[0]
    fd = listener.detach()
    if not worker.on_one_machine and ipaddress.ip_address(address).is_loopback:
        os.close(fd)
        raise ValueError(f"{cannot} this is {address}, which no other machine reaches. {choose}")
    return connect(address, port, is_master=True, master_listen_fd=fd)
