"""torch's own record of collectives, those from C++ (such as DDP) too: its Flight Recorder."""

import contextlib
import threading
from collections.abc import Iterator

from .stack import named_or_innermost

_FIELDS = ("process_group", "collective_seq_id", "profiling_name", "input_sizes")


def read() -> list[dict]:
    """The latest collectives and messages, oldest first, as far as torch still has them."""
    import pickle

    import torch
    from torch._C import _distributed_c10d

    with _without_compiler(torch):
        return pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]  # type: ignore[attr-defined]


def told(records: list[dict], first: int, most: int) -> dict:
    """What a rank tells of them, from record number `first` on.

    `collectives`: the newest, at most so many. `counts`: of each group, how many collectives it has
    had. `lost`: of a group that is in neither, nothing is known.
    """
    records = [record for record in records if record["record_id"] >= first]
    collectives = [record for record in records if not record["is_p2p"]]
    counts = {record["process_group"]: record["collective_seq_id"] for record in collectives}
    return {
        "collectives": [_told(record) for record in collectives[-most:]] if most else [],
        "counts": list(counts.items()) if most else [],
        "lost": not most or (bool(records) and records[0]["record_id"] > first),
    }


def _told(record: dict) -> list:
    """As rules/flight_record.py reads it; the last is the frame that a report names."""
    import torch

    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in record["frames"]]
    dtypes = [
        str(getattr(torch, name.lower(), name)).removeprefix("torch.")  # "Long": "int64"
        for name in record["input_dtypes"]
    ]
    return [
        *(record[field] for field in _FIELDS),
        dtypes,
        record["retired"],
        named_or_innermost(frames),
    ]


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
