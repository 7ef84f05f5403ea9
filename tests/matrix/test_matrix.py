"""The matrix tells the truth: about this torch's gloo, and about calls that lie, hang or crash."""

import functools
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from probed import probed
from processes import finished, hear_signals, wait_until
from repository import SUPPORT
from typer.testing import CliRunner

from collectives import launch
from collectives.backends import availability as backends
from collectives.backends import claims
from collectives.cli import app
from collectives.course.rich_console import print_block
from collectives.matrix import grid, recorded, selection
from collectives.matrix import run as matrix
from collectives.matrix.measured import UNAVAILABLE, by_column
from collectives.matrix.selection import cells
from collectives.semantics import probe, values
from collectives.semantics.calls import LESSONS, OPS
from collectives.semantics.cell import Cell
from collectives.semantics.check import Mismatch, bits
from collectives.semantics.form import Case
from collectives.semantics.forms import FORMS, called

# What a planted lie replaces: `real` is the function of that name, `dist` torch.distributed. And
# what is said of it, which is "wrong" unless the name stands among OTHER_STATES.
LIES = {
    "an AVG that sums": (
        "all_reduce",
        "return real(tensor, op=dist.ReduceOp.SUM, group=options['group'])",
        "rank 0/2: tensor: got [4.0, 6.0, 4.0, -6.0, 4.0], should be [2.0, 3.0, 2.0, -3.0, 2.0]",
    ),
    "a BAND of floats that sums": (
        "all_reduce",
        "return real(tensor, group=options['group'])",
        "BAND has no meaning for float32, and was not refused",
    ),
    "a broadcast that does nothing": ("broadcast", "return None", "rank 1/2: tensor: got"),
    # on the rank that came first
    "a barrier that does nothing": ("barrier", "return None", ", should be [0, 1]"),
    "a call that writes behind its tensor": (
        "all_reduce",
        "real(tensor, *rest, **options); tensor.as_strided((6,), (1,))[5] = 7",
        "tensor: the call wrote 4 bytes outside of the tensor, the first at byte 20",
    ),
    "a call that writes before its tensor": (
        "all_reduce",
        "real(tensor, *rest, **options)\n"
        "    tensor.as_strided((1,), (1,), tensor.storage_offset() - 1)[0] = 7",
        "the first at byte -4",
    ),
    "a call that changes its input": (
        "all_gather",
        "real(tensor, *rest, **options); rest[0].zero_()",
        "an input, changed: got [0.0, 0.0, 0.0, 0.0, 0.0], should be [1.0, 2.0, 3.0, 4.0, 5.0]",
    ),
    "an async call without a Work": (
        "all_reduce:async",
        "real(tensor, *rest, **options).wait()",
        "returned no Work",
    ),
    "a refusal on one rank": (
        "all_reduce",
        "if dist.get_rank() == 1: raise TypeError('not this one\\nbecause of me')\n"
        "    return real(tensor, *rest, **options)",
        "TypeError: not this one",
    ),
    "a call that never returns": (
        "all_reduce",
        "time.sleep(600)",
        "hung: not every rank had returned after 3 s, at planted.py, line 5",
    ),
    "a call that leaves": ("all_reduce", "os._exit(0)", "ended its process with exit status 0"),
}
OTHER_STATES = {
    "a refusal on one rank": "refuses",
    "a call that never returns": "hangs",
    "a call that leaves": "crashes",
}


def lie(function: str, body: str) -> str:
    return (
        f"import os, time\nimport torch.distributed as dist\nreal = dist.{function}\n"
        f"def lie(tensor=None, *rest, **options):\n    {body}\ndist.{function} = lie\n"
    )


def lying_cell(name):
    dtypes = "float32", None
    ops = next((op for op in OPS if op in name), "SUM"), None
    found = [cell for cell in cells([("gloo", "cpu")], [2]) if cell.form == LIES[name][0]]
    return next(cell for cell in found if cell.dtype in dtypes and cell.op in ops)


