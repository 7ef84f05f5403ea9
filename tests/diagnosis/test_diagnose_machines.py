"""`collectives diagnose` on several machines: here two torchruns of one job, of which neither sees
the other's ranks.
"""

import dataclasses
import json
import subprocess
import sys
import threading
import zlib

import pytest
import torch.distributed as dist
from diagnosing import DIAGNOSE, ENVIRON, TORCHRUN
from processes import free_port

from collectives.diagnosis import run as diagnose
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.rules.unmatched import Unmatched
from collectives.diagnosis.watch.across_nodes import NodeExchange
from collectives.diagnosis.watch.job_world import JobWorld
from collectives.diagnosis.watch.world import RankProcess
from collectives.recording.call import Call, TensorKind
from collectives.recording.call_log import Writer
from collectives.recording.ending import Ending

PROGRAM = """
import os, sys, time
if sys.argv[1] == "healthy" and os.environ["GROUP_RANK"] == "1":
    time.sleep(8)
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, x, what = dist.get_rank(), torch.ones(4), sys.argv[1]
for _ in range(5):
    dist.all_reduce(x)
if what == "healthy":
    time.sleep(2.5 * rank)
if what == "skips" and rank == 3:
    dist.recv(x, src=0)  # skips
dist.all_reduce(x)  # all
dist.destroy_process_group()
print(rank, "done")
"""
LINES = {line.partition("# ")[2]: number for number, line in enumerate(PROGRAM.splitlines(), 1)}


def on_two_machines(tmp_path, what):
    """The verdict of each machine, and what it printed."""
    (tmp_path / "train.py").write_text(PROGRAM)
    port = f"--master-addr 127.0.0.1 --master-port {free_port()}"
    started = []
    for node in range(2):
        job = f"--nnodes 2 --nproc-per-node 2 --node-rank {node} {port}".split()
        torchrun = [*TORCHRUN[:3], *job, str(tmp_path / "train.py"), what]
        options = f"--hang-after 3 --timeout 300 --json {tmp_path}/{node}.json".split()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*DIAGNOSE, *options, "--", *torchrun]
        started.append(subprocess.Popen(command, env=ENVIRON, **pipes))
    printed = [process.communicate(timeout=400) for process in started]
    return [
        (json.loads((tmp_path / f"{node}.json").read_text()), *printed[node]) for node in range(2)
    ]


@pytest.mark.slow  # two torchruns; what they exchange is tested below
def test_each_machine_names_the_rank_and_the_line_wherever_it_runs(tmp_path):
    for verdict, _, stderr in on_two_machines(tmp_path, "skips"):
        assert len(verdict["guilty"]) == 2, verdict["says"]
        guilty, _ = verdict["guilty"]  # or the rank that does not send to it
        found = verdict["verdict"], guilty["rank"], guilty["line"], guilty["call"]
        assert found == ("hang", 3, LINES["skips"], "recv"), verdict["says"]
        assert [rank["rank"] for rank in verdict["ranks"]] == [0, 1, 2, 3]
        assert verdict["says"] in stderr


@pytest.mark.slow  # two torchruns; a healthy job of one is in test_diagnose.py
def test_a_healthy_job_is_not_ended_where_one_machine_starts_late_and_ranks_compute_for_long(
    tmp_path,
):
    for node, (verdict, stdout, stderr) in enumerate(on_two_machines(tmp_path, "healthy")):
        assert (verdict["verdict"], verdict["status"]) == ("ok", 0), verdict["says"]
        # Two processes write: print() sends the text and the end of its line one by one.
        assert sorted(stdout) == sorted(f"{2 * node} done\n{2 * node + 1} done\n"), stdout
        assert "hang" not in stderr
        if node == 0:
            assert "ranks 2,3  not joined yet, on a machine of which nothing is heard" in stderr


@pytest.fixture
def machines():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = [NodeExchange() for _ in range(3)]
    for number, machine in enumerate(found):
        for _ in range(10):  # it tries again where the system is too busy, as it does in a job
            machine.open(("127.0.0.1", store.port), str(number))
            machine.close()
            if machine.store is not None:
                break
    yield found
    del store


def rank(*calls, status=Ending.RUNNING):
    answer = {"where": ["train.py", len(calls), ""]}
    return {"state": {"status": status}, "answer": answer, "calls": calls}


def test_nothing_is_exchanged_while_no_machine_sees_a_hang(machines):
    for machine in machines:
        assert not machine.exchange(lambda: pytest.fail("sent"), send=False)


def test_states_from_before_the_last_progress_do_not_count(machines):
    one, other, _ = machines
    one.exchange(lambda: {0: rank("a")}, send=True)
    other.exchange(lambda: {1: rank()}, send=False)  # it answers
    one.exchange(lambda: {0: rank("a")}, send=False)
    assert set(one.others) == {1}
    one.exchange(lambda: {0: rank("a", "b")}, send=True)
    assert one.others == {}
    other.exchange(lambda: {1: rank(status=Ending.RETURNED)}, send=True)
    one.exchange(lambda: {0: rank("a", "b", "c")}, send=True)
    assert set(one.others) == {1}, "a rank that has ended does not go on"


