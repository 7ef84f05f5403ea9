"""The lesson `start` is right: its programs print what it shows, started in the way that it says."""

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lesson_rules import Source
from processes import free_port, started

from collectives.backends import availability as backends
from collectives.lesson import files, mistakes
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.outcome import RankOutcome
from collectives.lesson.runner import run_and_print
from collectives.lesson.show import Display
from collectives.lesson.step import mistake, needs

PATH = Path(files.find("start"))
LESSON = Source(CHAPTERS["start"], "start", PATH.read_text(encoding="utf-8"))
STEPS = {step.__name__: step for step in files.load(PATH).STEPS}
FRESH = [name for name, step in STEPS.items() if hasattr(step, "world")]

PROGRAMS = dict(
    re.findall(r"Save\s+this\s+as\s+`([^`]+)`:\n\n```python\n(.*?)^```$", LESSON.prose, re.M | re.S)
)
SHOWN = {
    command: lines.splitlines()
    for command, lines in re.findall(
        r"^```console\n\$ (.*?)\n(.*?)^```$",
        re.sub(r"^  ", "", LESSON.prose, flags=re.M),
        re.M | re.S,
    )
}
MARKS = {"mpiexec": [pytest.mark.slow], "python": [pytest.mark.slow], "torchrun": []}
if backends.missing_for_mpi() is not None:
    MARKS["mpiexec"].append(pytest.mark.skip(reason="needs the extra collectives[mpi]"))


# The programs that the reader saves.


def test_every_program_is_started_and_every_command_has_its_program():
    assert sorted(PROGRAMS) == sorted(
        word for command in SHOWN for word in command.split() if word.endswith(".py")
    )


def test_the_first_program_has_fifteen_lines():
    assert len(PROGRAMS["hello.py"].splitlines()) == 15


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_ends_with_a_barrier_and_destroys_its_group_in_the_ranks(name):
    (main,) = re.findall(r"^def main\(.*?(?=^\S)", PROGRAMS[name] + "\nend", re.M | re.S)
    *_, before, last = main.strip().splitlines()
    assert before.split("#")[0].strip() == "dist.barrier()"
    assert last.strip() == "dist.destroy_process_group()"


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=MARKS[command.split()[0]]) for command in SHOWN],
    ids=[" ".join(command.split()[:2]) for command in SHOWN],
)
def test_a_command_prints_what_the_lesson_shows(command, tmp_path):
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    with started(command, tmp_path) as process:
        stdout, stderr = process.communicate(timeout=100)
    shown = SHOWN[command]
    if shown[0] == "...":  # the end of a traceback
        assert process.returncode == 1
        assert stderr.splitlines()[-len(shown) + 1 :] == shown[1:]
    else:
        assert process.returncode == 0, stderr
        # subtle: torchrun runs Python unbuffered. That writes a line and its end one after the other,
        # and another rank may come in between.
        lines = re.sub(r"\](?=.)", "]\n", stdout).splitlines()
        assert sorted(filter(None, lines)) == shown, stderr


ENDED = """
import os, sys
import torch
import torch.distributed as dist
if "before" in sys.argv:
    import torch.distributed.nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.optim.SGD([torch.ones(1)])
dist.destroy_process_group()
threads = [open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")]
print("pt_gloo_runloop\\n" in threads)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
@pytest.mark.parametrize(("when", "left"), [("before", "False"), ("within", "True")])
def test_an_optimizer_made_in_the_group_keeps_the_threads_of_gloo(when, left):
    """If "within" fails, torch has mended it: then a pitfall of the lesson goes."""
    command = [sys.executable, "-c", ENDED, when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == f"{left}\n", done.stderr


TOLD = """\
import json, os, sys
import torch.distributed as dist
names = sys.argv[1:]
told = {name: os.environ.get(name) for name in names}
print(json.dumps(told | {"launched": dist.is_torchelastic_launched()}))
"""


@pytest.mark.slow
def test_torchrun_tells_a_rank_what_the_table_says(tmp_path):
    """Two times torchrun on one machine are like two machines."""
    rows = re.findall(
        r"^\| `([A-Z_]+)` \|.*\| (?:the word )?\"?([^ \"]+)\"? \|$", LESSON.prose, re.M
    )
    assert len(rows) == 8
    (tmp_path / "told.py").write_text(TOLD)
    port = free_port()
    names = " ".join(name for name, _ in rows)
    command = f"torchrun --nnodes 2 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {port}"
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(
                started(f"{command} --node-rank {node} told.py {names} NODE_RANK", tmp_path)
            )
            for node in range(2)
        ]
        printed = [node.communicate(timeout=100)[0] for node in nodes]
    told = [json.loads(line) for text in printed for line in text.splitlines()]
    (third,) = (one for one in told if one["RANK"] == "3")
    expected = dict(rows) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    assert third == expected | {"NODE_RANK": None, "launched": True}


# The steps in ranks that have no group yet.


@pytest.mark.parametrize("name", FRESH)
def test_a_step_in_fresh_ranks_is_proved(name):
    outcomes, results = mistakes.run_isolated(STEPS[name])
    assert outcomes == [RankOutcome("returned")] * 4
    assert len(results) == 4


def test_a_step_in_fresh_ranks_chooses_its_backend_itself():
    outcomes, _ = mistakes.run_isolated(STEPS["meet_by_environment"], backend="nccl", device="cuda")
    assert outcomes == [RankOutcome("returned")] * 4


def test_a_step_in_fresh_ranks_is_skipped_in_a_world_of_another_size(capsys):
    status, reason = run_and_print(STEPS["meet_by_environment"], Display(), nproc=2)
    assert (status, reason) == (3, "it starts 4 ranks of its own: leave nproc out")
    assert capsys.readouterr().out == f"meet_by_environment: skipped: {reason}\n"


def test_the_proof_notices_an_init_that_does_not_wait():
    step = STEPS["init_waits_for_all"]

    @needs(ranks=4, fresh=True)
    def sabotaged(rank, world_size, device):
        class Late(dist.TCPStore):
            def wait(self, keys):
                super().wait(keys)
                time.sleep(1)

        dist.TCPStore = Late
        init = dist.init_process_group
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group = lambda backend: init(backend, **alone)
        step(rank, world_size, device)

    outcomes, _ = mistakes.run_isolated(sabotaged)
    wrong = RankOutcome("wrong", "got False, should be True")
    assert outcomes == [wrong, wrong, wrong, RankOutcome("returned")]


# What the pitfalls say.


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ > "2.14", reason="said of torch 2.13")
def test_under_torchrun_nobody_starts_a_store_at_a_port_of_ones_own():
    port = free_port()

    @mistake("hangs", ranks=2, fresh=True)
    def own_port(rank, world_size, device):
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

    outcomes, _ = mistakes.run_isolated(own_port)
    assert [outcome.kind for outcome in outcomes] == ["hung"] * 2


def test_the_file_is_removed_by_the_last_of_all_ranks_and_else_keeps_what_is_in_it(tmp_path):
    file = tmp_path / "meet"
    stores = [dist.FileStore(str(file), 2) for _ in range(2)]
    stores[0].set("address", "old")
    stores.pop()
    assert file.exists()
    stores.pop()
    assert not file.exists()
    dist.FileStore(str(file), 2).set("address", "old")  # and this job is killed
    assert dist.FileStore(str(file), 2).get("address") == b"old"