WRONG = [name for name in LIES if name not in OTHER_STATES]


def told(rank, world_size, device):
    """What the probe says of each lie that gives something wrong, in one world."""
    found = []
    for name in WRONG:
        call = LIES[name][0].partition(":")[0]
        real = getattr(dist, call)
        exec(lie(call, LIES[name][1]), {})
        found.append(probe.probe(rank, world_size, device, lying_cell(name), None))
        setattr(dist, call, real)
    return found


def test_the_probe_says_what_is_wrong_after_a_lie():
    for name, *texts in zip(WRONG, *launch(told, 2, backend="gloo", timeout=60), strict=True):
        assert any(LIES[name][2] in (text or "") for text in texts), (name, texts)


@pytest.mark.parametrize("name", [WRONG[0], *OTHER_STATES])
def test_the_matrix_notices(name, tmp_path, monkeypatch):
    form, body, detail = LIES[name]
    state = OTHER_STATES.get(name, "wrong")
    (tmp_path / "planted.py").write_text(lie(form, body))
    monkeypatch.syspath_prepend(str(tmp_path))
    limit = 3.0 if state == "hangs" else 120.0
    with monkeypatch.context() as patch:
        patch.setattr(backends, "imported", ["planted"])  # in the ranks alone
        (answer,) = matrix.measure([lying_cell(name)], timeout=limit)
    assert answer.state == state, answer.detail
    assert detail in answer.detail
    if state == "crashes":  # the next cell has ranks of its own
        (answer,) = matrix.measure([lying_cell(name)], timeout=120.0)
        assert answer.state == "works", answer.detail


@pytest.mark.slow
def test_where_no_world_starts_the_reason_is_printed_once_and_nothing_is_measured(tmp_path):
    file = tmp_path / "x.json"
    words = ["--backend", "broken", "--import", "refusing_backends", "--quick", "--timeout", 60]
    done = command(*words, "--json", file, folder=SUPPORT)
    assert done.returncode == 3, done.stderr
    why = "AttributeError: module 'torch.distributed' has no attribute 'no_such_transport'"
    assert (done.stdout + done.stderr).count(why) == 1
    assert f"broken/cpu: unavailable here: no world of 2 ranks starts: {why}" in done.stdout
    tried = json.loads(file.read_text())["cells"]
    assert len(tried) > 100
    assert {(cell["state"], cell["seconds"]) for cell in tried} == {(UNAVAILABLE, 0.0)}


def test_a_backend_that_refuses_its_first_calls_is_measured_to_the_end(monkeypatch):
    monkeypatch.setattr(backends, "imported", [])
    backends.import_modules(["refusing_backends"])
    chosen = selection.select(["strict"], ["send", "broadcast"], ["float32", "int64"])
    states = {"send": set(), "broadcast": set()}
    for found in matrix.measure(chosen, timeout=60.0):
        if found.form in states:
            states[found.form].add(found.state)
    assert states == {"send": {"refuses"}, "broadcast": {"works"}}


def test_a_bug_in_a_method_of_the_backend_is_no_refusal_and_names_its_line(monkeypatch):
    monkeypatch.setattr(backends, "imported", [])
    backends.import_modules(["refusing_backends"])
    names = ["all_reduce", "broadcast", "reduce"]
    cells = selection.select(["unfinished"], names, ["float32"])
    plain = [cell for cell in cells if cell.form in names and cell.op in (None, "SUM")]
    found = {one.form: one for one in matrix.measure(plain, timeout=60.0)}
    assert {name: one.state for name, one in found.items()} == {
        "all_reduce": "crashes",
        "broadcast": "refuses",  # the method does not take what torch passes
        "reduce": "refuses",  # it says so itself
    }
    why, place = found["all_reduce"].detail.split(" (")
    assert (
        why == "TypeError: Unfinished._summed() missing 1 required positional argument: 'options'"
    )
    assert re.fullmatch(r"refusing_backends\.py, line \d+\)", place)
    assert found["broadcast"].detail.startswith("TypeError: Unfinished.broadcast() takes 2")
    assert found["reduce"].detail == "TypeError: unfinished does not reduce"


