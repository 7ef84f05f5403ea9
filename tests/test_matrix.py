"""The matrix tells the truth: about this torch's gloo, and about calls that lie, hang or crash."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import hear_signals
from typer.testing import CliRunner

from collectives.backends import availability as backends
from collectives.backends.claims import STATES
from collectives.cli import app
from collectives.matrix import compare_command, history, recorded, selection
from collectives.matrix import run as matrix
from collectives.matrix.cells import cells
from collectives.matrix.measured import UNAVAILABLE
from collectives.spec import probe, values
from collectives.spec.calls import LESSONS, OPS
from collectives.spec.check import Mismatch
from collectives.spec.forms import FORMS, called

SUPPORT = Path(__file__).parent / "support"

# What a planted lie replaces: `real` is the function of that name, `dist` torch.distributed.
LIES = {
    "an AVG that sums": (
        "all_reduce:AVG",
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
    "a call that kills its process": (
        "all_reduce",
        "os.kill(os.getpid(), 9)",
        "crashes",
        "it was killed by SIGKILL (signal 9)",
    ),
    "a call that leaves": (
        "all_reduce",
        "os._exit(0)",
        "crashes",
        "it ended its process with exit status 0",
    ),
    "a call that prints megabytes": (
        "all_reduce",
        "os.write(1, b'x' * 2**23); print('y' * 2**23, flush=True)\n"
        "    return real(tensor, *rest, **options)",
        "works",
        "",
    ),
}


def module(folder, monkeypatch, name: str, code: str) -> str:
    """A module that ranks can import from `folder`."""
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    return name


def lie(function: str, body: str) -> str:
    return (
        f"import os, time\nimport torch.distributed as dist\nreal = dist.{function}\n"
        f"def lie(tensor=None, *rest, **options):\n    {body}\ndist.{function} = lie\n"
    )


def chosen(form: str, dtype="float32", op=None, backend="gloo", world_size=2):
    found = [
        cell
        for cell in cells([(backend, "cpu")], [world_size])
        if cell.form == form and cell.dtype in (dtype, None) and cell.op in (op, None)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", LIES, ids=[name.replace(" ", "_") for name in LIES])
def test_the_matrix_notices(name, tmp_path, monkeypatch):
    what, body, state, detail = LIES[name]
    form, op = (what.removesuffix(":AVG"), "AVG") if what.endswith(":AVG") else (what, "SUM")
    planted = module(tmp_path, monkeypatch, "planted", lie(form.partition(":")[0], body))
    answer = matrix.answer(
        chosen(form, op=op), (planted,), timeout=3.0 if state == "hangs" else 30.0
    )
    assert answer["state"] == state, answer["detail"]
    assert detail in answer["detail"]
    assert detail or not answer["detail"]


def test_a_lie_in_one_cell_does_not_change_the_next(tmp_path, monkeypatch):
    planted = module(
        tmp_path, monkeypatch, "planted_once", lie("all_reduce", "os.kill(os.getpid(), 9)")
    )
    cell = chosen("all_reduce", op="SUM")
    assert matrix.answer(cell, (planted,), timeout=30.0)["state"] == "crashes"
    assert matrix.answer(cell, timeout=30.0)["state"] == "works"


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


def command(*words, folder=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "collectives", "matrix", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        **options,
    )


def quick_run(file):
    done = command("--backend", "gloo", "--quick", "--timeout", 60, "--json", file)
    # gloo gives wrong results where a tensor is not contiguous, as claimed.
    assert done.returncode == 0, done.stdout
    assert "all as claimed" in done.stdout
    return file


def test_a_quick_run_gives_the_same_states_as_the_recorded_one_and_the_json_has_the_agreed_fields(
    tmp_path,
):
    file = quick_run(tmp_path / "run.json")
    run = json.loads(file.read_text())
    assert set(run) == {"torch", "nccl", "cuda", "mpi", "platform", "format", "cells"}
    assert run["format"] == 1
    assert run["torch"] == torch.__version__
    keys = ("collective", "form", "backend", "device", "dtype", "op", "world_size")
    assert len({tuple(cell[key] for key in keys) for cell in run["cells"]}) == len(run["cells"]), (
        "keys are unique"
    )
    for cell in run["cells"]:
        assert set(cell) == {*keys, "called", "state", "detail", "seconds"}
        assert cell["state"] in (*STATES, UNAVAILABLE)
        assert (cell["state"] == "works") == (cell["detail"] == "")
        assert cell["collective"] in LESSONS
        assert cell["dtype"] in ("float32", None)
        assert cell["op"] in ("SUM", None)
        assert cell["seconds"] >= 0
    newest = {cell["form"]: cell["called"] for cell in run["cells"]}
    assert newest["reduce_scatter_tensor:async"] == called(FORMS["reduce_scatter_tensor"])
    mine = history.release(torch.__version__)
    if mine not in [history.release(found["torch"]) for found in history.matrices()]:
        mine = str(quick_run(tmp_path / "again.json"))
    text, status = compare_command.against(recorded.read(file), mine, selected=True)
    assert (status, "no cell differs" in text) == (0, True), text


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
    everything = {
        "uneven",
        "noncontiguous",
        "empty",
        "scalar",
        "async",
        "subgroup",
        "any_source",
        "tag",
        "root1",
    }
    assert {cell.form.partition(":")[2] for cell in found} == {"", *everything}
    assert {cell.dtype for cell in found} == {None, *values.DTYPES}
    assert {cell.op for cell in found} == {None, *OPS}


# Values.


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", values.DTYPES.values(), ids=values.DTYPES)
def test_every_reduction_has_another_result_and_every_rank_other_data(dtype, size):
    shape = (2 * size + 1,)
    moved = [
        values.moved(code, shape, dtype).view(torch.uint8).tolist() for code in range(size * size)
    ]
    assert len({tuple(data) for data in moved}) == len(moved)
    if dtype is torch.bool or (
        "float8" in str(dtype) and (size not in (2, 4) or "e8m0" in str(dtype))
    ):
        return  # a bit, or very few numbers, cannot tell all reductions apart
    ops = [op for op in OPS if values.has_meaning(op, dtype)]
    results = [
        tuple(values.reduced(op, size, shape, dtype).view(torch.uint8).tolist()) for op in ops
    ]
    assert len(set(results)) == len(results)


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_closed_forms_are_what_torch_computes_on_one_process(dtype, size):
    terms = torch.stack([values.term(rank, size, (11,), dtype, start=3) for rank in range(size)])
    torch_says = {"SUM": terms.sum(0, dtype=dtype), "PRODUCT": terms.prod(0, dtype=dtype)}
    if not dtype.is_complex:
        torch_says |= {"MIN": terms.amin(0), "MAX": terms.amax(0)}
    for op, expected in torch_says.items():
        assert torch.equal(values.reduced(op, size, (11,), dtype, start=3), expected), op


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([-0.0]), torch.tensor([0.0])),
        (torch.tensor([2], dtype=torch.uint8).view(torch.bool), torch.tensor([True])),
    ],
    ids=["minus-zero", "a-bool-of-2"],
)
def test_values_are_compared_bit_by_bit(got, expected):
    assert torch.equal(got, expected)
    with pytest.raises(Mismatch):
        probe._same(got, expected, "tensor")


def test_a_nan_is_the_same_as_itself():
    probe._same(torch.tensor([float("nan")]), torch.tensor([float("nan")]), "tensor")


# The command.


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--backend", "glo"], "did you mean 'gloo'?"),
        (["--dtype", "float23"], "did you mean 'float32'?"),
        (["--collective", "all_reduse"], "did you mean 'all_reduce'?"),
        (["--op", "SUMM"], "did you mean 'SUM'?"),
        (["--import", "no_such_module_anywhere"], "No module named 'no_such_module_anywhere'"),
        (["--nproc", "0"], "use a whole number from 1"),
        (["--timeout", "-1"], "use seconds, more than 0"),
        (["--json", "/no/such/folder/x.json"], "No such file or directory"),
        (["--collective", "barrier", "--dtype", "int8"], "no cell matches"),
    ],
    ids=lambda value: value[0].strip("-") if isinstance(value, list) else "",
)
def test_bad_options_are_errors_that_say_what_to_use(words, hint):
    result = CliRunner().invoke(app, ["matrix", *words])
    assert result.exit_code == 2
    assert hint in result.stderr


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


def test_the_grid_fits_into_a_pipe_and_carries_a_legend():
    done = command("--backend", "gloo", "--collective", "send", "--timeout", 60)
    tables, _, rest = done.stdout.partition("+ works  r refuses")
    assert rest, done.stderr
    assert max(map(len, tables.splitlines())) <= 120
    row = next(line.split() for line in tables.splitlines() if line.startswith("send "))
    assert row[1:] == ["+"] * len(values.DTYPES)
    assert "x1b" not in repr(done.stdout)


SLOWING = """
import os, time
import torch.distributed as dist
real = dist.all_reduce
def slowing(*arguments, **options):
    with open("calls", "a") as file:
        file.write("x")
        called = file.tell()
    if called > 40:
        time.sleep(600)
    return real(*arguments, **options)
