"""Where the ranks of one world meet, and which store their job has."""

import os
import sys


def meeting_place(given: dict) -> str:
    """Host and port, or a file, from the arguments of init_process_group and the environment."""
    method = given.get("init_method")
    store = _innermost(given.get("store"))
    if (path := getattr(store, "path", None)) or hasattr(store, "port"):
        return str(path or f"port {store.port}")
    if method not in (None, "env://"):
        return str(method).partition("://")[2]
    if "MASTER_PORT" in os.environ:
        return f"{os.environ.get('MASTER_ADDR')}:{os.environ['MASTER_PORT']}"
    return f"children of {os.getppid()}"


def job_store() -> tuple[str, int] | None:
    """Host and port of the job's store; None if all ranks are said to be on this machine."""
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE"):
        return None
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d and c10d.is_initialized():
        store = _innermost(c10d._get_default_store())
        return (store.host, store.port) if hasattr(store, "port") else None
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return (host, int(port)) if host and port else None


def _innermost(store):
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