def command(*words, folder=None):
    return finished(["python", "-m", "collectives", "matrix", *words], 200, cwd=folder)


def test_a_quick_run_gives_the_states_that_are_claimed_and_recorded(tmp_path, capfd):
    file = tmp_path / "run.json"
    words = "matrix --backend gloo --quick --timeout 60 --collective reduce_scatter --collective new_group"
    done = CliRunner().invoke(app, [*words.split(), "--json", str(file)])
    # gloo gives wrong results where a tensor is not contiguous, as claimed.
    assert done.exit_code == 0, done.stdout
    assert "all as claimed" in done.stdout
    assert "Warning" not in capfd.readouterr().err  # nobody reads what the ranks print
    run = recorded.read(file)
    assert run.torch == torch.__version__
    assert {cell.dtype for cell in run.cells} == {"float32", None}
    assert {cell.op for cell in run.cells} == {"SUM", None}
    newest = {cell.form: cell.called for cell in run.cells}
    assert newest["reduce_scatter_single:async"] == called(FORMS["reduce_scatter_single"])
    mine = ".".join(torch.__version__.split(".")[:2])
    if mine in recorded.releases():
        text, status = recorded.report(recorded.named(mine), mine, run, is_selection=True)
        assert (status, "no cell differs" in text) == (0, True), text


def states_of_gloo(**selected):
    """What is claimed of each cell of gloo on the CPU."""
    found = {}
    for cell in selection.select(["gloo"], device=["cpu"], **selected):
        claim = claims.expected(cell, torch.__version__, claims.table())
        found[cell] = claim.state if claim else "works"
    return found


def test_gloo_refuses_what_is_claimed():
    states = {
        cell: state
        for cell, state in states_of_gloo(quick=True).items()
        if state not in ("works", "wrong")
    }
    assert set(states.values()) == {"refuses", "crashes"}
    for found in matrix.measure(list(states), timeout=60.0):
        assert found.state == states[found.cell], found


def test_gloo_does_with_every_form_dtype_and_reduction_what_is_claimed():
    """Except what some ranks refuse. A subgroup of 3 has a root that is not its first rank."""
    states = states_of_gloo(world_sizes=[4])
    chosen = [cell for cell, state in states.items() if state in ("works", "wrong")]
    here = {name for name, form in FORMS.items() if called(form)}
    refused = {"split_group", "_coalescing_manager"}
    if torch.__version__ >= "2.14":  # which brought gather_single: gloo has no such call
        refused.add("gather_single")
    if claims.holds("<=2.11", torch.__version__):
        refused.add("all_to_all")
    assert here - {cell.name for cell in chosen} == refused
    found = launch(probed, 4, args=(chosen,), backend="gloo", timeout=100)
    for cell, *ranks in zip(chosen, *found, strict=True):
        assert max(ranks)[0] == states[cell], (cell, ranks)  # "wrong" comes after "works"


def test_the_table_covers_the_lessons_and_a_thousand_cells():
    assert {form.collective for form in FORMS.values()} == set(LESSONS)
    found = list(cells([("gloo", "cpu")], [2]))
    assert len(found) == len(set(found)) >= 1000
    variants = {"", *(variant for form in FORMS.values() for variant in form.variants)}
    assert {cell.variant for cell in found} == variants
    assert {cell.dtype for cell in found} == {None, *values.DTYPES}
    assert {cell.op for cell in found} == {None, *OPS}


