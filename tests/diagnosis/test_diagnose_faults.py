"""`collectives diagnose` under bad conditions: it always ends, its report is right or says what is
missing, and nothing is left behind.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hand_made
import psutil
import pytest
from diagnosing import DIAGNOSE, ENVIRON, diagnose, lines_of, program, script
from processes import hear_signals, is_alive, wait_until

from collectives.diagnosis import run as diagnosing
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.job import Job
from collectives.diagnosis.watch.job_world import JobWorld
from collectives.diagnosis.watch.world import RankProcess, WatchedWorld, sleep
from collectives.recording.call import CallArgs, TensorKind
from collectives.recording.call_log import ANSWER, RAISED, SIZE, SLOTS, LogReader, Writer
from collectives.recording.ending import Ending
from collectives.recording.exit_hooks import ExitHooks
from collectives.recording.rank_log import Log

WHERE = ["train.py", 7, "step"]
LOST = {"type": "RuntimeError", "text": "RuntimeError: connection closed by peer"}
HAS_LOST = json.dumps(LOST | {"where": WHERE, "at": 1, "is_guess": False}).encode()
linux = pytest.mark.skipif(
    sys.platform != "linux",
    reason="stopped processes and orphans are seen through what Linux tells",
)


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """After the test no process and no temporary folder of its program is left."""
    folder = Path(tempfile.mkdtemp())  # a short path, as sockets need
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setitem(ENVIRON, "TMPDIR", str(folder))
    yield folder
    wait_until(lambda: not any(_is_of(one, folder) for one in psutil.process_iter()), 20)
    left = list(folder.glob("collectives-*"))
    shutil.rmtree(folder)
    assert not left


def written(folder, name, rank, n=2, **options):
    """The writer of a rank's log in this folder."""
    with open(folder / f"{name}.calls", "xb+") as file:
        return Writer(file, rank, n, **options)


@pytest.fixture
def watched(tmp_path):
    """`watched(2)`: a world of so many ranks, and the writers of their logs."""
    world = WatchedWorld()

    def begin(n):
        writers = [written(tmp_path, rank, rank, n) for rank in range(n)]
        for rank in range(n):
            with open(tmp_path / f"{rank}.calls", "rb+") as file:
                world.ranks[rank] = RankProcess(file)
        return world, writers

    yield begin
    for rank in world.ranks.values():
        rank.log.close()


def _is_of(process, folder):
    try:
        return is_alive(process) and process.environ().get("TMPDIR") == str(folder)
    except psutil.Error:
        return False


@pytest.mark.slow
@linux
def test_a_stopped_rank_is_told_from_one_that_computes(tmp_path):
    verdict, _ = diagnose(tmp_path, *program("stopped"))
    assert verdict["says"].startswith("hang: rank 2 stopped"), verdict["says"]
    places = [(one["rank"], one["line"]) for one in verdict["guilty"]]
    assert places == [(2, lines_of("stopped")["2"])]


def test_a_log_whose_writer_was_killed_is_complete_until_then(tmp_path):
    """Six writers are killed at random moments while they are read: no call is torn or lost."""
    for number in range(6):
        with open(tmp_path / "log", "wb+") as file:
            file.truncate(0)
            Writer(file, 0, 1)
            if (child := os.fork()) == 0:
                _write_for_ever(file)
            reader, seen = LogReader(file), []
            until = time.monotonic() + random.Random(number).uniform(0.01, 0.1)
            while time.monotonic() < until or (
                not seen and time.monotonic() < until + 30
            ):  # it may begin late
                seen += reader.poll()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            seen += reader.poll(has_ended=True)
            for call in seen:
                assert (call.seq, call.tensors) == (call.number, _tensors(call.number))
                assert call.error in (None, f"ValueError: {call.number}")
            assert len({call.number for call in seen}) + reader.lost == reader.head()["count"] > 0
            assert seen
            reader.close()


def _write_for_ever(file):
    writer = Writer(file, 0, 1)
    for number in range(10**9):
        writer.enter(number, None, None, CallArgs("all_reduce", tensors=_tensors(number)), {})
        writer.leave(number, f"ValueError: {number}" if number % 2 else None, None)


def _tensors(number):
    return (TensorKind("float32", (number % 9,)),)


