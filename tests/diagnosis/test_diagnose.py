"""`collectives diagnose` on real programs: each mistake is named with its rank and line, and
correct programs run as they would without it.
"""

import linecache
import re
import subprocess
import sys
import time

import correct_program
import faulty_program
import psutil
import pytest
import torch.distributed as dist
from diagnosing import ENVIRON, PROGRAM, TORCHRUN, diagnose, lines_of, program, script
from our_backends import needs_by_hand
from processes import free_port, is_alive

from collectives import LaunchError, launch
from collectives.backends import claims
from collectives.diagnosis.rules.hints import hints
from collectives.diagnosis.run import environment, run
from collectives.launcher.watch import LaunchWatch
from collectives.recording.call_log import LogReader

# Each mistake: the kind of the error, and words of its first line. Calls that Python makes are
# compared alike on each backend, and tests/diagnosis/test_diagnosis.py and the lessons on mistakes have more.
MISTAKES = {
    "skip": ("mismatch", "different calls as "),
    "circle": ("hung", "wait for each other"),
    "uneven": ("hung", "rank 1 never joined all_reduce"),
    "loss_meets_gradient": ("mismatch", "shape"),
    "short_buffer": ("mismatch", "shape"),
    "sent_to_another": ("hung", "rank 0 waits for rank 1 to receive its message"),
}
# by_hand refuses such a message itself, on both ranks. What DDP calls in C++ is not in torch's own
# record of a backend in Python: there the error of by_hand names the rank that left, or the calls.
TOLD_BY_HAND = {
    "uneven": "all_reduce failed: connection closed by peer: rank 1 has gone",
    "loss_meets_gradient": "float32 x 3 ",
    "short_buffer": "has 16 bytes, the tensor for it 8",
}
SLOW = {"loss_meets_gradient", "short_buffer", "sent_to_another"}
BY_HAND = pytest.param("by_hand", marks=needs_by_hand)


def diagnosed(fn, nproc, backend):
    return launch(
        lambda rank, n, device: fn(rank, n), nproc, backend=backend, diagnose=True, timeout=100
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else []) for name in MISTAKES],
)
def test_launch_names_the_mistake_the_rank_and_the_line(name, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # torch 2.9 keeps no record without it
    kind, words = MISTAKES[name]
    with pytest.raises(LaunchError) as caught:
        diagnosed(getattr(faulty_program, name), 4, "gloo")
    headline, *rows = str(caught.value).splitlines()
    assert caught.value.kind == kind, caught.value
    assert words in headline
    for rank, line in lines_of(name).items():
        assert any(
            f"faulty_program.py:{line} " in row
            and (rank == "all" or re.search(rf"ranks? .*\b{rank}\b", row))
            for row in rows
        )
        assert rank in ("all", str(caught.value.rank)) or len(lines_of(name)) > 1


@pytest.mark.parametrize("backend", [BY_HAND])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in TOLD_BY_HAND]
)
def test_what_by_hand_refuses_raises_its_error_and_ends_no_process(name, backend):
    with pytest.raises(LaunchError) as caught:
        diagnosed(getattr(faulty_program, name), 4, backend)
    assert caught.value.kind == "raised", caught.value
    assert TOLD_BY_HAND[name] in str(caught.value)


def test_at_the_time_limit_launch_names_the_rank_that_did_not_join():
    def step(rank, world_size, device):
        time.sleep(60 * (rank == 2))
        dist.barrier()

    launch(lambda *world: None, 4, backend="gloo")  # then the next ranks start in no time
    for limit in (3, 20):  # but on a busy machine they meet late
        with pytest.raises(LaunchError) as caught:
            launch(step, 4, backend="gloo", timeout=limit)
        if caught.value.rank == 2:
            break
    assert "slow: rank 2 has not joined barrier #1" in str(caught.value)
    assert (caught.value.kind, caught.value.rank) == ("hung", 2)


@pytest.mark.slow
def test_a_healthy_program_keeps_its_output_and_status(tmp_path):
    plain = subprocess.run(
        program("healthy"), capture_output=True, text=True, env=ENVIRON, timeout=100
    )
    verdict, done = diagnose(tmp_path, *program("healthy"))
    assert (verdict["verdict"], verdict["guilty"], done.returncode) == ("ok", [], 0)
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines()) != []
    assert sorted(done.stderr.splitlines()) == sorted(plain.stderr.splitlines())


