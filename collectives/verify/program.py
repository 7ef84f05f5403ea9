"""The smallest question that is answered wrongly, as a program that runs without this package."""

import re
from typing import Any

import torch

from collectives.semantics import values, wide_values
from collectives.semantics.cell import Cell, DetailedCell
from collectives.verify.at_once import NOT_EARLY
from collectives.verify.failure import FATES
from collectives.verify.question import Question

# For each call: what it needs, the call, what holds its result afterwards, and what that should be.
# `x(r, k)` is what rank r gives; `k` is the number of the call or of the piece, {k} the number in
# loops. `ranks` are the members, `root` is the root. new<> is an output, own<> an input, and both<>
# a tensor that is both.
_Lines = tuple[tuple[str, ...], str, str, str]
_PIECES = "own<x(rank, {5k}r)> for r in ranks"
_TO_ME = "x(r, {5k}rank) for r in ranks"
_CALLS: dict[str, _Lines] = {
    "broadcast": (
        ("t = x(rank{k}) if rank == root else new<x(root{k})>",),
        "broadcast(t, root{})",
        "[t]",
        "[x(root{k})]",
    ),
    "all_reduce": (("t = both<x(rank{k})>",), "all_reduce(t{op}{})", "[t]", "[{sum}]"),
    "reduce": (("t = both<x(rank{k})>",), "reduce(t, root{op}{})", "[t]", "[{sum}]"),
    "all_gather": (
        ("t = [new<x(r{k})> for r in ranks]",),
        "all_gather(t, own<x(rank{k})>{})",
        "t",
        "[x(r{k}) for r in ranks]",
    ),
    "all_gather_single": (
        ("t = new<{cat}([x(r{k}) for r in ranks])>",),
        "all_gather_into_tensor(t, own<x(rank{k})>{})",
        "[t]",
        "[{cat}([x(r{k}) for r in ranks])]",
    ),
    "gather": (
        ("t = [new<x(r{k})> for r in ranks] if rank == root else None",),
        "gather(own<x(rank{k})>, t, root{})",
        "t",
        "[x(r{k}) for r in ranks]",
    ),
    "scatter": (
        (
            "t = new<x(rank{k})>",
            "pieces = [own<x(r{k})> for r in ranks] if rank == root else None",
        ),
        "scatter(t, pieces, root{})",
        "[t]",
        "[x(rank{k})]",
    ),
    "reduce_scatter": (
        ("t = new<x(rank, {5k}rank)>",),
        f"reduce_scatter(t, [{_PIECES}]{{op}}{{}})",
        "[t]",
        "[{sum of pieces}]",
    ),
    "reduce_scatter_single": (
        ("t = new<x(rank, {5k}rank)>",),
        "reduce_scatter_tensor(t, own<{cat}([x(rank, {5k}r) for r in ranks])>{op}{})",
        "[t]",
        "[{sum of pieces}]",
    ),
    "all_to_all": (
        (f"t = [new<{_TO_ME.replace(' for', '> for')}]",),
        f"all_to_all(t, [{_PIECES}]{{}})",
        "t",
        f"[{_TO_ME}]",
    ),
    "all_to_all_single": (
        (f"t = new<{{cat}}([{_TO_ME}])>",),
        "all_to_all_single(t, own<{cat}([x(rank, {5k}r) for r in ranks])>{splits}{})",
        "[t]",
        f"[{{cat}}([{_TO_ME}])]",
    ),
}
_ROOT_ALONE = ("reduce", "gather")  # whose result is that of the root

_REDUCED = {
    "SUM": "sum({})",
    "AVG": "sum({}) / len(ranks)",
    "MIN": "torch.stack([{}]).amin(0)",
    "MAX": "torch.stack([{}]).amax(0)",
    "PRODUCT": "torch.stack([{}]).prod(0)",
    "PREMUL_SUM": "2 * sum({})",
    "BAND": "functools.reduce(torch.bitwise_and, [{}])",
    "BOR": "functools.reduce(torch.bitwise_or, [{}])",
    "BXOR": "functools.reduce(torch.bitwise_xor, [{}])",
}
# Sums of these need no conversion.
_PLAIN = ("float32", "float64", "complex64", "complex128", "int64")

