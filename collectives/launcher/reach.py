"""Whether the machines of a launcher's world can connect to each other, as gloo will."""

import datetime
import json
import os
import socket

import torch.distributed as dist

from collectives.backends.availability import address_of_interface
from collectives.launcher.join import launcher_store
from collectives.launcher.place import Place

# Seconds for the other ranks to come, and for one connection.
_RANKS_COME = 60.0
_CONNECTS = 3.0


def unreachable(place: Place) -> list[str]:
    """A sentence for each machine that cannot connect to another one, the same in all ranks.

    Every rank must call it. One rank of each machine listens at a free port of the address that
    gloo takes there, and connects to all others. Raises ValueError, where the ranks cannot meet.
    """
    name, listener, cannot = socket.gethostname(), None, []
    try:
        store = dist.PrefixStore("collectives/reach", launcher_store(place, _RANKS_COME))
        if place.local_rank == 0:
            try:
                listener = socket.create_server((_address(), 0))
            except OSError as error:
                cannot.append(f"{name} has no address: {error.strerror or error}")
        address = listener and [name, *listener.getsockname()]
        machines = _exchange(store, "machine", place, address)
        for other in filter(None, machines) if listener else ():
            if other != address and (text := _connect(name, *other)):
                cannot.append(text)
        found = _exchange(store, "cannot", place, cannot)
    except RuntimeError as error:
        raise ValueError(f"{name} (rank {place.rank}): {str(error).splitlines()[0]}") from None
    finally:
        if listener is not None:
            listener.close()
    return [text for texts in found for text in texts]


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


def _exchange(store: dist.Store, what: str, place: Place, value: list | None) -> list:
    """What each rank says, in rank order."""
    store.set(f"{what}/{place.rank}", json.dumps(value))
    for rank in range(place.world_size):
        try:
            store.wait([f"{what}/{rank}"], datetime.timedelta(seconds=_RANKS_COME))
        except dist.DistStoreError:
            raise ValueError(f"rank {rank} did not come within {_RANKS_COME:g} s") from None
    return [json.loads(store.get(f"{what}/{rank}")) for rank in range(place.world_size)]