def test_under_torchrun_the_skipped_call_is_named(tmp_path):
    verdict, done = diagnose(tmp_path, *TORCHRUN[:-1], "3", str(PROGRAM), "skip")
    (guilty,) = verdict["guilty"]
    place = {"file": str(PROGRAM), "line": lines_of("skip")["2"], "function": "skip"}
    # "machine": there is only one.
    assert guilty == {"rank": 2, "machine": None, **place, "call": "barrier", "args": ""}
    found = verdict["verdict"], verdict["field"], verdict["seq"], verdict["group"]
    assert found == ("mismatch", "call", 2, "WORLD")
    assert verdict["says"] in done.stderr
    assert len(verdict["ranks"]) == 3


@pytest.mark.parametrize(
    ("name", "kind", "rank"),
    [
        ("dies", "died", 3),
        ("leaves", "hang", 1),
        pytest.param("crashes", "died", 2, marks=pytest.mark.slow),  # as one that dies
    ],
)
def test_the_command_names_the_rank_that_died_or_left_the_loop_early(name, kind, rank, tmp_path):
    verdict, _ = diagnose(tmp_path, *program(name))
    assert (verdict["verdict"], verdict["guilty"][0]["rank"]) == (kind, rank), verdict["says"]
    for line in lines_of(name).values():
        assert verdict["guilty"][0]["line"] == line


@pytest.mark.slow  # as in test_at_the_time_limit_launch_names_the_rank_that_did_not_join
def test_a_slow_job_goes_on_until_the_limit_and_then_ends_with_the_child_of_its_rank(tmp_path):
    verdict, done = diagnose(tmp_path, *program("waits_for_a_child"), timeout=20)
    (guilty,) = verdict["guilty"]
    found = verdict["verdict"], guilty["rank"], guilty["line"]
    assert found == ("slow", 2, lines_of("waits_for_a_child")["2"])
    # Once when it was noticed, and perhaps again at the end.
    assert done.stderr.count("slow: rank 2 has not joined all_reduce #1") in (1, 2)
    assert "ended after 20 s, the time limit" in done.stderr
    assert "went on" not in done.stdout


@pytest.fixture
def noticed(monkeypatch):
    """What the ranks of the test's launches noticed about their own calls."""
    found, close = [], LaunchWatch.close

    def read_and_close(watch):
        for file in watch.files:
            found.extend(LogReader(file).noticed())
        close(watch)

    monkeypatch.setattr(LaunchWatch, "close", read_and_close)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", BY_HAND])
def test_correct_programs_are_not_suspected_and_give_no_hint(backend, noticed):
    """The lessons on training are more of them: see test_lessons.py."""

    def all_of_them(rank, n):
        for step in correct_program.steps():
            if backend == "gloo" or step.__name__ not in GLOO_ALONE:
                dist.barrier()
                step(rank, n)
        return rank

    assert diagnosed(all_of_them, 4, backend) == list(range(4))
    if backend == "gloo":
        lines = {
            linecache.getline(one.call.file, one.call.line)
            for one in hints(noticed, "ok", claims.wrong_with_gaps)
        }
        assert all(line.endswith("# some are dropped\n") for line in lines), lines


# monitored_barrier and asynchronous checkpoints are for gloo alone.
GLOO_ALONE = {"barriers", "saves_in_the_background"}


@pytest.mark.parametrize(
    "names",
    [
        # These start or end worlds and processes themselves.
        pytest.param(
            ["forks", "begins_again", "ensembles", "alone_in_the_world"], marks=pytest.mark.slow
        ),
        # Nobody destroys the groups after this one.
        pytest.param(["thinks_better_of_it"], marks=pytest.mark.slow),
        ["leaves_at_once"],
    ],
    ids=", ".join,
)
def test_diagnose_does_not_change_how_correct_programs_end(names, tmp_path):
    command = [sys.executable, correct_program.__file__, *names]
    verdict, done = diagnose(tmp_path, *command, hang_after=20)
    assert (verdict["verdict"], done.returncode) == ("ok", 0), verdict["says"]


LOOKS_AROUND = """
    import atexit, os, threading, time, warnings

    @atexit.register
    def last():  # registered first, so it runs last
        time.sleep(1.5 * int(os.environ["RANK"]))
        dist.barrier()

    import torch.distributed as dist
    warnings.simplefilter("error")
    assert threading.enumerate() == [threading.main_thread()]
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    dist.init_process_group("gloo")
    atexit.register(dist.barrier)
"""


