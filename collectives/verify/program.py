"""The smallest question that is answered wrongly, as a program that runs without this package."""

from collectives.semantics import values, wide_values
from collectives.semantics.cell import Cell, DetailedCell
from collectives.verify.question import Question

# For each call: what it needs, the call itself, what it fills, and what that should be. `x(r)` is
# what rank r gives, `ranks` are the members, `root` is the root.
_Lines = tuple[tuple[str, ...], str, str, str]
_CALLS: dict[str, _Lines] = {
    "broadcast": (
        ("t = x(rank, k)",),
        "broadcast(t, root{})",
        "[t]",
        "[x(root, k)]",
    ),
    "all_reduce": (("t = x(rank, k)",), "all_reduce(t{op}{})", "[t]", "[{sum}]"),
    "reduce": (
        ("t = x(rank, k)",),
        "reduce(t, root{op}{})",
        "[t][: rank == root]",
        "[{sum}]",
    ),
    "all_gather": (
        ("out = [torch.zeros_like({x}) for _ in ranks]",),
        "all_gather(out, {x}{})",
        "out",
        "[x(r, k) for r in ranks]",
    ),
    "all_gather_single": (
        ("out = torch.cat([torch.zeros_like({x}) for _ in ranks])",),
        "all_gather_into_tensor(out, {x}{})",
        "[out]",
        "[torch.cat([x(r, k) for r in ranks])]",
    ),
    "gather": (
        ("out = [torch.zeros_like({x}) for _ in ranks] if rank == root else None",),
        "gather({x}, out, root{})",
        "out or []",
        "[x(r, k) for r in ranks]",
    ),
    "scatter": (
        (
            "t = torch.zeros_like({x})",
            "pieces = [x(r, k) for r in ranks] if rank == root else None",
        ),
        "scatter(t, pieces, root{})",
        "[t]",
        "[x(rank, k)]",
    ),
    "reduce_scatter": (
        ("t = torch.zeros_like({x})",),
        "reduce_scatter(t, [x(rank, k + 5 * r) for r in ranks]{op}{})",
        "[t]",
        "[{sum5}]",
    ),
    "reduce_scatter_single": (
        ("t = torch.zeros_like({x})",),
        "reduce_scatter_tensor(t, torch.cat([x(rank, k + 5 * r) for r in ranks]){op}{})",
        "[t]",
        "[{sum5}]",
    ),
    "all_to_all": (
        ("out = [torch.zeros_like({x}) for _ in ranks]",),
        "all_to_all(out, [x(rank, k + 5 * r) for r in ranks]{})",
        "out",
        "[x(r, k + 5 * rank) for r in ranks]",
    ),
    "all_to_all_single": (
        ("out = torch.cat([torch.zeros_like({x}) for _ in ranks])",),
        "all_to_all_single(out, torch.cat([x(rank, k + 5 * r) for r in ranks]){})",
        "[out]",
        "[torch.cat([x(r, k + 5 * rank) for r in ranks])]",
    ),
    "barrier": ((), "barrier({})", "[]", "[]"),
}

_REDUCED = {
    "SUM": "sum({}).to({}.dtype)",
    "AVG": "(sum({}) / len(ranks)).to({}.dtype)",
    "MIN": "torch.stack([*{}]).amin(0)",
    "MAX": "torch.stack([*{}]).amax(0)",
    "PRODUCT": "torch.stack([*{}]).prod(0).to({}.dtype)",
}


def of(question: Question, modules: tuple[str, ...]) -> str:
    """The program; empty where there is none for this kind of question."""
    given = question.program
    if isinstance(given, Cell):
        return _program(given, "", modules)
    if isinstance(given, tuple) and given[0] == "failure":
        _, name, fate, victim, backend = given
        return _with_a_peer_that_fails(name, fate, victim, backend, modules)
    if isinstance(given, tuple):
        return _program(given[1], given[0], modules)
    return ""


def _numbers(cell: Cell) -> str:
    """What rank r gives in its k-th call, as an expression."""
    dtype = values.DTYPES[cell.dtype or "float32"]
    name = f"torch.{cell.dtype or 'float32'}"
    count = 2 * len(cell.ranks) + 1
    data = "exact"
    if isinstance(cell, DetailedCell):
        count = count if cell.elements is None else cell.elements
        data = cell.data
    places = f"torch.arange({count:_})"
    if dtype.is_complex or "float8" in name:
        return f"({places} % 7 + r + k).to({name})"
    if dtype.itemsize == 1 or dtype == values.DTYPES["bool"]:
        return f"(({places} + r + k) % {2 if 'bool' in name else 29}).to({name})"
    if data == "special":
        return f"torch.tensor([float('nan'), float('inf'), -0.0, 1e-45]).to({name}).roll(r + k)"
    if data == "wide":
        bits = wide_values.bits(dtype) - (len(cell.ranks) - 1).bit_length()
        if cell.op == "PRODUCT":
            bits = wide_values.bits(dtype) // 2
        return f"({places} % 50 * 2 + 2 ** {bits - 1} + 2 * r + 4 * k + 1).to({name})"
    limit = 29 if cell.op == "PRODUCT" else 97
    return f"({places} % {limit} + 2 * r + k).to({name})"


def _head(modules: tuple[str, ...]) -> list[str]:
    return ["import torch", "import torch.distributed as dist", *(f"import {m}" for m in modules)]