def test_nothing_is_concluded_from_messages_of_which_one_end_was_lost(watched):
    """Of 1000 messages one end was lost, so that others might be taken for theirs; collectives are
    still compared.
    """
    world, writers = watched(2)
    states = dict.fromkeys((0, 1), State(Ending.RETURNED))
    group = {"group": "WORLD", "members": (0, 1)}
    for number in range(SLOTS + 1000):
        for rank, writer in enumerate(writers):
            tensors = (TensorKind("float32", (number,)),)
            fields = {"peer": 1 - rank, "tag": 0, "tensors": tensors} | group
            call = CallArgs(("isend", "irecv")[rank], **fields)
            writer.leave(writer.enter(None, None, None, call, {}), None, None)
        if number < 1000:  # rank 1 is looked at in time, rank 0 is not
            list(map(world.matching.note, world.ranks[1].log.poll()))
    world.poll()
    zero, one = (world.ranks[rank].log for rank in range(2))
    assert (zero.lost, zero.since, one.lost) == (1000, 1000, 0)
    assert judge(world.matching, states, 2, stalled=True).kind.verdict == "ok"
    for rank, writer in enumerate(writers):
        call = CallArgs("all_reduce", **group, op=("SUM", "MAX")[rank])
        writer.leave(writer.enter(0, None, None, call, {}), None, None)
    world.poll()
    assert judge(world.matching, states, 2, stalled=True).field == "op"


def test_of_two_processes_with_one_rank_number_the_one_that_calls_is_the_rank(tmp_path):
    """A launcher may have RANK in its environment from another one, and a rank's child has that of
    the rank.
    """
    job, writers = Job(tmp_path), {}
    other, mine = os.getppid(), os.getpid()
    pids = {"launcher": (0, other), "zero": (0, mine), "one": (1, mine), "child": (1, other)}
    for name, (rank, pid) in pids.items():
        writers[name] = written(tmp_path, name, rank, world=77)
        writers[name].words[1] = pid
    job.poll()
    for writer in (writers["zero"], writers["one"]):
        number = writer.enter(0, None, None, CallArgs("barrier", "WORLD", (0, 1)), {})
        writer.leave(number, None, None)
    job.poll()
    job.poll()
    assert [world.matching.matched for world in job.worlds.values()] == [1]


def test_the_count_of_a_report_is_that_of_all_worlds():
    job = Job()
    for number, words in enumerate(["barrier", "barrier broadcast:0", "barrier"]):
        job.worlds[0, 77, number] = world = JobWorld()
        for call in hand_made.program(words, words):
            world.matching.note(call)
    says = job.verdict(stalled=False).says
    assert says == "ok: 3 worlds: all 4 collectives and messages fitted"


@pytest.mark.parametrize(
    ("kinds", "reported"),
    [
        ([Ending.HUNG, Ending.RAISED], "raised: 1"),
        ([Ending.MISMATCH, Ending.DIED], "died: 1"),
        ([Ending.HUNG, Ending.MISMATCH], "mismatch: 1"),
        ([Ending.SLOW, Ending.HUNG], "hang: 1"),
        ([Ending.HUNG, Ending.HUNG], "hang: 0"),
    ],
    ids=str,
)
def test_of_several_worlds_in_trouble_that_of_the_cause_is_reported(kinds, reported, monkeypatch):
    """Ranks may hang because they wait for those of a world that has failed."""
    job = Job()
    told = {JobWorld(): Verdict(kind, str(number)) for number, kind in enumerate(kinds)}
    job.worlds |= {(0, number, 0): world for number, world in enumerate(told)}
    monkeypatch.setattr(JobWorld, "judged", lambda world, stalled: told[world])
    verdict = job.verdict(stalled=True)
    assert verdict.headline == reported
    (other,) = [one.headline for one in told.values() if one.headline != reported]
    assert f"another world: {other}" in verdict.says


def test_a_rank_killed_before_it_reported_its_cpp_calls_is_not_blamed(watched):
    """Rank 0 left early, so that rank 3 raised; its launcher was faster than what it had to say of
    the calls from C++.
    """
    gathered, reduced = _from_cpp("all_gather", 1), _from_cpp("all_reduce", 2)
    world, writers = watched(4)
    for writer, told in zip(writers, ([gathered], *[[gathered, reduced]] * 2, []), strict=True):
        answer = {"where": WHERE, "in_torch": True, "count": 0, "world": 1, "counts": []}
        answer |= {"collectives": told, "lost": False, "last": writer is writers[0]}
        writer.put(ANSWER, json.dumps(answer).encode())
    writers[0].set_ended()
    writers[3].put(RAISED, HAS_LOST)
    world.poll()
    verdict = world.verdict(stalled=True)
    assert (verdict.kind.verdict, [call.rank for call in verdict.guilty]) == ("hang", [0]), (
        verdict.says
    )


