"""Recorded calls and matrices that are made by hand."""

import itertools

import torch

from collectives.backends import claims
from collectives.matrix.measured import Matrix, Measured
from collectives.recording.call import Call
from collectives.semantics.cell import Cell


def program(*ranks: str, members=None) -> list[Call]:
    """Calls from words, one string a rank: "send:1 recv:0 barrier broadcast:2 irecv:3 wait:0".

    A word with "!" failed; one with "..." never returned.
    """
    calls = []
    for rank, words in enumerate(ranks):
        counts = itertools.count()
        for number, word in enumerate(words.split()):
            name, _, peer = word.rstrip("!.").partition(":")
            if name == "span":
                times = {"entered": 1000 * number, "left": 1000 * number + 500}
                calls.append(Call(name, awaited=peer, rank=rank, number=number, **times))
                continue
            pairwise = name in {"send", "isend", "recv", "irecv", "wait"}
            peer, _, tag = peer.partition("#")
            source, peer = (
                (int(peer[3:]), None)
                if peer.startswith("any")
                else (None, int(peer) if peer else None)
            )
            calls.append(
                Call(
                    rank=rank,
                    number=number,
                    name=name,
                    of=peer if name == "wait" else None,
                    awaited=words.split()[peer].partition(":")[0] if name == "wait" else None,
                    peer=None if name == "wait" else peer,
                    source=source,
                    tag=int(tag or 0) if pairwise else None,
                    members=members or tuple(range(len(ranks))),
                    seq=None if pairwise or name.endswith("_group") else next(counts),
                    is_async=name in {"isend", "irecv"},
                    entered=1000 * number,
                    left=None if word.endswith("...") else 1000 * number + 500,
                    error="RuntimeError: it timed out" if word.endswith("!") else None,
                )
            )
    return calls


def record(number: int, seq: int, group=("0", "default_pg"), **changed) -> dict:
    """A collective as torch's Flight Recorder dumps it on gloo, from torch 2.13 on."""
    frame = {"filename": "train.py", "line": 9, "name": "step"}
    fields = {"record_id": number, "process_group": group, "collective_seq_id": seq}
    fields |= {"is_p2p": False, "profiling_name": "gloo:all_reduce", "frames": [frame]}
    fields |= {"input_sizes": [[4]], "input_dtypes": ["Float"]}
    return fields | {"retired": False, "state": "scheduled"} | changed


def cell(
    form="all_reduce",
    dtype="float32",
    op="SUM",
    state="works",
    backend="gloo",
    world_size=2,
    detail="",
    device="cpu",
) -> Measured:
    place = Cell(claims.base(form), form, backend, device, dtype, op, world_size)
    return Measured.of(place, form, state, detail, 0.1)


def works_on_gloo(form: str) -> bool:
    """What we claim of the installed torch."""
    claim = claims.expected(cell(form).cell, torch.__version__)
    return claim is not None and claim.state == "works"


def matrix(*cells, version="2.13.0+cpu") -> Matrix:
    return Matrix(version, None, None, None, "a machine", list(cells))