def _call(cell: Cell, is_async: bool, group: str) -> list[str] | None:
    """The function `call(k)`: it returns the Work of the call, what is filled, and with what."""
    if cell.name not in _CALLS:
        return None
    lines, call, got, should = _CALLS[cell.name]
    variant = cell.variant
    x = "x(rank, k)"
    op = ""
    if cell.op not in (None, "SUM"):
        if cell.op not in _REDUCED:
            return None
        op = f", op=dist.ReduceOp.{cell.op}"
    reduced = _REDUCED.get(cell.op or "SUM", "")
    terms, terms5 = "(x(r, k) for r in ranks)", "(x(r, k + 5 * rank) for r in ranks)"
    words = {
        "op": op,
        "x": x,
        "sum": reduced.replace("{}", terms, 1).replace("{}", x),
        "sum5": reduced.replace("{}", terms5, 1).replace("{}", x),
    }
    end = group + (", async_op=True" if is_async else "")

    def fill(text: str) -> str:
        for name, value in words.items():
            text = text.replace(f"{{{name}}}", value)
        text = text.replace("{}", end)
        return text.replace("(, ", "(")

    body = [fill(line) for line in lines]
    if variant == "noncontiguous":
        body = [line.replace("= x(rank, k)", "= gaps(x(rank, k))") for line in body]
        body = [line.replace("torch.zeros_like(", "gaps(") for line in body]
    return [
        "def call(k):",
        *(f"    {line}" for line in body),
        f"    work = dist.{fill(call)}",
        f"    return work, {got}, {fill(should)}",
    ]


def _program(cell: Cell, kind: str, modules: tuple[str, ...]) -> str:
    if cell.variant in ("lazy", "scalar", "uneven", "tag", "any_source"):
        return ""
    group = ", group=group" if cell.ranks != tuple(range(cell.world_size)) else ""
    is_async = bool(kind) or cell.variant == "async"
    call = _call(cell, is_async, group)
    if call is None:
        return ""
    lines = [
        f"# torchrun --nproc-per-node {cell.world_size} smallest.py",
        *_head(modules),
        f'dist.init_process_group("{cell.backend}")',
        f"rank, ranks, root = dist.get_rank(), {list(cell.ranks)}, {cell.root}",
        *(["group = dist.new_group(ranks)"] if group else []),
        f"x = lambda r, k=0: {_numbers(cell)}",
    ]
    if cell.variant == "noncontiguous":
        lines.append("gaps = lambda t: t.repeat_interleave(2)[::2]")
    lines += call
    again = {"4 in flight": 4, "1,000 small calls": 1000}.get(kind, 1)
    late = kind in ("no Work ends before its call", "tensors reused after wait()")
    inner = []
    if late:
        last = cell.root if cell.name in ("broadcast", "scatter") else cell.ranks[-1]
        inner += [f"if rank == {last}:", "    import time; time.sleep(0.5)"]
    if again > 4:
        inner += [
            f"for k in range({again}):",
            "    work, got, should = call(k)",
            "    work.wait()",
            "    assert all(map(torch.equal, got, should)), (rank, k, got, should)",
        ]
    else:
        inner += [
            f"for work, got, should in [call(k) for k in range({again})][::-1]:",
            *(["    work.wait()"] if is_async else []),
            "    for a, b in zip(got, should):",
            "        assert torch.equal(a, b), (rank, (a != b).nonzero()[:3].tolist(), a, b)",
        ]
    if group:
        inner = ["if rank in ranks:", *(f"    {line}" for line in inner)]
    return "\n".join([*lines, *inner]) + "\n"


def _with_a_peer_that_fails(
    name: str, fate: str, victim: int, backend: str, modules: tuple[str, ...]
) -> str:
    cell = DetailedCell(name, name, backend, "cpu", "float32", "SUM", 3, elements=1_000_003)
    call = _call(cell, False, "")
    if call is None:
        return ""
    ending = {
        "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
        "never comes": "time.sleep(30)",
        "dies after": "call(0), os.kill(os.getpid(), signal.SIGKILL)",
    }.get(fate, "os.kill(os.getpid(), signal.SIGKILL)")
    body = [
        "place = dict(init_method=f'file://{file}', rank=rank, world_size=3)",
        f'dist.init_process_group("{backend}", timeout=timedelta(seconds=2), **place)',
        "ranks, root = [0, 1, 2], 0",
        f"x = lambda r, k=0: {_numbers(cell)}",
        *call,
        f"if rank == {victim}:",
        f"    {ending}",
        "time.sleep(1)",
        "call(0)",
        f'print(f"rank {{rank}} returned without an error: rank {victim} {fate} the call")',
    ]
    return (
        "\n".join(
            [
                "# python smallest.py",
                "import os, signal, tempfile, time",
                "from datetime import timedelta",
                *_head(modules),
                "def main(rank, file):",
                *(f"    {line}" for line in body),
                'if __name__ == "__main__":',
                "    file = tempfile.mktemp()",
                '    start = torch.multiprocessing.get_context("spawn").Process',
                "    processes = [start(target=main, args=(rank, file)) for rank in range(3)]",
                "    [process.start() for process in processes]",
                f"    [one.join() for one in processes if one is not processes[{victim}]]",
                f"    processes[{victim}].kill()",
            ]
        )
        + "\n"
    )