@pytest.mark.slow  # a rare case
def test_a_program_with_strict_warnings_and_exit_handlers_runs_as_without_diagnose(tmp_path):
    """It counts its threads, turns warnings into errors, and makes calls in exit handlers."""
    verdict, done = diagnose(tmp_path, *TORCHRUN[:-1], "2", script(tmp_path, LOOKS_AROUND)[1])
    assert (verdict["verdict"], done.returncode) == ("ok", 0), verdict["says"]
    assert "Exception ignored" not in done.stderr


RESTARTED = """
    import os
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    if (os.environ["RANK"], os.environ["ATTEMPT"]) == ("1", "0"):
        raise RuntimeError("once")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow  # four interpreters for a case that is rare
def test_ranks_that_the_launcher_restarts_with_success_are_no_fault(tmp_path):
    """As `torchrun --max-restarts` restarts them.

    Not with torchrun: its second attempt sometimes hangs (torch 2.13).
    """
    rank = " ".join(script(tmp_path, RESTARTED))
    shell = (
        f"for ATTEMPT in 0 1; do for RANK in 0 1; do export ATTEMPT RANK; {rank} & done; wait; done"
    )
    places = ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}", "WORLD_SIZE=2"]
    verdict, done = diagnose(tmp_path, "env", *places, "sh", "-c", shell, hang_after=20)
    assert (verdict["verdict"], done.returncode) == ("ok", 0), verdict["says"]


def test_a_program_that_is_not_distributed_keeps_its_status(tmp_path):
    text = "import sys\nprint('here', 'collectives' in sys.modules)\nsys.exit(3)"
    verdict, done = diagnose(tmp_path, *script(tmp_path, text))
    found = verdict["verdict"], done.returncode, done.stdout
    assert found == ("not-distributed", 3, "here False\n")


def test_a_program_that_raises_is_reported_with_the_line_and_the_end_of_a_long_message(tmp_path):
    """For an exception in a DataLoader's worker, the message ends with the exception and begins
    with a traceback.
    """
    text = "x = 1\nraise ValueError('begins' + 1000 * '.' + 'ends')"
    verdict, _ = diagnose(tmp_path, *script(tmp_path, text))
    assert (verdict["verdict"], verdict["guilty"][0]["line"]) == ("raised", 2)
    assert re.search(r"ValueError: begins.* \.\.\. .*ends$", verdict["says"], re.MULTILINE)


def test_torchruns_table_of_ranks_that_failed_before_torch_was_called_is_not_repeated(tmp_path):
    python, file = script(tmp_path, "raise SystemExit(4)")
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verdict, done = diagnose(tmp_path, *torchrun, file)
    assert (verdict["verdict"], done.returncode) == ("raised", 1)
    assert "torchrun's ranks failed before they called torch.distributed" in verdict["says"]


def test_the_users_own_sitecustomize_and_module_of_our_name_still_run(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.SITE = 'theirs'\n")
    (tmp_path / "collectives.py").write_text("NAME = 'theirs'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = script(
        tmp_path, "import torch.distributed, collectives\nprint(SITE, collectives.NAME)"
    )
    output = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (output.stdout, output.stderr) == ("theirs theirs\n", "")


@pytest.mark.slow
def test_a_program_that_ignores_sigterm_leaves_no_process_behind(tmp_path):
    stubborn = """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
        for number in range(2):
            subprocess.Popen([sys.executable, "-c", code], start_new_session=bool(number))
        while True:
            print("x" * 1000)
            time.sleep(0.01)
    """
    before = time.monotonic()
    verdict, done = diagnose(tmp_path, *script(tmp_path, stubborn), timeout=3)
    assert verdict["verdict"] == "slow"
    assert done.stderr == "slow: the program had not ended after 3 s\n"
    assert [one for one in psutil.process_iter() if is_stubborn(one)] == []
    assert time.monotonic() - before < 60


def is_stubborn(process):
    try:
        return is_alive(process) and "SIG_IGN); time.sleep(100)" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_a_command_that_cannot_be_run_is_bad_usage():
    with pytest.raises(ValueError, match="no-such-program cannot be run"):
        run(["no-such-program"])
