"""`collectives diagnose` on real programs: each mistake is named with its rank and line, and
correct programs run as they would without it.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import correct_program
import correct_training
import faulty_program
import psutil
import pytest
from diagnosing import (
    ENVIRON,
    PROGRAM,
    TORCHRUN,
    diagnose,
    diagnose_a_sleeper,
    lines_of,
    program,
    script,
)
from processes import free_port, is_alive
from typer.testing import CliRunner

from collectives import LaunchError, launch
from collectives.cli import app
from collectives.diagnosis.rules.hints import hints
from collectives.diagnosis.run import environment, run
from collectives.launcher.watch import LaunchWatch
from collectives.lesson import files
from collectives.recording.call_log import Reader

# Each mistake: the kind of the error, and words of its first line.
MISTAKES = {
    "skip": ("mismatch", "different calls as #1"),
    "alone": ("hung", "only rank 0 joined barrier #0"),
    "early_exit": ("hung", "rank 1 never joined all_reduce #4"),
    "circle": ("hung", "wait for each other"),
    "all_send_first": ("hung", "wait for each other"),
    "example": ("hung", "rank 2 never joined all_reduce #0"),
    "tags": ("mismatch", "tag"),
    "order": ("mismatch", "different calls as #0"),
    "equal_order": ("mismatch", "order"),
    "op": ("mismatch", "op"),
    "root": ("mismatch", "root"),
    "shape": ("mismatch", "shape"),
    "dtype": ("mismatch", "dtype"),
    "splits": ("mismatch", "splits"),
    "short_buffer": ("mismatch", "shape"),
    "members": ("mismatch", "group"),
    "objects": ("mismatch", "shape"),
    "uneven": ("hung", "rank 1 never joined all_reduce"),
    "loss_meets_gradient": ("mismatch", "shape"),
    "sent_to_another": ("hung", "rank 0 waits for rank 1 to receive its message"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_launch_names_the_mistake_the_rank_and_the_line(name):
    kind, words = MISTAKES[name]
    mistake = getattr(faulty_program, name)
    with pytest.raises(LaunchError) as caught:
        launch(
            lambda rank, n, device: mistake(rank, n), 4, backend="gloo", diagnose=True, timeout=60
        )
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


def test_launch_returns_what_it_would_have_returned():
    def step(rank, world_size, device):
        return faulty_program.healthy(rank, world_size) or rank

    assert launch(step, 4, backend="gloo", diagnose=True) == [0, 1, 2, 3]


def test_at_the_time_limit_launch_names_the_rank_that_did_not_join():
    with pytest.raises(LaunchError, match="slow: rank 2 has not joined all_reduce #1") as caught:
        launch(lambda rank, n, device: faulty_program.slow(rank, n), 4, backend="gloo", timeout=8)
    assert (caught.value.kind, caught.value.rank) == ("hung", 2)


def test_a_healthy_program_keeps_its_output_and_status(tmp_path):
    plain = subprocess.run(
        program("healthy"), capture_output=True, text=True, env=ENVIRON, timeout=100
    )
    verdict, done = diagnose(tmp_path, *program("healthy"))
    assert (verdict["verdict"], verdict["guilty"], done.returncode) == ("ok", [], 0)
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines()) != []
    assert sorted(done.stderr.splitlines()) == sorted(plain.stderr.splitlines())


def test_under_torchrun_the_skipped_call_is_named(tmp_path):
    verdict, done = diagnose(tmp_path, *TORCHRUN, str(PROGRAM), "skip")
    (guilty,) = verdict["guilty"]
    place = {
        "rank": 2,
        "machine": None,  # there is only one
        "file": str(PROGRAM),
        "line": lines_of("skip")["2"],
        "function": "skip",
        "call": "barrier",
        "args": "",
    }
    assert (verdict["verdict"], verdict["field"], verdict["seq"], verdict["group"]) == (
        "mismatch",
        "call",
        1,
        "WORLD",
    )
    assert guilty == place
    assert verdict["says"] in done.stderr
    assert len(verdict["ranks"]) == 4


@pytest.mark.parametrize(
    ("name", "kind", "rank"),
    [
        ("raises", "raised", 1),
        ("dies", "died", 3),
        ("crashes", "died", 2),
        ("leaves", "hang", 1),
        # These are like others above.
        pytest.param("dies_at_work", "died", 3, marks=pytest.mark.slow),
        pytest.param("interrupted", "raised", 1, marks=pytest.mark.slow),
        pytest.param("exits", "raised", 1, marks=pytest.mark.slow),
        # launch names the line of these, too, and sooner.
        pytest.param("uneven", "hang", 1, marks=pytest.mark.slow),
        pytest.param("sent_to_another", "hang", 0, marks=pytest.mark.slow),
        pytest.param("circle", "hang", 0, marks=pytest.mark.slow),
    ],
)
def test_the_command_names_the_rank_that_raised_died_or_left_the_loop_early(
    name, kind, rank, tmp_path
):
    verdict, _ = diagnose(tmp_path, *program(name), hang_after=3)
    assert (verdict["verdict"], verdict["guilty"][0]["rank"]) == (kind, rank), verdict["says"]
    for line in lines_of(name).values():
        assert verdict["guilty"][0]["line"] == line
    assert (verdict["cycle"] == [0, 1, 2, 3]) == (name == "circle")


@pytest.mark.slow  # launch names it, too
def test_a_loss_that_meets_gradients_is_a_mismatch_on_the_rank_of_the_loss(tmp_path):
    """One other rank may be named, too, if the launcher ended the rest before they could report
    their calls.
    """
    verdict, _ = diagnose(tmp_path, *program("loss_meets_gradient"), hang_after=3)
    assert (verdict["verdict"], verdict["field"]) == ("mismatch", "shape"), verdict["says"]
    *others, guilty = verdict["guilty"]
    assert (guilty["rank"], guilty["line"]) == (3, lines_of("loss_meets_gradient")["3"]), verdict[
        "says"
    ]
    assert len(others) <= 1, verdict["says"]


def test_a_rank_that_computes_is_slow_and_the_job_goes_on_until_the_limit(tmp_path):
    verdict, done = diagnose(tmp_path, *program("slow"), timeout=12)
    (guilty,) = verdict["guilty"]
    assert (verdict["verdict"], guilty["rank"], guilty["line"]) == (
        "slow",
        2,
        lines_of("slow")["2"],
    )
    # Once when it was noticed, and perhaps again at the end.
    assert done.stderr.count("slow: rank 2 has not joined all_reduce #1") in (1, 2)
    assert "ended after 12 s, the time limit" in done.stderr


def test_at_the_time_limit_a_rank_is_ended_together_with_its_child(tmp_path):
    verdict, done = diagnose(tmp_path, *program("waits_for_a_child"), timeout=12)
    (guilty,) = verdict["guilty"]
    assert (verdict["verdict"], guilty["rank"], guilty["line"]) == (
        "slow",
        2,
        lines_of("waits_for_a_child")["2"],
    )
    assert "went on" not in done.stdout


@pytest.fixture
def noticed(monkeypatch):
    """What the ranks of the test's launches noticed about their own calls."""
    found, close = [], LaunchWatch.close

    def read_and_close(watch):
        for file in watch.files:
            found.extend(Reader(file).noticed())
        close(watch)

    monkeypatch.setattr(LaunchWatch, "close", read_and_close)
    return found


