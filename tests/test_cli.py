"""The command line does what it says, and its exit status tells what became of it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from typer.testing import CliRunner

from collectives import launch
from collectives.backends import machine
from collectives.bench import calls, timing
from collectives.bench import launch as bench
from collectives.bench import matrix as bench_matrix
from collectives.bench import mpi as bench_mpi
from collectives.cli import app
from collectives.lesson import files
from collectives.spec.catalogue import COLLECTIVES

LESSON = """
from collectives import check
import torch
import torch.distributed as dist


def total(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([world_size * (world_size - 1) // 2]), "all_reduce(SUM)")
    return {"after": x}


def wrong(rank, world_size, device):
    check(torch.tensor([rank]), torch.tensor([-1]), "nothing")


def send_recv(rank, world_size, device):  # bears the name of a step that needs two ranks
    return "sent"


def forever(rank, world_size, device):
    import time

    time.sleep(600)

"""


def lesson(folder, steps: str, name: str = "mine"):
    """The path of a lesson with these steps."""
    path = folder / f"{name}.py"
    path.write_text(f"{LESSON}\nSTEPS = {steps}\n")
    return str(path)


def collectives(*words):
    """The command, in this process: what it printed, and its exit status."""
    return CliRunner().invoke(app, [str(word) for word in words])


def in_a_process(*words, **options):
    command = [sys.executable, "-m", "collectives", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_list_names_the_twelve_in_reading_order():
    lines = collectives("list").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(COLLECTIVES)
    assert len(lines) == 12
    for line, record in zip(lines, COLLECTIVES.values(), strict=True):
        assert record.summary in line
        assert str(record.min_world_size) in line
        assert (record.bus_factor or "-") in line


def test_list_does_not_import_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from collectives.cli import app; "
        "assert CliRunner().invoke(app, ['list']).exit_code == 0; print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "False", answer.stderr


def test_python_m_collectives_tells_its_version():
    answer = in_a_process("--version")
    assert (answer.returncode, answer.stdout) == (0, f"collectives {machine.version()}\n")


def test_env_prints_every_fact():
    result = collectives("env")
    assert result.exit_code == 0
    for name, value in machine.describe():
        assert f"{name:<12} {value}" in result.stdout.splitlines()


def test_status_0_when_every_step_is_proved(tmp_path):
    result = collectives("run", lesson(tmp_path, "[total]"), "--nproc", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        "total: proved on all 2 ranks\n  rank  after\n  0     [1]\n  1     [1]\n"
    )
    assert result.stdout.splitlines()[-1].split() == ["mine", "1", "0", "0"]


def test_progress_is_on_stderr_and_stdout_holds_no_time(tmp_path):
    path = lesson(tmp_path, "[total]")
    first, second = (collectives("run", path, "-n", 1) for _ in range(2))
    assert first.stdout == second.stdout
    assert "mine (1 of 1)" in first.stderr
    assert "1 lesson in " in first.stderr


def test_status_1_when_a_step_fails_and_the_others_still_run(tmp_path):
    other = lesson(tmp_path, "[total]", "other")
    result = collectives("run", lesson(tmp_path, "[wrong, total]"), other, "-n", 2)
    assert result.exit_code == 1
    assert result.stdout.count("total: proved on all 2 ranks") == 2
    assert "wrong: rank " in result.stderr
    assert "should be [-1]" in result.stderr
    mine = next(line for line in result.stdout.splitlines() if line.startswith("mine"))
    assert mine.split()[:5] == ["mine", "1", "0", "1", "wrong:"]
    assert "should be [-1]" in mine


def test_status_1_when_a_file_cannot_be_loaded_and_the_others_still_run(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_anywhere\n")
    result = collectives("run", broken, lesson(tmp_path, "[total]"), "-n", 1)
    assert result.exit_code == 1
    assert "total: proved on 1 rank" in result.stdout
    assert "No module named 'no_such_module_anywhere'" in result.stdout


def test_status_2_for_an_unknown_name_with_the_nearest_and_the_list():
    result = collectives("run", "al_reduce")
    assert result.exit_code == 2
    assert "did you mean 'all_reduce'?" in result.stderr
    assert all(name in result.stderr for name in COLLECTIVES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["all_reduce", "--all"], "leave out"),
        (["-n", "2"], "name a lesson"),
        (["no_such_folder/all_reduce.py"], "The lesson of that name is 'all_reduce'"),
        (["all_reduce", "-n", "0"], "not a number of ranks"),
        (["all_reduce", "--timeout", "0"], "not a time limit"),
        (["all_reduce", "--backend", "glo"], "did you mean 'gloo'?"),
        (["all_reduce", "--device", "tpu"], "use 'cpu' or 'cuda'"),
        (["all_reduce", "--no-such-option"], "--no-such-option"),
    ],
    ids=[
        "all-and-a-name",
        "no-name",
        "no-file",
        "nproc-0",
        "timeout-0",
        "backend",
        "device",
        "option",
    ],
)
def test_status_2_for_bad_usage(words, told):
    result = collectives("run", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not result.stdout


def test_status_2_for_a_file_without_steps(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    result = collectives("run", path)
    assert result.exit_code == 2
    assert "it needs STEPS" in result.stderr


def test_status_2_for_rank_without_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    for name in ("TORCHELASTIC_RUN_ID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    result = collectives("run", lesson(tmp_path, "[total]"))
    assert result.exit_code == 2
    assert "RANK=0 is set" in result.stderr


def test_status_3_when_every_step_is_skipped_with_the_reason_in_the_summary(tmp_path):
    result = collectives("run", lesson(tmp_path, "[send_recv]"), "-n", 1)
    assert result.exit_code == 3
    assert result.stdout.startswith("send_recv: skipped: it needs at least 2 ranks")
    assert (
        "send_recv: it needs at least 2 ranks, this world has 1" in result.stdout.splitlines()[-1]
    )


def test_a_skipped_step_among_proved_ones_is_no_failure(tmp_path):
    result = collectives("run", lesson(tmp_path, "[send_recv, total]"), "-n", 1)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].split()[:4] == ["mine", "1", "1", "0"]


def test_a_step_that_a_claim_refuses_is_skipped_with_its_reason(tmp_path, monkeypatch):
    reasons = {("total", "gloo", "cpu"): "gloo on cpu: it cannot add"}
    monkeypatch.setattr("collectives.backends.claims.refusal", lambda *asked: reasons.get(asked))
    result = collectives("run", lesson(tmp_path, "[total]"), "-n", 1, "--backend", "gloo")
    assert result.exit_code == 3
    assert result.stdout.startswith("total: skipped: gloo on cpu: it cannot add\n")


def test_status_3_for_nccl_without_a_gpu_said_once(tmp_path):
    answer = in_a_process(
        "run",
        lesson(tmp_path, "[total, send_recv]"),
        "--backend",
        "nccl",
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (answer.returncode, answer.stdout) == (3, "")
    assert len(answer.stderr.splitlines()) == 1
    assert "nccl needs one GPU per rank: 0 visible" in answer.stderr


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGINT that one process can send another"
)
def test_status_130_with_one_line_for_ctrl_c(tmp_path):
    command = [
        sys.executable,
        "-m",
        "collectives",
        "run",
        lesson(tmp_path, "[forever, total]"),
        "-n",
        "2",
    ]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A test run in the background of a shell inherits that SIGINT is ignored.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, **streams, **listen) as process:
        while "ranks are at work" not in process.stderr.readline():
            assert process.poll() is None
        ranks = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, "", "forever: interrupted")
    assert psutil.wait_procs(ranks, timeout=10)[1] == []


def test_under_torchrun_rank_0_alone_prints(tmp_path):
    path = lesson(tmp_path, "[total]")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "collectives",
        "run",
        path,
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == collectives("run", path, "-n", 2).stdout
    assert answer.stderr.count("mine (1 of 1)") == 1


def test_a_lesson_does_not_stay_among_the_modules(tmp_path):
    module = files.load(files.find(lesson(tmp_path, "[total]")))
    assert module.__name__ == "mine"
    assert "mine" not in sys.modules


def test_lessons_come_from_the_checkout_that_one_stands_in(tmp_path, monkeypatch):
    inside = tmp_path / "lessons" / "deeper"
    inside.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "collectives"\n')
    monkeypatch.chdir(inside)
    assert files.folder() == tmp_path / "lessons"


def test_another_project_with_a_folder_of_lessons_is_no_checkout(tmp_path):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "piano"\n')
    assert files.folder(tmp_path) != tmp_path / "lessons"


def test_outside_a_checkout_the_lessons_of_the_wheel_come_first_then_those_beside_the_package(
    tmp_path, monkeypatch
):
    package = tmp_path / "site" / "collectives"
    package.mkdir(parents=True)
    monkeypatch.setattr(files, "_PACKAGE", package)
    assert files.folder(tmp_path) == tmp_path / "site" / "lessons"
    (package / "lessons").mkdir()
    assert files.folder(tmp_path) == package / "lessons"


FOUND = {
    "spawn": [4.0, 4.4, 90.0],
    "launch": [0.2, 0.1, 0.3],
    "import torch": [1.0],
    "lesson": [2.5],
    "torchrun": [5.0],
    "memory, spawn": [100 * 2**20],
    "memory, forkserver": [10 * 2**20],
    "memory, server": [60 * 2**20],
}


def test_bench_compares_medians_and_says_which_targets_were_met():
    rows = bench.rows(FOUND)
    assert [(round(row.ratio, 1), row.met) for row in rows] == [
        (22.0, "yes"),
        (2.5, "no"),
        (2.0, "yes"),
        (10.0, "-"),
    ]
    assert rows[0].first == "torch.multiprocessing.spawn 4.40 s"
    assert rows[3].target == "4 ranks save 300 MiB, their server's own counted"


def test_bench_measures_both_ways_of_starting_ranks_in_each_round_and_their_memory():
    heard = []
    found = bench.launches(1, heard.append, ranks=1)
    assert {name: len(values) for name, values in found.items() if "memory" not in name} == {
        "spawn": 1,
        "launch": 1,
    }
    assert found["spawn"][0] > found["launch"][0] > 0
    if "forkserver" in multiprocessing.get_all_start_methods():
        assert found["memory, spawn"][0] > found["memory, forkserver"][0] > 0
    assert heard[0] == "launches, round 1 of 1"


def test_bench_tells_what_a_noted_call_costs_by_the_best_of_each_side_so_that_bad_moments_do_not_count():
    (row,) = calls.rows(
        {"all_reduce": [(10.0, 16.0), (100.0, 106.0), (10.0, 15.0), (11.0, 900.0), (90.0, 17.0)]}
    )
    assert (row.ratio, row.target, row.met) == (1.5, "<= 20 us more: 5.0 us", "yes")


@pytest.mark.parametrize("ranks", [1, 2])
def test_bench_times_plain_and_noted_calls_in_the_same_ranks(ranks):
    for pairs in launch(calls.cost, ranks, args=(2,), backend="gloo", diagnose=False):
        assert len(pairs) == 2
        assert min(min(pair) for pair in pairs) > 0


def test_bench_leaves_memory_out_where_there_is_no_forkserver():
    assert (
        len(bench.rows({name: values for name, values in FOUND.items() if "memory" not in name}))
        == 3
    )


@pytest.mark.parametrize(
    ("full", "quick", "expected"),
    [(60.0, 12.0, [(50.0, "yes"), (22.5, "no")]), (80.0, 8.0, [(37.5, "no"), (33.8, "yes")])],
)
def test_bench_of_the_matrix_compares_cells_with_spawn(full, quick, expected):
    names = "the full gloo/CPU matrix", "--quick"
    rows = bench_matrix.rows(
        dict(zip(names, (full, quick), strict=True)), dict(zip(names, (1000, 90), strict=True)), 3.0
    )
    assert [(round(row.ratio, 1), row.met) for row in rows] == expected


def test_bench_of_mpi_compares_the_same_calls_at_three_sizes():
    seconds = {
        (size, backend): value
        for size in bench_mpi.SIZES
        for backend, value in (("gloo", 0.009), ("mpi", 0.001))
    }
    assert [(row.ratio, row.target, row.met) for row in bench_mpi.rows(seconds)] == [
        (pytest.approx(9), ">= 2x", "yes"),
        (pytest.approx(9), ">= 10x", "no"),
        (pytest.approx(9), ">= 10x", "no"),
    ]


def test_bench_ends_what_a_failed_measurement_started():
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()']).pid, flush=True); input()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    try:
        with timing.process([sys.executable, "-c", code], **streams) as process:
            grandchild = psutil.Process(int(process.stdout.readline()))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert process.returncode is not None
    deadline = time.monotonic() + 5
    while grandchild.is_running() and grandchild.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
