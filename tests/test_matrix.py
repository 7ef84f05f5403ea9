"""The matrix tells the truth: about this torch's gloo, and about calls that lie, hang or crash."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import finished, hear_signals, wait_until
from typer.testing import CliRunner

from collectives.backends import availability as backends
from collectives.cli import app
from collectives.course.console import print_block
from collectives.matrix import grid, recorded, selection
from collectives.matrix import run as matrix
from collectives.matrix.cells import cells
from collectives.matrix.measured import UNAVAILABLE, by_column
from collectives.semantics import probe, values
from collectives.semantics.calls import LESSONS, OPS
from collectives.semantics.check import Mismatch, bits
from collectives.semantics.forms import FORMS, called

SUPPORT = Path(__file__).parent / "support"

# What a planted lie replaces: `real` is the function of that name, `dist` torch.distributed.
LIES = {
    "an AVG that sums": (
        "all_reduce",
        "return real(tensor, op=dist.ReduceOp.SUM, group=options['group'])",
        "wrong",
        "Mismatch: rank 0/2: tensor: got [4.0, 6.0, 4.0, 6.0, 4.0], "
        "should be [2.0, 3.0, 2.0, 3.0, 2.0]",
    ),
    "an all_gather that permutes": (
        "all_gather",
        "real(tensor, *rest, **options)\n"
        "    copies = [x.clone() for x in reversed(tensor)]\n"
        "    for x, copy in zip(tensor, copies): x.copy_(copy)",
        "wrong",
        "Mismatch: rank 0/2: outputs[0]: got [101.0,",
    ),
    "a broadcast that does nothing": (
        "broadcast",
        "return None",
        "wrong",
        "Mismatch: rank 1/2: tensor: got",
    ),
    "a barrier that does nothing": (
        "barrier",
        "return None",
        "wrong",
        "returned: got [0], should be [0, 1]",
    ),
    "a call that writes behind its tensor": (
        "all_reduce",
        "real(tensor, *rest, **options); tensor.as_strided((6,), (1,))[5] = 7",
        "wrong",
        "tensor: the call wrote 4 bytes outside of the tensor, the first at byte 20",
    ),
    "a call that writes before its tensor": (
        "all_reduce",
        "real(tensor, *rest, **options)\n"
        "    tensor.as_strided((1,), (1,), tensor.storage_offset() - 1)[0] = 7",
        "wrong",
        "the first at byte -4",
    ),
    "a call that changes its input": (
        "all_gather",
        "real(tensor, *rest, **options); rest[0].zero_()",
        "wrong",
        "input, an input, changed: got [0.0, 0.0, 0.0, 0.0, 0.0], "
        "should be [1.0, 2.0, 3.0, 4.0, 5.0]",
    ),
    "an async call without a Work": (
        "all_reduce:async",
        "real(tensor, *rest, **options).wait()",
        "wrong",
        "returned no Work",
    ),
    "a refusal on one rank": (
        "all_reduce",
        "if dist.get_rank() == 1: raise TypeError('not this one\\nbecause of me')\n"
        "    return real(tensor, *rest, **options)",
        "refuses",
        "TypeError: not this one",
    ),
    "a call that never returns": (
        "all_reduce",
        "time.sleep(600)",
        "hangs",
        "hung: not every rank had returned after 3 s",
    ),
    "a call that leaves": (
        "all_reduce",
        "os._exit(0)",
        "crashes",
        "it ended its process with exit status 0",
    ),
}


def lie(function: str, body: str) -> str:
    return (
        f"import os, time\nimport torch.distributed as dist\nreal = dist.{function}\n"
        f"def lie(tensor=None, *rest, **options):\n    {body}\ndist.{function} = lie\n"
    )


# The others are like one of these.
_FAST = (
    "an AVG that sums",
    "a refusal on one rank",
    "a call that never returns",
    "a call that leaves",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in _FAST)) for name in LIES]
)
def test_the_matrix_notices(name, tmp_path, monkeypatch):
    form, body, state, detail = LIES[name]
    (tmp_path / "planted.py").write_text(lie(form.partition(":")[0], body))
    monkeypatch.syspath_prepend(str(tmp_path))
    (cell,) = (
        cell
        for cell in cells([("gloo", "cpu")], [2])
        if cell.form == form
        and cell.dtype in ("float32", None)
        and cell.op in ("AVG" if "AVG" in name else "SUM", None)
    )
    answer = matrix.answer(cell, ("planted",), timeout=3.0 if state == "hangs" else 120.0)
    assert answer["state"] == state, answer["detail"]
    assert detail in answer["detail"]
    assert detail or not answer["detail"]
    if state == "crashes":  # the next cell has ranks of its own
        assert matrix.answer(cell, timeout=120.0)["state"] == "works"


def test_a_backend_of_a_third_party_whose_avg_sums_is_caught():
    import lying_backend  # noqa: F401

    answers = {
        (answer["dtype"], answer["op"]): answer["state"]
        for answer in matrix.measure(
            selection.select(["lying"], ["all_reduce"], ["float32", "int64"], ["SUM", "AVG"]),
            ("lying_backend",),
            timeout=30.0,
        )
        if answer["form"] == "all_reduce"
    }
    assert answers[("float32", "SUM")] == answers[("int64", "SUM")] == "works"
    assert answers[("float32", "AVG")] == "wrong"


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
    import refusing_backends  # noqa: F401

    chosen = selection.select(["strict"], ["send", "broadcast"], ["float32", "int64"])
    states = {"send": set(), "broadcast": set()}
    for found in matrix.measure(chosen, ("refusing_backends",), timeout=60.0):
        if found["form"] in states:
            states[found["form"]].add(found["state"])
    assert states == {"send": {"refuses"}, "broadcast": {"works"}}


def command(*words, folder=None):
    return finished(["python", "-m", "collectives", "matrix", *words], 200, cwd=folder)


def test_a_quick_run_gives_the_states_that_are_claimed_and_recorded(tmp_path):
    file = tmp_path / "run.json"
    done = command("--backend", "gloo", "--quick", "--timeout", 60, "--json", file)
    # gloo gives wrong results where a tensor is not contiguous, as claimed.
    assert done.returncode == 0, done.stdout
    assert "all as claimed" in done.stdout
    run = recorded.read(file)
    assert run["torch"] == torch.__version__
    assert {cell["dtype"] for cell in run["cells"]} == {"float32", None}
    assert {cell["op"] for cell in run["cells"]} == {"SUM", None}
    newest = {cell["form"]: cell["called"] for cell in run["cells"]}
    assert newest["reduce_scatter_tensor:async"] == called(FORMS["reduce_scatter_tensor"])
    mine = ".".join(torch.__version__.split(".")[:2])
    if mine in recorded.releases():
        text, status = recorded.report(recorded.named(mine), mine, run, is_selection=True)
        assert (status, "no cell differs" in text) == (0, True), text


@pytest.mark.slow  # as the quick run, at other world sizes
def test_no_probe_fails_by_itself():
    """Every form and variant, in worlds of 1, 2 and 3: a fault of the probe must not be a refusal."""
    alone = selection.select(["gloo"], world_sizes=[1], quick=True)
    three = selection.select(["gloo"], world_sizes=[3], quick=True)
    tried = [*alone, *(cell for cell in three if cell.variant in ("uneven", "subgroup", "root"))]
    tried = [cell for cell in tried if cell.device == "cpu"]
    broken = [
        answer
        for answer in matrix.measure(tried, timeout=60.0)
        if "the probe itself failed" in answer["detail"]
    ]
    assert broken == []


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
        moved = {tuple(bits(values.moved(code, shape, dtype)).tolist()) for code in range(size**2)}
        assert len(moved) == size**2, name
        if dtype is torch.bool or ("float8" in name and (size not in (2, 4) or "e8m0" in name)):
            continue  # a bit, or very few numbers, cannot tell all reductions apart
        ops = [op for op in OPS if values.has_meaning(op, dtype)]
        results = {tuple(bits(values.reduced(op, size, shape, dtype)).tolist()) for op in ops}
        assert len(results) == len(ops), name


@pytest.mark.parametrize("size", [1, 2, 5])
def test_closed_forms_are_what_torch_computes_on_one_process(size):
    for name in ("int8", "int64", "float16", "bfloat16", "float32", "complex64"):
        dtype = values.DTYPES[name]
        terms = torch.stack([values.term(rank, size, (11,), dtype, 3) for rank in range(size)])
        computed = {"SUM": terms.sum(0, dtype=dtype), "PRODUCT": terms.prod(0, dtype=dtype)}
        if not dtype.is_complex:
            computed |= {"MIN": terms.amin(0), "MAX": terms.amax(0)}
        for op, expected in computed.items():
            assert torch.equal(values.reduced(op, size, (11,), dtype, 3), expected), (name, op)


def test_values_are_compared_bit_by_bit():
    two = torch.tensor([2], dtype=torch.uint8).view(torch.bool)
    for got, expected in ((-torch.zeros(1), torch.zeros(1)), (two, torch.tensor([True]))):
        assert torch.equal(got, expected)
        with pytest.raises(Mismatch):
            probe._same(got, expected, "tensor")
    nan = torch.tensor([float("nan")])
    probe._same(nan, nan.clone(), "tensor")


# The command.


BAD = {
    "--backend glo": "did you mean 'gloo'?",
    "--dtype float23": "did you mean 'float32'?",
    "--collective all_reduse": "did you mean 'all_reduce'?",
    "--op SUMM": "did you mean 'SUM'?",
    "--import no_such_module_anywhere": "No module named 'no_such_module_anywhere'",
    "--nproc 0": "use a whole number from 1",
    "--timeout -1": "use seconds, more than 0",
    "--json /no/such/folder/x.json": "No such file or directory",
    "--collective barrier --dtype int8": "no cell matches",
    "--against 1.13": "no matrix of torch 1.13 is recorded: there are 2.13, 2.15.",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_options_are_errors_that_say_what_to_use(words):
    result = CliRunner().invoke(app, ["matrix", *words.split()])
    assert result.exit_code == 2
    assert BAD[words] in result.stderr


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
    (column,) = by_column(recorded.named("2.13")["cells"]).values()
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
