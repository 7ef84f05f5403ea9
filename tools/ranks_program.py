"""The programs of docs/ranks.html: one for each state of the page, ready to copy and run.

A template has holes such as {{op}}. The page fills them in the same way, from the same templates.
"""

from typing import NamedTuple


class State(NamedTuple):
    """What the holes of the page's sentence hold. A hole that the call does not have is ""."""

    call: str
    n: int
    length: int
    op: str = ""
    root: int | str = ""
    splits: str = ""

    @property
    def key(self) -> str:
        return "/".join(map(str, self))


class Change(NamedTuple):
    """What one rank does otherwise: `what` is op, root, length, or "missing" for no call."""

    rank: int
    what: str
    value: int | str = ""


class Call(NamedTuple):
    """A call on the page.

    `holes`: which of op, root and splits it has, besides length and n. `algorithms`: the entry of
    collectives.algorithms.table whose messages carry it. `before` and `after`: what a rank holds.
    """

    lesson: str
    holes: tuple[str, ...]
    algorithms: str
    setup: str
    before: str
    call: str
    after: str


_DIGITS = "x = torch.arange(1, length + 1) * 10**rank\n"
_TENS = "x = 10 * rank + torch.arange(1, length + 1)\n"
_PARTS = "parts = [torch.full((length,), -1) for _ in range(n)]\n"
_PARTS_OF_ROOT = "parts = [torch.full((length,), -1) for _ in range(n)] if rank == root else None\n"
_X, _OUT = "x.tolist()", "out.tolist()"
_ALL_PARTS = "[part.tolist() for part in parts]"
_PARTS_OR_NONE = "[part.tolist() for part in parts] if parts else None"

CALLS = {
    "all_reduce": Call(
        "all_reduce", ("op",), "all_reduce", _DIGITS, _X, "dist.all_reduce(x, op=op)", _X
    ),
    "broadcast": Call(
        "broadcast", ("root",), "broadcast", _TENS, _X, "dist.broadcast(x, src=root)", _X
    ),
    "reduce": Call(
        "reduce", ("op", "root"), "reduce", _DIGITS, _X, "dist.reduce(x, dst=root, op=op)", _X
    ),
    "gather": Call(
        "gather",
        ("root",),
        "gather",
        _TENS + _PARTS_OF_ROOT,
        _X,
        "dist.gather(x, parts, dst=root)",
        _PARTS_OR_NONE,
    ),
    "all_gather": Call(
        "all_gather", (), "all_gather", _TENS + _PARTS, _X, "dist.all_gather(parts, x)", _ALL_PARTS
    ),
    "all_gather_single": Call(
        "all_gather",
        (),
        "all_gather",
        _TENS + "out = torch.full((n * length,), -1)\n",
        _X,
        "dist.all_gather_single(out, x)",
        _OUT,
    ),
    "scatter": Call(
        "scatter",
        ("root",),
        "scatter",
        "parts = None\n"
        "if rank == root:\n"
        "    parts = [10 * k + torch.arange(1, length + 1) for k in range(n)]\n"
        "out = torch.full((length,), -1)\n",
        _PARTS_OR_NONE,
        "dist.scatter(out, parts, src=root)",
        _OUT,
    ),
    "reduce_scatter": Call(
        "reduce_scatter",
        ("op",),
        "reduce_scatter",
        "x = torch.arange(1, n * length + 1) * 10**rank\n"
        "parts = list(x.split(length))\n"
        "out = torch.full((length,), -1)\n",
        _ALL_PARTS,
        "dist.reduce_scatter(out, parts, op=op)",
        _OUT,
    ),
    "reduce_scatter_single": Call(
        "reduce_scatter",
        ("op",),
        "reduce_scatter",
        "x = torch.arange(1, n * length + 1) * 10**rank\nout = torch.full((length,), -1)\n",
        _X,
        "dist.reduce_scatter_single(out, x, op=op)",
        _OUT,
    ),
    "all_to_all": Call(
        "all_to_all",
        (),
        "all_to_all",
        "ones = torch.arange(1, length + 1)\n"
        "sent = [100 * rank + 10 * k + ones for k in range(n)]\n" + _PARTS,
        "[part.tolist() for part in sent]",
        "dist.all_to_all(parts, sent)",
        _ALL_PARTS,
    ),
    "all_to_all_single": Call(
        "all_to_all",
        ("splits",),
        "all_to_all",
        "# Rank r sends counts[r][k] numbers to rank k.\n"
        "counts = [[{{splits}} for k in range(n)] for r in range(n)]\n"
        "sends, receives = counts[rank], [row[rank] for row in counts]\n"
        "x = torch.cat([100 * rank + 10 * k + torch.arange(1, sends[k] + 1) for k in range(n)])\n"
        "out = torch.full((sum(receives),), -1)\n",
        "[part.tolist() for part in x.split(sends)]",
        "dist.all_to_all_single(out, x, receives, sends)",
        "[part.tolist() for part in out.split(receives)]",
    ),
    "send": Call(
        "send_recv",
        ("root",),
        "",
        _TENS,
        _X,
        "if rank == root:\n"
        "    dist.send(x, dst=(root + 1) % n)\n"
        "elif rank == (root + 1) % n:\n"
        "    dist.recv(x, src=root)",
        _X,
    ),
}

# How many numbers rank r sends to rank k.
SPLITS = {
    "even": "length",
    "triangle": "length * (k <= r)",
    "popular": "length + 1 if k == 0 else 1",
    "neighbour": "length * (k == (r + 1) % n)",
}

# The barrier, which is no part of the case: a rank that ends early would cut off one that connects.
BARRIER = "dist.barrier()  # nobody ends while another rank still connects"

# The lines of a call have the mark | until it is known whether every rank makes it.
_FRAME = """\
# torchrun --nproc-per-node {{n}} try_it.py
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
%s
length = {{length}}
%s
print(f"rank {rank} before: {%s}", flush=True)
%s
print(f"rank {rank} after: {%s}", flush=True)
dist.destroy_process_group()
"""


def template(name: str) -> str:
    """The program of a call, with its holes."""
    call = CALLS[name]
    lines = [f"{hole} = {{{{{hole}}}}}\n" for hole in ("op", "root") if hole in call.holes]
    marked = "\n".join("|" + line for line in call.call.splitlines())
    return _FRAME % (
        BARRIER,
        "".join(lines) + call.setup.rstrip("\n"),
        call.before,
        marked,
        call.after,
    )


def program(state: State, change: Change | None = None) -> str:
    """The program of a state, in which one rank may do something else than the others."""
    holes = {
        "n": str(state.n),
        "length": str(state.length),
        "op": f"dist.ReduceOp.{state.op}",
        "root": str(state.root),
        "splits": SPLITS.get(state.splits, ""),
    }
    if change and change.what in holes:
        value = f"dist.ReduceOp.{change.value}" if change.what == "op" else change.value
        holes[change.what] = f"{value} if rank == {change.rank} else {holes[change.what]}"
    text = template(state.call)
    for hole, value in holes.items():
        text = text.replace(f"{{{{{hole}}}}}", value)
    before, indent = "", ""
    if change and change.what == "missing":
        before, indent = f"if rank != {change.rank}:\n", "    "
    return text.replace("\n|", f"\n{before}|", 1).replace("\n|", f"\n{indent}")