def test_an_exchange_alone_is_no_progress(machines):
    one, other, _ = machines
    for _ in range(4):
        assert not one.exchange(lambda: {0: rank("a")}, send=True)
        assert not other.exchange(lambda: {1: rank("a")}, send=True)
    other.exchange(lambda: {1: rank("a", "b")}, send=True)
    assert one.exchange(lambda: {0: rank("a")}, send=True)


def test_the_verdict_of_one_machine_is_the_verdict_of_all(machines):
    call = Call("recv", rank=3, number=1, tensors=(TensorKind("float32", (4,)),))
    lines = {3: ("in", "x:1")}
    verdict = Verdict(Ending.HUNG, "rank 3", (call,), (0, 3), "WORLD", 5, lines=lines)
    machines[0].publish(verdict, patience=0.1)
    for machine in machines[1:]:
        machine.exchange(dict, send=False)
        assert dataclasses.asdict(machine.verdict) == dataclasses.asdict(verdict)


def packed(message) -> bytes:
    return zlib.compress(json.dumps(message).encode())


MESSAGE = {"clock": 0, "version": 1, "ranks": {}, "acknowledged": {}}


def test_a_message_that_nobody_of_ours_sent_counts_as_not_sent():
    malformed = {
        "no zlib": b"hello",
        "cut off": packed(MESSAGE)[:-3],
        "a bomb": zlib.compress(bytes(2**26 + 1)),
        "no JSON": zlib.compress(b"[" * 10**5),
        "no table": packed(3),
        "nothing in it": packed({}),
        "a clock that is text": packed(MESSAGE | {"clock": "noon"}),
        "ranks that are a number": packed(MESSAGE | {"ranks": 1}),
        "a rank without a state": packed(MESSAGE | {"ranks": {"0": {}}}),
        "a state that is a number": packed(MESSAGE | {"ranks": {"0": {"state": {"status": 1}}}}),
        "no verdict": packed(MESSAGE | {"verdict": {"kind": "hang"}}),
        "guilty is a number": packed(
            MESSAGE | {"verdict": dataclasses.asdict(Verdict(Ending.HUNG, "x")) | {"guilty": 3}}
        ),
    }
    for name, message in malformed.items():
        store, machine = dist.HashStore(), NodeExchange()
        machine.store, machine.name = store, "0"
        store.set("collectives/diagnose/names", "1 ")
        store.set("collectives/diagnose/1", message)
        assert not machine.exchange(lambda: {0: rank("a")}, send=True), name
        assert (machine.store is store, machine.others, machine.verdict) == (True, {}, None), name


def test_machines_that_nobody_of_ours_named_count_as_not_named():
    store, machine = dist.HashStore(), NodeExchange()
    machine.store = store
    lines = ["hello", "[]", "{}", '{"machine": "x", "ranks": 3}', '{"machine": "b", "ranks": [2]}']
    store.set("collectives/diagnose/machines", "\n".join([*lines, ""]))
    machine.find_machines([0])
    assert set(machine.machines) == {0, 2}


def test_ranks_on_which_no_verdict_can_be_given_count_as_not_sent(tmp_path):
    with open(tmp_path / "1.calls", "wb+") as file:
        Writer(file, 0, 2)
        world = JobWorld()
        world.ranks[0] = RankProcess(file, tmp_path)
        nothing = dataclasses.astuple(Unmatched())
        good = {"state": {"status": "running"}, "answer": {}, "unmatched": nothing}
        for field, value in [
            ("state", {"status": "running", "where": 3}),
            ("state", {"colour": "red"}),
            ("answer", {"world": 1, "collectives": [[1, 2]]}),
            ("answer", 7),
            ("unmatched", [[7], *nothing[1:]]),
            ("unmatched", None),
        ]:
            world.update_elsewhere({1: good | {"clock_ahead": 0}}, "")
            assert set(world.elsewhere) == {1}
            world.update_elsewhere({1: good | {"clock_ahead": 0, field: value}}, "")
            assert world.elsewhere == {}, (field, value)


def test_a_store_that_has_gone_ends_the_exchange_without_an_error():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    machine = NodeExchange()
    machine.open(("127.0.0.1", store.port), "0")
    machine.opening.join()
    del store
    assert not machine.exchange(lambda: {0: rank("a")}, send=True)
    machine.publish(Verdict(Ending.HUNG, "rank 1"), patience=0.1)
    assert machine.store is None


@pytest.mark.slow  # it waits
def test_a_store_that_is_never_found_leaves_no_thread_behind(monkeypatch):
    """Such a thread sometimes kills the process by a signal when the interpreter ends."""
    before = set(threading.enumerate())
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, **place}.items():
        monkeypatch.setenv(name, str(value))
    program = "import torch.distributed as dist; dist.init_process_group('gloo')"
    verdict, _ = diagnose.run([sys.executable, "-c", program], hang_after=2, timeout=60)
    assert (verdict.kind.verdict, set(threading.enumerate()) - before) == ("hang", set()), (
        verdict.says
    )