@pytest.mark.parametrize(("raises", "status"), [(True, "died"), (False, "returned")])
def test_exit_status_0_of_a_launcher_is_not_trusted_if_a_rank_raised(raises, status, tmp_path):
    job = Job(tmp_path)
    _, writer = (written(tmp_path, rank, rank, world=77) for rank in range(2))
    if raises:
        writer.put(RAISED, HAS_LOST)
    job.poll()
    (world,) = job.worlds.values()
    world.ranks[0].gone = (2, None)
    job.trust_launcher()
    assert world.states()[0].status == status


@pytest.mark.parametrize(
    ("file", "status"), [("/venv/site-packages/pool/worker.py", "returned"), ("train.py", "died")]
)
def test_a_pool_may_end_its_workers_with_any_status_and_a_program_may_not(file, status, tmp_path):
    """As Ray does. A rank that ends in the program's own line has failed, whatever the shell says."""
    job = Job(tmp_path)
    writer = written(tmp_path, 0, 0, n=1, world=77)
    writer.put(ANSWER, json.dumps({"where": [file, 7, "loop"], "count": 0}).encode())
    job.poll()
    (world,) = job.worlds.values()
    world.ranks[0].gone = (2, 1)
    job.trust_launcher()
    assert world.states()[0].status == status


@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"),
    reason="only Linux lets one wait for the end of a process that is not one's child",
)
def test_the_exit_status_of_a_rank_is_read_while_the_watcher_sleeps(watched):
    child = subprocess.Popen(["sleep", "60"])
    world, (writer,) = watched(1)
    rank = world.ranks[0]
    writer.words[1] = child.pid
    child.send_signal(signal.SIGKILL)
    for _ in range(300):
        if rank.gone is None:
            sleep(0.1, [rank])
    assert rank.gone[1] == -signal.SIGKILL
    child.wait(60)


def test_the_report_at_destroy_process_group_is_final_until_the_next_call(tmp_path):
    log = Log(ExitHooks(print), tmp_path)
    log.enter(0, None, None, CallArgs("barrier"), {})
    (file,) = tmp_path.glob("*.calls")
    with open(file, "rb+") as written:
        rank = RankProcess(written)
    rank.gone = 1, None
    for call, is_last in (("destroy_process_group", True), ("barrier", False)):
        log.enter(None, None, None, CallArgs(call), {})
        assert rank.facts().answer_is_current == is_last, call
    log.reset_after_fork()
    rank.log.close()


def test_worlds_that_one_process_joins_at_different_stores_are_different(tmp_path):
    """Also where it has another rank in the second one than its launcher said."""
    log, joins = Log(ExitHooks(print), tmp_path), CallArgs("init_process_group")
    for place, rank, size in (("a", 3, 4), ("b/0", 1, 2), ("b/1", 0, 3)):
        store = {"init_method": f"file:///{place}", "rank": rank, "world_size": size}
        log.enter(0, None, None, joins, store)
    log.reset_after_fork()
    logs = [LogReader(open(path, "rb+")) for path in tmp_path.glob("*.calls")]  # noqa: SIM115
    assert len({log.head()["world"] for log in logs}) == len(logs) == 3


def _from_cpp(name, seq):
    """What the Flight Recorder tells of a collective."""
    return [["0", "default_pg"], seq, f"gloo:{name}", [[3]], ["Float"], seq == 1, WHERE, ""]


COMPILES = """
import sys, threading, time, torch, torch.distributed as dist
from torch._C import _distributed_c10d

def dump():
    told = real()
    seen.append("torch._inductor" in sys.modules)
    other = threading.Thread(target=lambda: seen.append(torch._inductor.__name__))
    other.start()
    other.join()
    return told

seen = []
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(1))
real, _distributed_c10d._dump_fr_trace = _distributed_c10d._dump_fr_trace, dump
while len(seen) < 2:
    time.sleep(0.05)
_distributed_c10d._dump_fr_trace = real
print(seen[:2])
"""


@pytest.mark.slow  # imports the compiler
def test_dumping_the_flight_recorder_neither_imports_the_compiler_nor_hides_it(tmp_path):
    verdict, done = diagnose(tmp_path, *script(tmp_path, COMPILES))
    assert (verdict["verdict"], done.stdout) == ("ok", "[False, 'torch._inductor']\n"), done.stderr