# It drops Works without waiting for them.
GIVES_HINTS = {"other_order"}


@pytest.mark.parametrize("name", correct_program.steps(correct_program))
def test_a_correct_program_is_not_suspected_and_gives_no_hint(name, noticed):
    correct = getattr(correct_program, name)
    assert (
        launch(
            lambda rank, n, device: correct(rank, n), 4, backend="gloo", diagnose=True, timeout=100
        )
        == [None] * 4
    )
    assert bool(hints(noticed, "ok")) == (name in GIVES_HINTS)


@pytest.mark.parametrize("name", correct_program.steps(correct_training))
def test_a_correct_training_is_not_suspected_and_gives_no_hint(name, noticed):
    correct = getattr(correct_training, name)
    assert (
        launch(
            lambda rank, n, device: correct(rank, n), 2, backend="gloo", diagnose=True, timeout=100
        )
        == [None] * 2
    )
    assert hints(noticed, "ok") == ()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "ddp" else pytest.mark.slow)
        for name in ("ddp", *correct_program.WHOLE)
    ],
)
def test_diagnose_does_not_change_how_a_correct_program_ends(name, tmp_path):
    program = correct_training if name == "ddp" else correct_program
    verdict, done = diagnose(tmp_path, sys.executable, program.__file__, name, hang_after=20)
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


SERVED = """
    import multiprocessing, os, sys, time

    def rank(number):
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=number, world_size=2)
        while number == 0:
            dist.send(torch.ones(1), dist.recv(torch.ones(1)))
        dist.send(torch.ones(1), 0)
        dist.recv(torch.ones(1), 0)

    if __name__ == "__main__":
        processes = [multiprocessing.Process(target=rank, args=(number,), daemon=number == 0) for number in range(2)]
        for process in processes:
            process.start()
        processes[1].join()
        time.sleep(1.5)
"""


def test_a_daemon_rank_that_serves_until_its_parent_ends_is_no_fault(tmp_path):
    verdict, done = diagnose(
        tmp_path, *script(tmp_path, SERVED), str(tmp_path / "store"), hang_after=20
    )
    assert (verdict["verdict"], done.returncode) == ("ok", 0), verdict["says"]


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


@pytest.mark.slow  # as the ranks of a shell script
def test_ranks_started_by_several_launchers_form_one_world(tmp_path):
    """Each rank runs in its own subshell, and a second world runs at the same time."""
    one = f"{sys.executable} {correct_program.__file__} branches"
    shell = f"""
        export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2
        for port in $PORTS; do for rank in 0 1; do (MASTER_PORT=$port RANK=$rank {one} || echo failed) & done; done; wait
    """
    ports = f"PORTS={free_port()} {free_port()}"
    verdict, done = diagnose(tmp_path, "env", ports, "sh", "-c", shell, hang_after=20)
    assert (verdict["verdict"], done.stdout) == ("ok", ""), verdict["says"]