# Values.


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_reduction_has_another_result_and_every_rank_other_data(size):
    shape = (2 * size + 1,)
    for name, dtype in values.DTYPES.items():
        moved = [values.moved(code, shape, dtype) for code in range(size**2)]
        assert len({tuple(bits(data).tolist()) for data in moved}) == size**2, name
        if dtype is torch.bool:
            continue  # a bit cannot tell all places, or all reductions, apart
        for data in moved:
            places = data.tolist() if dtype.itemsize > 1 else bits(data).tolist()
            assert len(set(places)) == len(places)
        if "float8" in name and (size not in (2, 4) or "e8m0" in name):
            continue  # nor can very few numbers
        ops = [op for op in OPS if values.has_meaning(op, dtype)]
        results = {tuple(bits(values.reduced(op, size, shape, dtype)).tolist()) for op in ops}
        assert len(results) == len(ops), name


@pytest.mark.parametrize("size", [1, 2, 4, 5, 8])
def test_closed_forms_are_what_torch_computes_exactly_on_one_process(size):
    for name, dtype in values.DTYPES.items():
        if "float8" in name and (size not in (2, 4) or "e8m0" in name):
            continue
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        wide = torch.complex128 if dtype.is_complex else wide
        terms = [values.term(rank, size, (14,), dtype)[3:] for rank in range(size)]
        for rank, term in enumerate(terms):
            assert torch.equal(bits(values.term(rank, size, (11,), dtype, 3)), bits(term))
        stack = torch.stack([term.to(wide) for term in terms])
        total = stack.sum(0)
        computed = {"SUM": total, "PREMUL_SUM": 2 * total, "PRODUCT": stack.prod(0)}
        computed["AVG"] = total // size if wide is torch.int64 else total / size
        if not dtype.is_complex:
            computed |= {"MIN": stack.amin(0), "MAX": stack.amax(0)}
        if wide is torch.int64:
            for op in ("and", "or", "xor"):
                of_bits = getattr(torch, f"bitwise_{op}")
                computed[f"B{op.upper()}"] = functools.reduce(of_bits, stack)
        assert set(computed) == {op for op in OPS if values.has_meaning(op, dtype)}
        for op, expected in computed.items():
            got = values.reduced(op, size, (11,), dtype, 3)
            assert torch.equal(bits(got), bits(expected.to(dtype))), (name, op)
            assert wide is torch.int64 or torch.equal(got.to(wide), expected), (name, op)


