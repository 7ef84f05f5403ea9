"""The matrix in torchrun's world.

Each of torchrun's processes supervises: it starts one rank of every cell, and never calls a
collective itself. The ranks of a cell meet at torchrun's store under the cell's own prefix. So do
their supervisors, who go from cell to cell together: when a rank fails, all of them know at once,
and stop the others.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from collectives.launcher import start
from collectives.launcher.rank_spec import LaunchSpec
from collectives.launcher.worker import Worker, launcher_store
from collectives.matrix import run
from collectives.matrix.measured import Measured
from collectives.semantics.cell import Cell

# After the first failure the other ranks may still report theirs for so long, in seconds: that a
# rank died says more than that its peer was lost.
_GRACE = 0.5

# Supervisors wait for each other so much longer than a cell's limit, in seconds.
_PATIENCE = 60.0

# Which outcome of a rank decides for its cell.
_ORDER = ("crashes", "refuses", "wrong", "hangs", "works", "stopped")


def measure(worker: Worker, cells: list[Cell], timeout: float | None = None) -> Iterator[Measured]:
    """Try the cells, one after another; every supervisor gets the same outcomes."""
    store = launcher_store(worker, _PATIENCE)
    worlds = itertools.count()

    def attempt(step: Callable, args: tuple, cell: Cell) -> tuple[str, str]:
        prefix = f"collectives/matrix/{next(worlds)}"
        world = run.world_of(cell, timeout, worker)
        spec = LaunchSpec(world, step, args, store=(*worker.store_address, f"{prefix}/ranks"))
        patience = world.timeout + _PATIENCE
        own_store = dist.PrefixStore(prefix, store)
        return _supervise(lambda: start.start(spec), worker, own_store, patience)

    reasons = run.without_a_world(cells, attempt)
    for cell in cells:
        reason = reasons.get(cell.column) or run.unavailable(cell, worker.local_world_size)
        yield run.answer(cell, attempt, reason)


def _supervise(
    run_rank: Callable[[], list], worker: Worker, store: dist.Store, patience: float
) -> tuple[str, str]:
    """Run this supervisor's rank of a world, and stop it when another one fails.

    Returns the world's state and detail. TimeoutError if a supervisor is silent for `patience`
    seconds.
    """
    was_stopped = threading.Event()

    def work() -> None:
        state, detail = run.outcome_of(run_rank)
        if was_stopped.is_set():
            state = "stopped"
        has_failed = state in ("crashes", "refuses", "hangs")
        number = store.add("failures", 1) if has_failed else 0
        report = [_ORDER.index(state), number, state, detail]
        store.set(f"outcome/{worker.rank}", json.dumps(report))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    keys = [f"outcome/{rank}" for rank in range(worker.world_size)]
    until, failed_at = time.monotonic() + patience, None
    while not store.check(keys):
        now = time.monotonic()
        if failed_at is None and store.add("failures", 0):
            failed_at = now
        if failed_at is not None and now > failed_at + _GRACE and thread.is_alive():
            was_stopped.set()
            start.kill_all()
        if now > until:
            raise TimeoutError(
                f"a supervisor has not answered for {patience:g} s: is its machine gone?"
            )
        time.sleep(0.005)
    thread.join()
    _, _, state, detail = min(json.loads(store.get(key)) for key in keys)
    return state, detail