# What makes an odd tensor of a plain one; `so`: whether to do so.
_ODD = {
    "noncontiguous": "t.repeat_interleave(2)[::2]",
    "offset": "torch.cat([t[:1], t])[1:]",
    "lazy": "torch._neg_view(-t) if so else t",
    "lazy complex": "t.conj().resolve_conj().conj() if so else t",
}

_SAME = "torch.testing.assert_close({}, {}, rtol=0, atol=0)"


def of(question: Question, modules: tuple[str, ...]) -> str:
    """The program; empty where there is none for this kind of question."""
    given: Any = question.program
    if not given or isinstance(given, str):
        return given or ""
    if isinstance(given, tuple) and given[0] == "failure":
        _, name, fate, victim, backend = given
        return _with_a_peer_that_fails(name, fate, victim, backend, modules)
    kind, cell = ("", given) if isinstance(given, Cell) else given
    lines = _WHOLE[kind](cell) if kind in _WHOLE else _lines(kind, cell)
    if not lines:
        return ""
    start = [
        f"# torchrun --nproc-per-node {cell.world_size} smallest.py",
        *_imports("\n".join(lines), modules),
        f'dist.init_process_group("{cell.backend}")',
    ]
    return "\n".join([*start, *lines]) + "\n"


def _imports(text: str, modules: tuple[str, ...]) -> list[str]:
    names = [name for name in ("functools", "gc", "os", "time") if f"{name}." in text]
    return [f"import {', '.join([*names, 'torch', *modules])}", "import torch.distributed as dist"]


