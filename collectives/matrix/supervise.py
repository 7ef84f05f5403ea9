"""The matrix in torchrun's world: each of its processes starts one rank of every cell, and never calls a collective itself.

The ranks of a cell meet at torchrun's store under the cell's own prefix. So do their supervisors, who go from cell to cell
together: when a rank fails, all of them know at once, and stop the others.
"""

import json
import os
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist

from collectives.launcher import join, start
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch_spec import LaunchSpec, SharedRank
from collectives.launcher.place import Place
from collectives.matrix.recorded import UNAVAILABLE
from collectives.matrix.run import LIMITS, Answer, judge, unavailable
from collectives.spec.cell import Cell
from collectives.spec.forms import FORMS, called
from collectives.spec.probe import Surroundings, probe

# So long after the first failure the other ranks may still tell of theirs, in seconds: a death is worth more than a lost peer.
_CAUSE = 0.5

# How much longer than a cell's limit its supervisors wait for each other, in seconds.
_PATIENCE = 60.0

# Which outcome of a rank decides for its cell.
_ORDER = ("crashes", "refuses", "wrong", "hangs", "works", "stopped")


def measure(
    place: Place, cells: list[Cell], modules: tuple[str, ...] = (), timeout: float | None = None
) -> Iterator[Answer]:
    """Try the cells, one after another; every supervisor gets the same answers."""
    store = join.launcher_store(place, _PATIENCE)
    for number, cell in enumerate(cells):
        name = called(FORMS[cell.name])
        if reason := unavailable(cell, place.local_world_size):
            yield Answer(cell, name, UNAVAILABLE, reason, 0.0)
            continue
        begin = time.monotonic()
        prefix = f"collectives/matrix/{number}"
        share = SharedRank(
            place, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), f"{prefix}/ranks"
        )
        state, detail = _supervise(
            cell, share, dist.PrefixStore(prefix, store), modules, timeout or LIMITS[cell.device]
        )
        yield Answer(cell, name, state, detail, time.monotonic() - begin)


def _supervise(
    cell: Cell, share: SharedRank, store: dist.Store, modules: tuple[str, ...], limit: float
) -> tuple[str, str]:
    """Start this supervisor's rank of the cell, and stop it when another one fails; what became of the cell."""
    stopped = threading.Event()

    def run() -> None:
        state, detail = _try(cell, share, modules, limit)
        if stopped.is_set():
            state = "stopped"
        order = store.add("failures", 1) if state in ("crashes", "refuses", "hangs") else 0
        store.set(
            _outcome(share.place.rank), json.dumps([_ORDER.index(state), order, state, detail])
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    keys = [_outcome(rank) for rank in range(share.place.world_size)]
    until, failed = time.monotonic() + limit + _PATIENCE, None
    while not store.check(keys):
        if failed is None and store.add("failures", 0):
            failed = time.monotonic()
        if failed is not None and time.monotonic() > failed + _CAUSE and thread.is_alive():
            stopped.set()
            start.kill_all()
        if time.monotonic() > until:
            raise TimeoutError(
                f"a supervisor has not answered for {limit + _PATIENCE:g} s: is its machine gone?"
            )
        time.sleep(0.005)
    thread.join()
    _, _, state, detail = min(json.loads(store.get(key)) for key in keys)
    return state, detail


def _outcome(rank: int) -> str:
    return f"outcome/{rank}"


def _try(cell: Cell, share: SharedRank, modules: tuple[str, ...], limit: float) -> tuple[str, str]:
    """What this supervisor's own rank came to."""
    args = cell, Surroundings(modules)
    spec = LaunchSpec(probe, 1, args, cell.backend, cell.device, limit, shared_rank=share)
    try:
        (wrong,) = start.start(spec)
    except LaunchError as error:
        return judge(error)
    except Exception as error:
        return "crashes", f"{type(error).__name__}: {error}".splitlines()[0]
    return ("wrong", wrong) if wrong else ("works", "")