UNSEEN = """
import collectives.diagnosis.watch.rank_process as watch
ending = watch._ending
watch._ending = lambda pid: None if ending(pid) is None else (None,)
from collectives.cli import main
main()
"""


@pytest.mark.parametrize(
    ("program", "name", "status"),
    [
        pytest.param(correct_program, "leaves_at_once", 0, marks=pytest.mark.slow),
        (faulty_program, "dies", 1),
    ],
    ids=["left", "killed"],
)
def test_an_exit_that_only_the_launcher_saw_is_taken_from_its_exit_status(program, name, status):
    command = [
        sys.executable,
        "-c",
        UNSEEN,
        "diagnose",
        "--hang-after",
        "5",
        "--",
        sys.executable,
        program.__file__,
        name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert ("died: rank 3" in done.stderr) == (status == 1), done.stderr


INSTALLED = {
    "library/communicate.py": """
        import torch.distributed as dist
        def gather(x):
            dist.all_reduce(x)
    """,
    "library/scripts/train.py": """
        import torch, torch.distributed as dist
        from library.communicate import gather
        def main():
            dist.init_process_group("gloo")
            gather(torch.ones(1))
            if dist.get_rank() == 1:
                dist.recv(torch.ones(1), src=0)
            gather(torch.ones(1))
        main()
    """,
}


@pytest.mark.slow  # a rare case
def test_of_a_program_that_is_run_from_inside_site_packages_its_own_lines_are_named(
    tmp_path, monkeypatch
):
    """Else each rank would be at a line of torch, or of a library that the program calls."""
    packages = tmp_path / "site-packages"
    for name, text in INSTALLED.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(textwrap.dedent(text).lstrip())
    paths = [str(packages), ENVIRON.get("PYTHONPATH", "")]
    monkeypatch.setitem(ENVIRON, "PYTHONPATH", os.pathsep.join(filter(None, paths)))
    program = packages / "library" / "scripts" / "train.py"
    verdict, _ = diagnose(tmp_path, *TORCHRUN[:-1], "2", str(program), hang_after=3)
    assert verdict["verdict"] == "hang", verdict["says"]
    places = {rank["rank"]: rank["where"] for rank in verdict["ranks"]}
    assert places == {0: f"{program}:8 in main", 1: f"{program}:7 in main"}, verdict["says"]


@pytest.mark.slow  # as in correct_program.begins_again, but under torchrun
def test_successive_worlds_in_the_same_processes_are_not_confused(tmp_path):
    """Under torchrun the steps of a lesson make one world after another, whose groups have the same
    names.
    """
    verdict, _ = diagnose(tmp_path, *TORCHRUN, str(files.folder() / "barrier.py"), hang_after=20)
    assert verdict["verdict"] == "ok", verdict["says"]


@pytest.mark.parametrize("status", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_program_that_is_not_distributed_keeps_its_status(status, tmp_path):
    verdict, done = diagnose(
        tmp_path,
        *script(
            tmp_path, f"import sys\nprint('here', 'collectives' in sys.modules)\nsys.exit({status})"
        ),
    )
    assert (verdict["verdict"], done.returncode, done.stdout) == (
        "not-distributed",
        status,
        "here False\n",
    )


def test_a_program_that_fails_at_an_import_is_reported_with_the_line(tmp_path):
    verdict, _ = diagnose(tmp_path, *script(tmp_path, "x = 1\nimport no_such_module_of_mine\n"))
    assert (verdict["verdict"], verdict["guilty"][0]["line"]) == ("raised", 2)
    assert "ModuleNotFoundError" in verdict["says"]


def test_the_end_of_a_long_error_message_is_shown(tmp_path):
    """For an exception in a DataLoader's worker, the message ends with the exception and begins
    with a traceback.
    """
    verdict, _ = diagnose(
        tmp_path,
        *script(
            tmp_path, "import torch.distributed\nraise ValueError('begins' + 1000 * '.' + 'ends')"
        ),
    )
    assert re.search(r"ValueError: begins.* \.\.\. .*ends$", verdict["says"], re.MULTILINE)


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
    verdict, _ = diagnose(tmp_path, *script(tmp_path, stubborn), timeout=3)
    assert verdict["verdict"] == "slow"
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


def test_ctrl_c_also_ends_the_program(tmp_path):
    process, program = diagnose_a_sleeper(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert not psutil.pid_exists(program)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, " cannot be read: No such file or directory"),
        ("# a report\n", ": this is no file that diagnose --json has written"),
        ('{"says": "ok"}', ": this is no file that diagnose --json has written"),
    ],
    ids=["missing", "no_json", "another_json"],
)
def test_a_file_that_cannot_be_merged_is_named(text, message, tmp_path):
    file = tmp_path / "node0.json"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(app, ["diagnose", "--merge", str(file)])
    assert done.exit_code == 2
    assert done.stderr == f"collectives diagnose: --merge {file}{message}.\n"