@pytest.mark.slow  # a rare case
def test_a_partial_report_names_the_first_call_that_it_covers(tmp_path):
    """The parent looks once, at the end.

    The program is right as far as is known, and keeps its status.
    """
    command = [sys.executable, "-c", ASLEEP, "diagnose", "--", *program("many_calls", "2")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=120)
    assert "partial: " in done.stderr
    assert "calls went by unseen; this speaks of its calls from #" in done.stderr
    assert done.returncode == 0


ASLEEP = """
import collectives.diagnosis.run as diagnose
watch = diagnose._watch
diagnose._watch = lambda process, *rest: watch(process, *rest) if process.wait() is not None else None
from collectives.cli import main
main()
"""


@linux
def test_grandchildren_without_a_parent_an_output_or_our_environment_are_ended_too(tmp_path):
    daemon = f"""
        import os, subprocess, sys
        code = "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(300)"
        if os.fork() == 0:
            os.setsid()
            subprocess.Popen([sys.executable, "-c", code], env={{}}, stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
            os._exit(0)
        os.wait()
        while not os.path.exists({str(tmp_path / "pid")!r}):
            pass
    """
    verdict, _ = diagnose(tmp_path, *script(tmp_path, daemon))
    assert verdict["verdict"] == "not-distributed"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


@pytest.mark.slow  # as a rank that could not be watched, below
def test_a_program_without_disk_space_for_its_log_runs_unwatched(tmp_path):
    verdict, done = diagnose(
        tmp_path, "sh", "-c", f"ulimit -f 100; exec {' '.join(program('healthy'))}"
    )
    assert verdict["verdict"] == "not-distributed"
    assert "could not be watched: OSError" in verdict["says"]
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("breaks", ["at once", "midway"])
def test_a_rank_that_could_not_be_watched_is_not_blamed(breaks, tmp_path):
    one = written(tmp_path, 0, 0, world=7)
    one.enter(0, None, None, CallArgs("all_reduce", "WORLD", (0, 1)), {})
    if breaks == "midway":
        written(tmp_path, 1, 1, world=7)
    job = Job(tmp_path)
    time.sleep(0.15)  # what was just called is held back
    job.poll()
    assert job.verdict(stalled=True).kind.verdict in ("hang", "slow")
    (tmp_path / f"{os.getpid()}.unwatched").write_text("OSError: no room")
    assert job.verdict(stalled=True).kind.verdict == "ok"
    assert job.notes() == [f"process {os.getpid()} could not be watched: OSError: no room"]


@linux
def test_disk_space_for_a_log_is_reserved_before_the_first_write(tmp_path):
    """To write memory for which the disk has no room would end the process by SIGBUS."""
    with open(tmp_path / "log", "wb+") as file:
        Writer(file, 0, 1)
        assert os.fstat(file.fileno()).st_blocks * 512 >= SIZE


def test_a_missing_temporary_folder_is_bad_usage(monkeypatch):
    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(ValueError, match="No space left on device"):
        diagnosing.run(["true"])


@pytest.mark.slow
def test_a_verdict_that_cannot_be_written_is_an_error_on_stderr(tmp_path):
    def run(file, *command):
        arguments = [*DIAGNOSE, "--json", str(file), "--", *command]
        done = subprocess.run(arguments, capture_output=True, text=True, env=ENVIRON, timeout=100)
        assert f"{file} cannot be written" in done.stderr
        return done.returncode

    assert run(tmp_path, "touch", str(tmp_path / "begun")) == 2
    assert not (tmp_path / "begun").exists()
    if Path("/dev/full").exists():
        assert run("/dev/full", "true") == 2


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
    ids=lambda number: number.name,
)
def test_a_signal_that_ends_diagnose_also_ends_the_program(number, tmp_path, temporary):
    begun = tmp_path / "begun"
    text = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(300)"
    process = subprocess.Popen(
        [*DIAGNOSE, "--", *script(tmp_path, text)],
        env=ENVIRON,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    wait_until(begun.exists)
    process.send_signal(number)
    said = "\ninterrupted\n" if number == signal.SIGINT else ""
    assert process.communicate(timeout=60)[1] == said
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:  # its folder is all that stays
        (folder,) = temporary.iterdir()
        shutil.rmtree(folder)


@pytest.mark.slow  # `launch` starts its ranks by a fork server, and most other tests by fork
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_ranks_are_seen_however_they_are_started(start, tmp_path):
    verdict, _ = diagnose(tmp_path, *program("skip", "3", start), hang_after=8)
    assert [one["rank"] for one in verdict["guilty"]] == [2], verdict["says"]
