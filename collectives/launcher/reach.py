"""Whether the machines of a launcher's world can connect to each other, as gloo will."""

import datetime
import json
import os
import socket
from typing import Any

import torch.distributed as dist

from collectives.launcher.worker import Worker, launcher_store
from collectives.process_groups.interfaces import address_of_interface

# Seconds until the other ranks must have joined, and for one connection.
_JOINED_BY = 60.0
_CONNECTS = 3.0


def unreachable(worker: Worker) -> list[str]:
    """A sentence for each machine that cannot connect to another one, the same in all ranks.

    Every rank must call it. One rank of each machine listens at a free port of the address that
    gloo takes there, and connects to all others. Raises ValueError if a rank does not join.
    """
    name, listener, cannot = socket.gethostname(), None, []
    try:
        store = dist.PrefixStore("collectives/reach", launcher_store(worker, _JOINED_BY))
        if worker.local_rank == 0:
            try:
                listener = socket.create_server((_address(), 0))
            except OSError as error:
                cannot.append(f"{name} has no address: {error.strerror or error}")
        address = [name, *listener.getsockname()] if listener else None
        machines = _exchange(store, "machine", worker, address)
        for other in filter(None, machines) if listener else ():
            if other != address and (text := _connect(name, *other)):
                cannot.append(text)
        by_rank = _exchange(store, "cannot", worker, cannot)
    except RuntimeError as error:
        raise ValueError(f"{name} (rank {worker.rank}): {str(error).splitlines()[0]}") from None
    finally:
        if listener is not None:
            listener.close()
    return [text for texts in by_rank for text in texts]


def _address() -> str:
    """On which gloo listens: that of its interface, or that of the machine's own name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface is None:
        return socket.gethostbyname(socket.gethostname())
    return address_of_interface(interface)


def _connect(name: str, other: str, address: str, port: int) -> str | None:
    try:
        socket.create_connection((address, port), _CONNECTS).close()
    except OSError as error:
        return f"{name} cannot reach {other}: {address}: {error.strerror or error}"
    return None


def _exchange(store: dist.Store, what: str, worker: Worker, value: list[Any] | None) -> list[Any]:
    """The values of all ranks, in rank order."""
    store.set(f"{what}/{worker.rank}", json.dumps(value))
    for rank in range(worker.world_size):
        try:
            store.wait([f"{what}/{rank}"], datetime.timedelta(seconds=_JOINED_BY))
        except dist.DistStoreError:
            raise ValueError(f"rank {rank} did not join within {_JOINED_BY:g} s") from None
    return [json.loads(store.get(f"{what}/{rank}")) for rank in range(worker.world_size)]