dist.all_reduce = slowing
"""


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    (tmp_path / "slowing.py").write_text(SLOWING)
    words = [
        "--backend",
        "gloo",
        "--collective",
        "all_reduce",
        "--import",
        "slowing",
        "--timeout",
        "100",
        "--json",
        "x.json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "collectives", "matrix", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    until = time.monotonic() + 100
    while (
        not ((tmp_path / "calls").exists() and (tmp_path / "calls").stat().st_size > 44)
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everyone
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted: " in errors
    kept = json.loads((tmp_path / "x.json").read_text())["cells"]
    assert 10 <= len(kept) < 200
    assert {cell["form"] for cell in kept} == {"all_reduce"}
    assert "gloo/cpu, 2 ranks" in output


def under_torchrun(tmp_path, *words):
    program = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "collectives",
        "matrix",
    ]
    file = tmp_path / "x.json"
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [SUPPORT, SUPPORT.parent.parent, tmp_path]))
    }
    done = subprocess.run(
        [sys.executable, *program, *words, "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environ,
    )
    found = json.loads(file.read_text())["cells"] if file.exists() else []
    return done, {
        (cell["form"], cell["dtype"], cell["op"]): (cell["state"], cell["detail"])
        for cell in found
        if cell["device"] == "cpu"
    }


@pytest.mark.slow  # as without torchrun
def test_under_torchrun_a_third_partys_backend_is_judged_in_torchruns_world(tmp_path):
    chosen = [
        "--collective",
        "all_reduce",
        "--dtype",
        "float32",
        "--op",
        "SUM",
        "--op",
        "AVG",
        "--timeout",
        "60",
    ]
    done, states = under_torchrun(
        tmp_path, "--backend", "lying", "--import", "lying_backend", *chosen
    )
    assert done.returncode == 1
    assert states["all_reduce", "float32", "SUM"] == ("works", ""), done.stderr
    assert states["all_reduce", "float32", "AVG"][0] == "wrong"
    assert done.stdout.count("\nlying/cpu, 2 ranks\n") == 2, "one process prints: two tables"


@pytest.mark.slow  # as without torchrun
def test_under_torchrun_the_reason_why_no_world_starts_is_printed_once_too(tmp_path):
    words = ["--backend", "broken", "--import", "refusing_backends", "--timeout", "60"]
    done, states = under_torchrun(tmp_path, *words)
    assert "exitcode  : 3" in done.stderr
    assert done.stdout.count("no world of 2 ranks starts: AttributeError") == 1, done.stderr
    assert {state for state, _ in states.values()} == {UNAVAILABLE}


@pytest.mark.slow  # as without torchrun
def test_under_torchrun_a_rank_that_fails_does_not_hold_up_the_others(tmp_path):
    (tmp_path / "ill.py").write_text(
        lie(
            "all_reduce",
            "if dist.get_rank() == 1: os.kill(os.getpid(), 9)\n"
            "    return real(tensor, *rest, **options)",
        )
        + lie(
            "reduce", "if dist.get_rank() == 0: raise ValueError('no')\n    time.sleep(600)"
        ).replace("real", "also_real")
    )
    words = ["--backend", "gloo", "--import", "ill", "--quick", "--timeout", "100"]
    done, states = under_torchrun(
        tmp_path,
        *words,
        "--collective",
        "all_reduce",
        "--collective",
        "reduce",
        "--collective",
        "send",
    )
    assert states["all_reduce", "float32", "SUM"][0] == "crashes", done.stderr
    assert "SIGKILL" in states["all_reduce", "float32", "SUM"][1]
    assert states["reduce", "float32", "SUM"] == ("refuses", "ValueError: no")
    assert states["send", "float32", None] == ("works", "")
