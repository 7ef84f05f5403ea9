"""Start the fork server: the process that imports torch once and forks each rank."""

import multiprocessing


def default_start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_server(modules: tuple[str, ...] = ()) -> None:
    """Start the fork server and return at once. It imports torch while the caller goes on.

    It also imports `modules`, but only if this call is the one that starts it.
    """
    if default_start_method() == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(
            [*modules, "collectives.launcher.preload", "torch.distributed"]
        )
        forkserver.ensure_running()