def _lines(kind: str, cell: Cell) -> list[str]:
    in_group = cell.ranks != tuple(range(cell.world_size))
    begin = [f"rank, ranks, root = dist.get_rank(), {list(cell.ranks)}, {cell.root}"]
    begin += ["group = dist.new_group(ranks)"] if in_group else []
    begin += [f"x = lambda r, k=0: {_numbers(cell)}"]
    if kind.startswith("1,000"):
        begin.append("same = lambda t, name, kept={}: kept.setdefault(name, t).copy_(t)")
    if odd := _ODD.get(
        "lazy complex" if "lazy" in cell.variant and _is_complex(cell) else cell.variant
    ):
        begin.append(f"odd = lambda t, so=True: {odd}")
    group = ", group=group" if in_group else ""
    if cell.name in _MESSAGES:
        lines = _message(cell, group)
    elif cell.name in _CALLS:
        lines = _collective(kind, cell, group)
    elif cell.name == "barrier":
        return _late_barrier(cell)
    else:
        return []
    if getattr(cell, "data", "") == "special":
        lines = [line.replace("atol=0)", "atol=0, equal_nan=True)") for line in lines]
    return [*begin, *(["if rank in ranks:", *_indented(lines)] if in_group else lines)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _is_complex(cell: Cell) -> bool:
    return "complex" in (cell.dtype or "")


def _numbers(cell: Cell) -> str:
    """What rank r gives in its k-th call, as an expression."""
    dtype = values.DTYPES[cell.dtype or "float32"]
    name = f"torch.{cell.dtype or 'float32'}"
    count: int | None = {"empty": 0, "scalar": 1}.get(cell.variant)
    data = "exact"
    if isinstance(cell, DetailedCell):
        count, data = cell.elements, cell.data
    if count is None:
        count = 2 * len(cell.ranks) + 1
    places = f"torch.arange({count:_})"
    if cell.variant == "uneven":
        start = getattr(cell, "elements", None) or 0
        more = "k" if cell.collective == "reduce_scatter" else "r"
        places = f"torch.arange({start + 1:_} + {more})"
        if cell.collective == "all_to_all":
            places = f"torch.arange({_split(cell, 'r', 'k')})"
    if data == "special":
        limits = torch.finfo(dtype)
        odd = "'-inf'" if cell.op in ("MIN", "MAX") else "'nan'"
        some = f"float({odd}), float('inf'), -0.0, {limits.smallest_normal * limits.eps:g}, 1.0"
        return f"torch.tensor([{some}], dtype=torch.float64).roll(r + k).to({name})"
    if dtype.is_complex:
        number = f"{places} % 7 + r + k + 1j * (k + 1)"
    elif data == "wide" and name in ("torch.uint8", "torch.int8"):
        number = f"{places} * 37 + 90 * r + k"
    elif dtype.itemsize == 1:
        most = 3 if "bool" in name or cell.op == "PRODUCT" else 29
        number = f"({places} + r + k) % {most}"
    elif data == "wide":
        bits = wide_values.bits(dtype) - (len(cell.ranks) - 1).bit_length()
        if cell.op == "PRODUCT":
            bits = wide_values.bits(dtype) // len(cell.ranks)
        number = f"{places} % 50 * 2 + 2**{bits - 1} + 2 * r + 4 * k + 1"
    elif cell.op == "PRODUCT":
        number = f"({places} + r + k) % 2 + 1"
    else:
        number = f"{places} * (37 * r + 74) % 97 + r + k + 1"
    if cell.op in ("MIN", "MAX") and dtype.is_signed and not dtype.is_complex:
        # At every second place the numbers of all ranks are negative: see `wide_values`.
        number = f"({number}) * (1 - {places} % 2 * 2)"
    expression = f"({number}).to({name})"
    return f"{expression}[0]" if cell.variant == "scalar" else expression


def _split(cell: Cell, rank: str, other: str) -> str:
    """How many elements one rank has for another: see `Case.lengths`."""
    elements = getattr(cell, "elements", None)
    longer = f"{elements:_} + " if elements else ""
    return f"{longer}2 * (({rank} + {other}) % {len(cell.ranks)})"


def _collective(kind: str, cell: Cell, group: str) -> list[str]:
    setup, call, got, should = _CALLS[cell.name]
    number = {f"{_FOUR} in flight": _FOUR, "1,000 calls of the same tensors": 1000}.get(kind, 0)
    is_async = bool(kind) or cell.variant == "async"
    op = "" if cell.op in (None, "SUM") else f", op=dist.ReduceOp.{cell.op}"
    if cell.op == "PREMUL_SUM":
        op = ", op=dist._make_nccl_premul_sum(2.0)"
    splits = f", [{_split(cell, 'rank', 'r')} for r in ranks]" * 2 * (cell.variant == "uneven")
    words = {
        "{op}": op,
        "{sum}": _sum(cell, "x(r{k}) for r in ranks"),
        "{sum of pieces}": _sum(cell, _TO_ME),
        "{splits}": splits,
        "{cat}": "torch.stack" if cell.variant == "scalar" else "torch.cat",
        "{k}": ", k" if number else "",
        "{5k}": "k + 5 * " if number else "",
        "{}": group + (", async_op=True" if is_async else ""),
    }

    def fill(text: str) -> str:
        for name, word in words.items():
            text = text.replace(name, word)
        return _odd_tensors(text, cell, number > _FOUR)

    setup, call, got, should = (*map(fill, setup),), f"dist.{fill(call)}", fill(got), fill(should)
    if cell.dtype == "bool":  # of which a byte may be 2
        got, should = (f"[one.view(torch.uint8) for one in {some}]" for some in (got, should))
    alone = "if rank == root: " if cell.name in _ROOT_ALONE else ""
    if number:
        calls = f"[call(k) for k in range({number})][::-1]"
        if number > _FOUR:
            calls = f"map(call, range({number}))"
        return [
            "def call(k):",
            *_indented([*setup, f"return {call}, {got}, {should}"]),
            f"for work, got, should in {calls}:",
            "    work.wait()",
            f"    {alone}{_SAME.format('got', 'should')}",
        ]
    check = alone + _SAME.format(got, should)
    if kind == NOT_EARLY:
        late = "root" if cell.name in ("broadcast", "scatter") else "ranks[-1]"
        free = "rank != root" if alone else f"rank == {late}"
        return [
            f"if rank == {late}: time.sleep(0.5)",
            *setup,
            f"work = {call}",
            f'assert {free} or not work.is_completed(), "it is completed before all have come"',
            "work.wait()",
            'assert work.is_completed(), "it is not completed after wait()"',
            check,
        ]
    if kind == "tensors reused after wait()":
        late = "root" if alone else "ranks[-1]"
        return [
            f"if rank == {late}: time.sleep(0.5)",
            *setup,
            f"{call}.wait()",
            check,
            f"for one in {got} or []: one.zero_()",
            "time.sleep(0.5)",
            f'assert not any(map(torch.any, {got} or [])), "written to after wait()"',
        ]
    return [*setup, f"{call}.wait()" if is_async else call, check]


_FOUR = 4


def _sum(cell: Cell, terms: str) -> str:
    name = cell.dtype or "float32"
    if name.startswith(("float8", "bfloat", "float16")) and cell.op not in ("MIN", "MAX"):
        terms = terms.replace(")", ").double()", 1)
    found = _REDUCED[cell.op or "SUM"].replace("{}", terms)
    if cell.op == "AVG" and not values.DTYPES[name].is_floating_point and not _is_complex(cell):
        found = found.replace(" / ", " // ")
    return found if name in _PLAIN else f"({found}).to(torch.{name})"


def _odd_tensors(text: str, cell: Cell, same: bool = False) -> str:
    """Outputs and inputs, as this variant wants them; `same`: those of the call before."""

    def tensor(match: re.Match[str]) -> str:
        what, found = match[1], match[2]
        if what == "new":
            found = f"torch.zeros_like({found})"
        if same:
            piece = "r" if re.search(r"\br\b", found) and " for " not in found else "0"
            return f"same({found}, ({what!r}, {piece}))"
        if cell.variant not in _ODD:
            return found
        some = {"own": ", rank % 2 == 1", "both": ", rank % 2 == 0"}.get(what, "")
        return f"odd({found}{some if cell.variant == 'lazy' else ''})"

    return re.sub(r"(new|own|both)<([^>]*)>", tensor, text)


_MESSAGES = {
    "send": ("send", "irecv"),
    "recv": ("isend", "recv"),
    "isend": ("isend", "recv"),
    "irecv": ("isend", "irecv"),
    "batch_isend_irecv": ("isend", "irecv"),
}


def _message(cell: Cell, group: str) -> list[str]:
    give, take = _MESSAGES[cell.name]
    if cell.name == "batch_isend_irecv":
        at = "ranks[ranks.index(rank) - 1]"
        return [
            f"before, after = {at}, ranks[(ranks.index(rank) + 1) % {len(cell.ranks)}]",
            _odd_tensors("t, own = new<x(rank)>, own<x(rank)>", cell),
            f"send = dist.P2POp(dist.isend, own, after{group})",
            f"works = dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, t, before{group})])",
            "for work in works: work.wait()",
            _SAME.format("t", "x(before)"),
        ]
    first, second = cell.ranks[:2]
    if cell.variant != "tag":
        source = "None" if cell.variant == "any_source" else str(first)
        setup = f"t = own<x({first})> if rank == {first} else new<x({first})>"
        waits = [".wait()" if call[0] == "i" else "" for call in (give, take)]
        came = f"dist.{take}(t, {source}{group}){waits[1]}"
        return [
            _odd_tensors(setup, cell),
            f"if rank == {first}: dist.{give}(t, {second}{group}){waits[0]}",
            f"if rank == {second}: " + (f"assert {came} == {first}" if take == "recv" else came),
            f"if rank == {second}: {_SAME.format('t', f'x({first})')}",
        ]
    return [
        f"t = [x({first}, k) * (rank == {first}) for k in (0, 1)]",
        "works = []",
        f"if rank == {first}: works = [dist.{give}(t[k], {second}{group}, tag=k) for k in (0, 1)]",
        f"if rank == {second}: works = [dist.{take}(t[k], {first}{group}, tag=k) for k in (1, 0)]",
        "for work in works: isinstance(work, dist.Work) and work.wait()",
        f"if rank in ({first}, {second}): {_SAME.format('t', f'[x({first}, k) for k in (0, 1)]')}",
    ]


# Questions about messages and groups are programs already. `size` is the number of ranks.
_BEGIN = "rank, size = dist.get_rank(), dist.get_world_size()"
_X = "x = lambda r, k=0: torch.arange(65_537.0) + 100 * r + 10_000 * k + 1"
_SUM = "sum(x(r{}) for r in range(size))"
_RING = (_BEGIN, _X, "after, before = (rank + 1) % size, (rank - 1) % size")


def _several_messages(cell: Cell) -> list[str]:
    return [
        *_RING,
        "own, t = [[x(rank, k) * y for k in range(4)] for y in (1, 0)]",
        "works = [dist.irecv(t[k], before, tag=k) for k in (3, 2, 1, 0)]",
        "works += [dist.isend(own[k], after, tag=k) for k in range(4)]",
        "for work in works: work.wait()",
        _SAME.format("t", "[x(before, k) for k in range(4)]"),
    ]


def _in_order(cell: Cell) -> list[str]:
    return [
        *_RING,
        "own = [x(rank, k)[:n] for k, n in enumerate((1000, 10, 65_537, 3))]",
        "works = [dist.isend(one, after) for one in own]",
        "for k, one in enumerate(own):",
        "    dist.recv(t := torch.zeros_like(one), before)",
        f"    {_SAME.format('t', 'x(before, k)[: len(t)]')}",
        "for work in works: work.wait()",
    ]


def _message_reused(cell: Cell) -> list[str]:
    return [
        _BEGIN,
        _X,
        "t = x(0) if rank == 0 else torch.zeros_like(x(0))",
        "if rank == 0: dist.isend(t, 1).wait(), t.fill_(-1)",
        "if rank == 1: time.sleep(0.5), dist.recv(t, 0)",
        f"if rank == 1: {_SAME.format('t', 'x(0)')}",
    ]


def _beside_a_message(first: str) -> list[str]:
    send, receive = (
        "if rank == 0: work = dist.isend(x(0, 1), 1, tag=3)",
        "if rank == 1: work = dist.irecv(t, 0, tag=3)",
    )
    earlier, later = (send, receive) if first == "isend" else (receive, send)
    return [
        _BEGIN,
        _X,
        "t, total = torch.zeros_like(x(0)), x(rank)",
        earlier,
        "dist.all_reduce(total)",
        later,
        "if rank < 2: work.wait()",
        _SAME.format("total", _SUM.format("")),
        f"if rank == 1: {_SAME.format('t', 'x(0, 1)')}",
    ]


def _opposite_order(cell: Cell) -> list[str]:
    return [
        _BEGIN,
        _X,
        "groups, t = [dist.new_group() for _ in range(2)], [x(rank, k) for k in range(2)]",
        "order = (0, 1) if rank % 2 == 0 else (1, 0)",
        "works = [dist.all_reduce(t[k], group=groups[k], async_op=True) for k in order]",
        "for work in works: work.wait()",
        _SAME.format("t", f"[{_SUM.format(', k')} for k in range(2)]"),
    ]


def _many_groups(cell: Cell) -> list[str]:
    return [
        _BEGIN,
        _X,
        "for number in range(50):",
        "    group, t = dist.new_group(), x(rank)",
        "    dist.all_reduce(t, group=group)",
        f"    {_SAME.format('t', _SUM.format(''))}",
        "    dist.destroy_process_group(group), gc.collect()",
        "    print(number, len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))",
    ]


def _again(cell: Cell) -> list[str]:
    return [
        "store = dist.PrefixStore('again', dist.distributed_c10d._get_default_store())",
        _BEGIN,
        _X,
        "dist.destroy_process_group()",
        f'dist.init_process_group("{cell.backend}", store=store, rank=rank, world_size=size)',
        "t = x(rank)",
        "dist.all_reduce(t)",
        _SAME.format("t", _SUM.format("")),
    ]


def _group(cell: Cell) -> list[str]:
    return [
        f"rank, ranks = int(os.environ['RANK']), {list(cell.ranks)}",
        "group = dist.new_group(ranks) if len(ranks) < dist.get_world_size() else dist.group.WORLD",
        "if rank in ranks:",
        "    got = group.rank(), group.size(), group.group_name",
        "    should = ranks.index(rank), len(ranks), dist.distributed_c10d._world.pg_names[group]",
        "    assert got == should, (got, should)",
    ]


def _late_barrier(cell: Cell) -> list[str]:
    late = max(getattr(cell, "chosen_root", -1), 0)
    return [
        "begin = time.time()",
        f"if dist.get_rank() == {late}: time.sleep(0.5)",
        "dist.barrier()",
        'assert time.time() - begin > 0.4, f"rank {dist.get_rank()} has not waited"',
    ]


def _rounded(cell: Cell) -> list[str]:
    dtype = f"torch.{cell.dtype}"
    size = cell.world_size
    factor = f" * torch.finfo({dtype}).max / {2 * size}" if cell.variant == "limit" else ""
    output, call, part = {
        "all_reduce": ("x[rank].clone()", "all_reduce(t)", ""),
        "reduce": ("x[rank].clone()", "reduce(t, 0)", ""),
        "reduce_scatter": (
            "x[0].chunk(size)[0].clone()",
            "reduce_scatter(t, [*x[rank].chunk(size)])",
            ".chunk(size)[rank]",
        ),
        "reduce_scatter_single": (
            "x[0].chunk(size)[0].clone()",
            "reduce_scatter_tensor(t, x[rank])",
            ".chunk(size)[rank]",
        ),
    }[cell.name]
    alone = "rank > 0 or " if cell.name == "reduce" else ""
    return [
        _BEGIN,
        "seed = torch.Generator().manual_seed(7)",
        "numbers = torch.rand(size, 4096, generator=seed, dtype=torch.float64) * 2 - 1",
        f"x = (numbers{factor}).to({dtype})",
        f"t = {output}",
        f"dist.{call}",
        f"off = (t.double() - x.double().sum(0){part}).abs()",
        f"bound = (size - 1) * torch.finfo({dtype}).eps * x.double().abs().sum(0){part}",
        f"assert {alone}(off <= bound).all(), (off / bound).max()",
    ]


def _nan(cell: Cell) -> list[str]:
    return [
        _BEGIN,
        f"t = torch.ones(2, dtype=torch.{cell.dtype})",
        "if rank == 0: t[0] = float('nan')",
        "if rank == size - 1: t[1] = float('nan')",
        f"dist.all_reduce(t, dist.ReduceOp.{cell.op})",
        "print(f'rank {rank}: {t.tolist()}')  # all ranks should print the same",
    ]


_WHOLE = {
    f"{_FOUR} messages in flight": _several_messages,
    "other messages than those that are waited for first": _in_order,
    "a tensor reused after wait()": _message_reused,
    "all_reduce after isend": lambda _: _beside_a_message("isend"),
    "all_reduce after irecv": lambda _: _beside_a_message("irecv"),
    "two groups in opposite order": _opposite_order,
    "50 made and destroyed": _many_groups,
    "another group works afterwards": _again,
    "group": _group,
    "barrier": _late_barrier,
    "rounded": _rounded,
    "nan": _nan,
}


def _with_a_peer_that_fails(
    name: str, fate: str, victim: int, backend: str, modules: tuple[str, ...]
) -> str:
    """Its processes are forked: torchrun would end all of them with the first one."""
    cell = DetailedCell(name, name, backend, "cpu", "float32", "SUM", 3, elements=1_000_003)
    if name == "barrier":
        calls = ["dist.barrier()"]
    elif name == "recv":
        calls = ["t = x(2)", "dist.recv(t, 2) if rank < 2 else [dist.send(t, r) for r in (0, 1)]"]
    else:
        *calls, _ = _collective("", cell, "")
    die, own = "os.kill(os.getpid(), signal.SIGKILL)", f"if rank == {victim}: "
    late = 0 if victim else 1
    before, after = {
        "dies before": ([own + die], []),
        "dies in": (
            [
                f"{own}threading.Timer(1, lambda: {die}).start()",
                f"if rank == {late}: time.sleep(2)",
            ],
            [],
        ),
        "dies after": ([], [own + die]),
        "stops": ([own + die.replace("KILL", "STOP")], []),
        "never comes": ([own + "time.sleep(20), os._exit(0)"], []),
    }[fate]
    survivor, last = [rank for rank in range(3) if rank != victim]
    lines = [
        "# python smallest.py",
        f"import os, signal, tempfile, {'threading, ' if fate == 'dies in' else ''}time",
        "from datetime import timedelta",
        *_imports("", modules),
        "file, child = tempfile.mktemp(), os.fork()",
        f"rank = {victim} if not child else {survivor} if not os.fork() else {last}",
        f'dist.init_process_group("{backend}", f"file://{{file}}", timedelta(seconds=2), 3, rank)',
        "ranks, root = [0, 1, 2], 0",
        f"x = lambda r, k=0: {_numbers(cell)}",
        *before,
        *(["time.sleep(1)"] if fate != "dies in" else []),
        *calls,
        *after,
        f'print(f"rank {{rank}} returned without an error: {FATES[fate].format(victim=victim)}")',
        *([f"if rank == {last}: os.kill(child, signal.SIGKILL)"] if fate == "stops" else []),
    ]
    return "\n".join(lines) + "\n"