def test_at_each_place_another_rank_has_as_much_more_as_there_are_ranks():
    """So a sum is a multiple of their number. At every fifth place integers are 1, 2 and `size`, and
    the numbers before them are negative.
    """

    def terms(size, length, dtype):
        found = [values.term(rank, size, (length,), dtype) for rank in range(size)]
        return [one.to(torch.float64 if dtype.itemsize == 1 else dtype).tolist() for one in found]

    assert terms(2, 5, torch.float32) == [[3, 2, 3, -2, 3], [1, 4, 1, -4, 1]]
    assert terms(2, 3, torch.complex64) == [[3 + 2j, 2 + 3j, 3 - 2j], [1 + 4j, 4 + 1j, 1 - 4j]]
    assert terms(3, 5, torch.int64) == [[4, 2, 1, -5, 3], [1, 5, 1, -2, 1], [1, 2, 4, -2, 2]]
    assert terms(3, 4, torch.float8_e5m2) == [[4, 1, 1, -4], [1, 4, 1, -1], [1, 1, 4, -1]]
    assert terms(2, 5, torch.bool) == [[1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]


def test_a_subgroup_leaves_out_the_first_rank_and_has_another_root():
    for variant, size, ranks, root in [
        ("", 3, (0, 1, 2), 0),
        ("root2", 3, (0, 1, 2), 2),
        ("subgroup", 2, (0, 1), 0),
        ("subgroup", 3, (1, 2), 1),
        ("subgroup", 4, (1, 2, 3), 2),
    ]:
        cell = Cell("reduce", f"reduce:{variant}", "gloo", "cpu", "float32", "SUM", size)
        assert (cell.name, cell.ranks, cell.root) == ("reduce", ranks, root)
        assert cell.variant == variant.rstrip("2")


def test_buffers_have_lengths_that_tell_ranks_apart():
    def case(variant):
        return Case(0, (0, 1, 2), 0, None, None, torch.int64, None, variant)

    shapes = [case(variant).shape for variant in ("", "scalar", "empty")]
    assert shapes == [(7,), (), (0,)]
    assert (case("").lengths(), case("uneven").lengths()) == ([7, 7, 7], [1, 2, 3])
    assert case("uneven").lengths(2) == [4, 0, 2]
    pairs = [case("").pair(source, target) for source in range(3) for target in range(3)]
    assert len({tuple(data.tolist()) for data in pairs}) == 9


def test_values_are_compared_bit_by_bit():
    two, one = torch.tensor([2], dtype=torch.uint8).view(torch.bool), torch.tensor([True])
    for got, expected, words in [
        (-torch.zeros(1), torch.zeros(1), "x: got [-0.0], should be [0.0]"),
        (two, one, "x: got the bytes [2], should be the bytes [1]"),
        (one, torch.ones(1), "x: got bool[1], should be float32[1]"),
        ([one, two], [one, one], "x[1]: got the bytes [2]"),
        ([1], [1, 2], "x: got [1], should be [1, 2]"),
        ("ab", ["a", "b"], "x: got 'ab', should be ['a', 'b']"),
        (1, True, "x: got 1, should be True"),
        (None, one, "x: got None, should be tensor([True])"),
        (list(range(1000)), None, " 24,..., should be None"),
    ]:
        with pytest.raises(Mismatch, match=re.escape(words)):
            probe._same(got, expected, "x")
    nan = torch.tensor([float("nan")])
    probe._same((nan, 1), [nan.clone(), 1], "x")


def test_an_error_is_its_type_and_its_first_line_in_letters_that_can_be_printed():
    assert probe.first_line(ValueError("op \x04\nmore")) == "ValueError: op \\x04"
    assert probe.first_line(ValueError()) == "ValueError"


# The command.


BAD = {
    "--backend glo": "did you mean 'gloo'?",
    "--dtype float23": "did you mean 'float32'?",
    "--collective all_reduse": "did you mean 'all_reduce'?",
    "--op SUMM": "did you mean 'SUM'?",
    "--import no_such_module_anywhere": "there is no such module",
    "--nproc 0": "use a whole number from 1",
    "--timeout -1": "use seconds, more than 0",
    "--json /no/such/folder/x.json": "No such file or directory",
    "--collective barrier --dtype int8": "no cell matches",
    "--against 1.13": "no matrix of torch 1.13 is recorded: there are 2.9, 2.11, 2.13, 2.14, 2.15.",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_options_are_errors_that_say_what_to_use(words):
    result = CliRunner().invoke(app, ["matrix", *words.split()])
    assert result.exit_code == 2
    assert BAD[words] in result.stderr


@pytest.mark.parametrize("name", ["nccl2", "nccl-legacy", "nccl-lazy"])
def test_another_engine_over_nccl_has_a_name_and_a_reason_why_it_is_not_here(name):
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    here = torch.__version__ > "2.14"
    why = "nccl needs one GPU per rank" if here else f"has no {name}, which came with torch 2.14"
    assert why in backends.unavailable(name, "cuda", 2)
    assert backends.devices_of(name) == ("cuda",)
    assert name in backends.known_backends()
    assert name not in backends.BACKENDS  # `collectives matrix` tries it only if it is named


def test_what_is_not_here_is_said_to_be_unavailable_and_exits_with_3(tmp_path, monkeypatch):
    if not backends.unavailable("nccl", "cuda", 2):
        pytest.skip("this machine has NCCL and GPUs: nothing is unavailable")
    result = CliRunner().invoke(
        app, ["matrix", "--backend", "nccl", "--quick", "--json", str(tmp_path / "x.json")]
    )
    assert result.exit_code == 3
    assert "nccl/cuda: unavailable here: nccl needs one GPU per rank: 0 visible" in result.stdout
    assert {cell["state"] for cell in json.loads((tmp_path / "x.json").read_text())["cells"]} == {
        "unavailable"
    }


def test_the_grid_fits_into_a_pipe(capsys):
    column, *_ = by_column(recorded.named("2.13").cells).values()
    for table in (grid.by_dtype(column), grid.by_variant(column)):
        print_block(table)
    tables = capsys.readouterr().out
    assert max(map(len, tables.splitlines())) <= 120
    row = next(line.split() for line in tables.splitlines() if line.startswith("send "))
    assert row[1:] == ["+"] * len(values.DTYPES)
    assert "\x1b" not in tables


SLOWING = """
import os, time
import torch.distributed as dist
real = dist.all_reduce
def slowing(*arguments, **options):
    with open("calls", "a") as file:
        file.write("x")
        called = file.tell()
    if called > 12:
        time.sleep(600)
    return real(*arguments, **options)
dist.all_reduce = slowing
dist.Backend.register_backend("slow", None, devices=["cpu"])
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path):
    (tmp_path / "slowing.py").write_text(SLOWING)
    words = "--backend gloo --collective all_reduce --import slowing --timeout 100 --json x.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "collectives", "matrix", *words.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    calls = tmp_path / "calls"
    wait_until(lambda: calls.exists() and calls.stat().st_size > 12)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everyone
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted: " in errors
    kept = json.loads((tmp_path / "x.json").read_text())["cells"]
    assert 3 <= len(kept) < 200
    assert {cell["form"] for cell in kept} == {"all_reduce"}
    assert "gloo/cpu, 2 ranks" in output


ILL = """
import os, time
import torch.distributed as dist

def reduce_scatter(*arguments, real=dist.reduce_scatter, **options):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    return real(*arguments, **options)

def reduce(*arguments, **options):
    if dist.get_rank() == 0:
        raise ValueError("no")
    time.sleep(600)

dist.reduce_scatter, dist.reduce = reduce_scatter, reduce
dist.Backend.register_backend("ill", None, devices=["cpu"])
"""


@pytest.mark.slow  # as without torchrun
def test_under_torchrun_cells_are_judged_in_torchruns_world_and_a_rank_that_fails_holds_up_no_other(
    tmp_path,
):
    (tmp_path / "ill.py").write_text(ILL)
    file = tmp_path / "x.json"
    words = "--backend lying --backend broken --backend gloo --device cpu --dtype float32"
    words += " --import lying_backend --import refusing_backends --import ill --timeout 60"
    words += " --collective all_reduce --collective reduce_scatter --collective reduce"
    start = f"torchrun --nproc-per-node 2 -m collectives matrix {words} --op SUM --op AVG"
    path = os.pathsep.join(map(str, [SUPPORT, tmp_path]))
    done = finished(f"{start} --json {file}", 200, {"PYTHONPATH": path})
    assert done.returncode == 1
    found = json.loads(file.read_text())["cells"]
    plain = {
        (cell["backend"], cell["form"], cell["op"]): (cell["state"], cell["detail"])
        for cell in found
    }
    assert plain["lying", "all_reduce", "SUM"] == ("works", ""), done.stderr
    assert plain["lying", "all_reduce", "AVG"][0] == "wrong"
    assert plain["gloo", "reduce_scatter", "SUM"][0] == "crashes"
    assert "SIGKILL" in plain["gloo", "reduce_scatter", "SUM"][1]
    assert plain["gloo", "reduce", "SUM"] == ("refuses", "ValueError: no")
    assert plain["gloo", "all_reduce", "SUM"] == ("works", "")
    assert {cell["state"] for cell in found if cell["backend"] == "broken"} == {UNAVAILABLE}
    assert done.stdout.count("no world of 2 ranks starts: AttributeError") == 1, done.stderr
    assert done.stdout.count("\nlying/cpu, 2 ranks\n") == 2, "one process prints: two tables"
