"""torch's own record of collectives, those from C++ (such as DDP) too: its Flight Recorder."""

import contextlib
import threading
from collections.abc import Iterator

from .exit_hooks import named

# So many of its entries are read, the newest.
_MOST = 500

_FIELDS = (
    "record_id",
    "process_group",
    "collective_seq_id",
    "profiling_name",
    "input_sizes",
    "input_dtypes",
    "retired",
)


def entries() -> list[list]:
    """Of each collective: the fields above, then the frame that a report names."""
    import pickle

    import torch
    from torch._C import _distributed_c10d

    found = []
    with _without_compiler(torch):
        trace = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    for entry in pickle.loads(trace)["entries"][-_MOST:]:
        if not entry["is_p2p"]:
            frames = [
                (frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]
            ]
            entry["input_dtypes"] = [
                str(getattr(torch, name.lower(), name)).removeprefix("torch.")  # "Long": "int64"
                for name in entry["input_dtypes"]
            ]
            found.append([*(entry[field] for field in _FIELDS), named(frames)])
    return found


@contextlib.contextmanager
def _without_compiler(torch) -> Iterator[None]:
    """Keep torch from importing its compiler to name frames, which takes seconds.

    One thread at a time. subtle: other threads, which may be importing the compiler just now, find
    it as always.
    """
    real, here = torch.__getattr__, threading.get_ident()

    def __getattr__(name):
        if name == "_inductor" and threading.get_ident() == here:
            raise AttributeError(name)
        return real(name)

    torch.__getattr__ = __getattr__
    try:
        yield
    finally:
        torch.__getattr__ = real
