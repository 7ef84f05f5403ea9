"""What one launch has to do: the function, the ranks that call it, and how to start them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collectives.launcher.server import default_start_method
from collectives.launcher.worker import Worker


@dataclass(frozen=True)
class SharedRank:
    """A rank whose peers are started elsewhere: the worker that starts it, and their store."""

    worker: Worker
    store_host: str
    store_port: int
    store_prefix: str


@dataclass(frozen=True)
class LaunchSpec:
    """Start `nproc` ranks on this machine that call `fn`. launch.py has checked the arguments.

    With `shared_rank`, start only that rank of a larger world; `nproc` is then 1.
    """

    fn: Callable[..., Any]
    nproc: int
    args: tuple[Any, ...]
    backend: str
    device: str
    timeout: float  # seconds, for the whole launch
    start_method: str = field(default_factory=default_start_method)
    shared_rank: SharedRank | None = None
