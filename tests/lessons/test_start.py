"""The lessons `start` and `launching` are right: their programs print what they show, started in the
way that they say.
"""

import contextlib
import json
import re
import sys
import time

import pytest
import torch
import torch.distributed as dist
from lesson_source import Source
from our_backends import needs_mpi
from processes import finished, free_port, started
from repository import ROOT

from collectives.backends import claims
from collectives.course import files, mistakes
from collectives.course.marks import mistake, needs
from collectives.course.outcome import RankOutcome
from collectives.course.runner import run_and_print
from collectives.course.show import Display
from collectives.launcher.world import World
from collectives.recording.ending import Ending

NAMES = ("start", "launching")
PROSE = "\n\n".join(Source(name).prose for name in NAMES)
STEPS = {step.__name__: step for name in NAMES for step in files.load(files.find(name)).STEPS}

# "Save this as `spawned.py`", and the program.
PROGRAMS = dict(
    re.findall(
        r"Save\s+(?:this|it)\s+as\s+`([^`]+)`[^`]*:\n\n```python\n(.*?)^```$", PROSE, re.M | re.S
    )
)
SHOWN = dict(re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", PROSE, re.M | re.S))
# The program that comes first, as a reader starts it first.
QUICK = "torchrun --nproc-per-node 2 first_training.py"


# The programs that the reader saves.


def test_the_first_training_is_the_file_in_examples():
    program = (ROOT / "examples" / "first_training.py").read_text("utf-8")
    assert program.rpartition('"""')[2].strip() == PROGRAMS["first_training.py"].strip()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            marks=[pytest.mark.slow] * (command != QUICK)
            + [needs_mpi] * command.startswith("mpiexec"),
        )
        for command in SHOWN
    ],
    ids=[" ".join(command.split()[:2]) for command in SHOWN],
)
def test_a_command_prints_what_the_lesson_shows(command, tmp_path):
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    done = finished(command, cwd=tmp_path)
    shown = SHOWN[command].splitlines()
    if shown[0] == "...":  # the end of a traceback
        assert done.returncode == 1
        if not claims.holds(">=2.11", torch.__version__):  # it names the error, and gives no words
            shown = [line.partition(": ")[0] for line in shown]
        assert done.stderr.splitlines()[-len(shown) + 1 :] == shown[1:]
    else:
        assert done.returncode == 0, done.stderr
        # subtle: torchrun runs Python unbuffered. That writes a line and its end one after the other,
        # and another rank may come in between.
        lines = re.sub(r"(?<=.)(?=rank \d)", "\n", done.stdout).splitlines()
        assert sorted(filter(None, lines)) == shown, done.stderr


@pytest.mark.slow
@needs_mpi
def test_without_init_method_mpi_is_not_asked_as_the_lesson_says(tmp_path):
    program = PROGRAMS["mpi.py"].replace('init_method="mpi://"', "rank=0, world_size=0")
    (tmp_path / "mpi.py").write_text(program)
    done = finished("mpiexec -n 1 python mpi.py", cwd=tmp_path)
    (said,) = re.findall(r"you get `(ValueError: Error init.*?)`", PROSE.replace("\n", " "))
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.slow
def test_without_torchrun_the_program_fails_as_the_lesson_says(tmp_path):
    (tmp_path / "first_training.py").write_text(PROGRAMS["first_training.py"])
    done = finished("python first_training.py", cwd=tmp_path)
    assert f"`{done.stderr.splitlines()[-1]}`" in " ".join(PROSE.split())


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
    done = finished(["python", "-c", ENDED, when])
    assert done.stdout == f"{left}\n", done.stderr


TOLD = """\
import json, os, sys
import torch.distributed as dist
names = sys.argv[1:]
told = {name: os.environ.get(name) for name in names}
line = json.dumps(told | {"launched": dist.is_torchelastic_launched()})
sys.stdout.write(line + "\\n")  # at once: torchrun's Python does not buffer, and the ranks share a pipe
"""


@pytest.mark.slow
def test_torchrun_tells_a_rank_what_the_table_says(tmp_path):
    """Two times torchrun on one machine are like two machines."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|.*\| (?:the word )?\"?([^ \"]+)\"? \|$", PROSE, re.M)
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


def test_a_step_in_fresh_ranks_chooses_its_backend_itself():
    step = STEPS["meet_by_environment"]
    on_nccl = World(4, "nccl", "cuda", asked=frozenset({"backend"}))
    outcomes, _ = mistakes.run_isolated(step, mistakes.own_world(step, on_nccl))
    assert outcomes == [RankOutcome(Ending.RETURNED)] * 4


def test_a_step_in_fresh_ranks_is_skipped_in_a_world_of_another_size(capsys):
    status, reason = run_and_print(STEPS["meet_by_environment"], Display(), World.chosen(2))
    assert (status, reason) == (3, "it starts 4 ranks of its own: leave nproc out")
    assert capsys.readouterr().out == f"meet_by_environment: skipped: {reason}\n"


def test_the_proof_notices_an_init_that_does_not_wait():
    step = STEPS["init_waits_for_all"]

    @needs(ranks=4, fresh=True)
    def sabotaged(rank, world_size, device):
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(5 * seconds)  # on a busy machine a rank may be late
        init = dist.init_process_group
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group = lambda backend: init(backend, **alone)
        step(rank, world_size, device)

    outcomes, _ = mistakes.run_isolated(sabotaged, mistakes.own_world(sabotaged))
    wrong = RankOutcome(Ending.WRONG, "got False, should be True")
    assert outcomes == [wrong, wrong, wrong, RankOutcome(Ending.RETURNED)]


# What the pitfalls say.


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ > "2.14", reason="said of torch 2.13")
def test_under_torchrun_nobody_starts_a_store_at_a_port_of_ones_own():
    port = free_port()

    @mistake("hangs", ranks=2, fresh=True)
    def own_port(rank, world_size, device):
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

    outcomes, _ = mistakes.run_isolated(own_port, mistakes.own_world(own_port))
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
