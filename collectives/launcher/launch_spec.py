"""What one launch has to do: the function, the ranks that call it, and how to start them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from collectives.launcher.place import Place
from collectives.launcher.server import default_start_method


@dataclass(frozen=True)
class SharedRank:
    """A rank whose peers are started elsewhere: its place, and the TCPStore where all meet."""

    place: Place
    store_host: str
    store_port: int
    store_prefix: str


@dataclass(frozen=True)
class LaunchSpec:
    """Start `nproc` ranks on this machine that call `fn`. launch.py has checked the arguments.

    With `shared_rank`, start only that rank of a larger world; `nproc` is then 1.
    """

    fn: Callable
    nproc: int
    args: tuple
    backend: str
    device: str
    timeout: float  # seconds, for the whole launch
    start_method: str = field(default_factory=default_start_method)
    shared_rank: SharedRank | None = None
