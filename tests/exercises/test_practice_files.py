"""The checker reads a file as Python does, and says of a wrong one what is wrong and no more.

Only worlds of two ranks: what is tried here does not depend on their number.
"""

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest

from collectives.cli import app
from collectives.course.practice import board, checker, progress, registry, world
from collectives.course.practice.answer import block, tables
from collectives.course.practice.checker import ExerciseVerdict, try_program
from collectives.course.practice.exercise import ExerciseCase
from collectives.course.practice.process_group import Sent
from collectives.course.practice.result import outcome
from collectives.course.rich_console import console
from collectives.recording.ending import Ending


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch):
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: replace(find(name), sizes=(2,)))


@pytest.fixture
def told(tmp_path):
    def tried(text, name="neighbours", **options):
        file = tmp_path / f"{name}.py"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return try_program(name, str(file), **options)

    return tried


RIGHT = "def neighbours(rank, n):\n    return (rank - 1) % n, (rank + 1) % n\n"
AS_PEOPLE_HAVE_THEM = """from __future__ import annotations
import dataclasses, pickle, beside
from collectives import practice

@dataclasses.dataclass
class Pair:
    left: int
    right: int

def neighbours(rank, n):
    pair = Pair((rank - 1) % n, (rank + beside.STEP) % n)
    pair = pickle.loads(pickle.dumps(pair))
    return pair.left, pair.right

practice("neighbours", neighbours)  # left over from a notebook
if __name__ == "__main__":
    raise SystemExit("it is no main program")
"""


def test_a_file_is_read_as_python_reads_it(told, tmp_path):
    (tmp_path / "beside.py").write_text("STEP = 1")
    assert told(b"\xef\xbb\xbf" + AS_PEOPLE_HAVE_THEM.encode()).is_solved
    latin = f"# -*- coding: latin-1 -*-\n# Ein schöner Ring\n{RIGHT}"
    assert told(latin.encode("latin-1")).is_solved
    assert {path.name for path in tmp_path.iterdir()} == {"beside.py", "neighbours.py"}


@pytest.mark.slow  # every rank imports them
def test_imports_that_load_operators_of_torch_are_no_calls(told):
    imports = "import torch.distributed.tensor\nfrom torch.distributed.fsdp import fully_shard\n"
    assert told(imports + RIGHT).is_solved


TOLD = {
    "an empty file": ("", "todo", "there is no function `neighbours` in neighbours.py."),
    "another name": ("def neighbors():\n    pass\n", "todo", "there is no function `neighbours` in"),
    "no function": ("neighbours = 3\n", "todo", "`neighbours` in neighbours.py is 3, no function."),
    "too few parameters": ("def neighbours():\n    pass\n", "raised", "raised TypeError: neighbours()"),
    "an exception without a text": (
        "class Odd(Exception):\n    def __str__(self):\n        1 / 0\n\n"
        "def neighbours(rank, n):\n    raise Odd\n",
        "raised",
        "raised Odd: (its `__str__` raises ZeroDivisionError)",
    ),
    "an abort": (
        "import os\n\ndef neighbours(rank, n):\n    os.abort()\n",
        "died",
        "On gloo this may be a message that has more bytes than its receive's tensor.",
    ),
    "a death and a wrong value": (
        "import os, time\n\ndef neighbours(rank, n):\n    if rank:\n        return 7, 7\n"
        "    time.sleep(0.3)\n    os._exit(7)\n",
        "died",
        "rank 0 died: it ended its process with exit status 7",
    ),
    "a long value": (
        "def neighbours(rank, n):\n    return 'x' * 50_000_000, rank\n",
        "wrong",
        "every rank: it returned (a str, an int), not (an int, an int).",
    ),
    "a long exception": (
        "def neighbours(rank, n):\n    raise ValueError('x' * 50_000_000)\n",
        "raised",
        "... (50000000 characters)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TOLD)
def test_what_is_wrong_is_told(kind, told):
    program, kind_of_verdict, words = TOLD[kind]
    verdict = told(program)
    assert (verdict.kind, words in verdict.says) == (kind_of_verdict, True), verdict
    assert len(json.dumps(vars(verdict))) < 3000


SHIFT = """import torch
import torch.distributed as dist

def shift(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x)
    {}
    return received
"""


def test_every_work_that_nobody_waits_for_is_told_with_its_line(told):
    calls = "dist.isend(x, (rank + 1) % n)\n    {}dist.irecv(received, (rank - 1) % n){}"
    neither = SHIFT.format(calls.format("works = ", "").replace("dist.isend", "sent = dist.isend"))
    assert told(neither, "shift_right").says == (
        "every rank: it does not wait for its isend in line 7 and its irecv in line 8: "
        "call `wait()` of each Work."
    )
    # The Work of the isend is gone, and that of the irecv may get its id. It may hang, too.
    dropped = told(SHIFT.format(calls.format("", ".wait()")), "shift_right")
    assert "it does not wait for its isend in line 7: call `wait()` of the Work." in dropped.says


def test_messages_may_be_demanded():
    sent, case = Sent(), ExerciseCase("one run", (1,), 2, least_messages=1)
    found = outcome(lambda x: 2, ["x"], case, sent, bool)
    assert found["problem"] == "it sent 0 messages; at least 1 is needed"


def test_a_rank_that_has_finished_the_case_has_returned(told):
    early = "if rank:\n        dist.recv(received, 0)\n        dist.send(x, 0)\n        return received\n"
    once_more = "    dist.send(x, 1)\n    dist.recv(received, 1)\n    dist.recv(received, 1)"
    verdict = told(SHIFT.format(early + once_more), "shift_right")
    assert (verdict.kind, verdict.says) == ("hung", "it hangs: after 2 s rank 0 is still waiting.")
    assert verdict.lines[:2] == [
        "rank 0 waits in line 13: dist.recv(received, 1)",
        "rank 1 has returned",
    ]
    assert "circular" not in str(verdict.lines)


def test_a_rank_that_works_is_slow_and_does_not_hang(told, monkeypatch):
    monkeypatch.setattr(world, "SLOW_AFTER", 3.0)
    reports = []
    work = "if rank:\n        while True:\n            pass\n    dist.recv(received, 1)"
    verdict = told(SHIFT.format(work), "shift_right", report=reports.append)
    assert verdict.kind == "slow"
    assert verdict.says.startswith("rank 1 did not finish in time")
    assert verdict.lines[0] == "rank 0 waits in line 10: dist.recv(received, 1)"
    assert "2 ranks, case 1, slow, still waiting for rank 1" in reports


def test_json_is_json_whatever_the_program_prints(tmp_path, monkeypatch, capfd):
    here = progress.start(tmp_path)
    prints = f"import os\nprint('debug')\nos.system('echo debug')\n{RIGHT}"
    here.file(registry.find("neighbours")).write_text(prints)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        app(["practice", "neighbours", "--json"])
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["kind"] == "solved"
    assert err.count("debug") == 4


def test_a_table_fits_in_80_columns():
    value = "[" + ", ".join(["123456789"] * 5) + "]"
    rows = [{"given": {"x": value, "root": "0"}, "results": {"returned": (value, "1" * 200)}}] * 2
    out = console()
    with out.capture() as text:
        for table in tables(ExerciseVerdict("wrong", rows=rows)):
            out.print(table)
    lines = text.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["rank", "x", "root"]
    assert lines[1].split(maxsplit=1)[1].split("]")[0] + "]" == value


def test_the_rule_is_told_with_what_is_wrong():
    out, exercise = console(), registry.find("early_stop")
    with out.capture() as text:
        out.print(block(exercise, ExerciseVerdict("wrong", "every rank: the result is wrong.")))
    assert "The rule: write `train` with all_reduce alone." in text.get()


def test_a_rank_that_is_ahead_and_wrong_there_does_not_end_the_case_before(tmp_path, monkeypatch):
    """The other would leave, and this one wait for it until the world is given up."""
    two = board.Board(tmp_path / "board", 2)

    def rank_0_goes_on(seconds):
        two.places[0].finished = two.places[0].wrong = 2

    monkeypatch.setattr(board.time, "sleep", rank_0_goes_on)
    assert two.finish(1, False)
    assert not two.finish(1, False)


STOPS = """import os, signal, threading
import torch.distributed as dist

if dist.get_rank() == 1:
    threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGSTOP)).start()
"""
STOPPED = ["shift_right", "all_reduce_from_two_calls", "sub_groups", "overlap", "a_checkpoint"]


def test_an_exercise_is_also_found_by_its_file_in_a_readers_folder():
    assert registry.find("02_neighbours.py") == registry.find("neighbours")


@pytest.mark.slow
@pytest.mark.parametrize("name", STOPPED)
def test_a_rank_that_is_stopped_for_long_does_not_hang(name, told):
    """As on a machine that has no time for it."""
    stopped = []

    def go_on_later():
        while not stopped:
            stopped[:] = [
                process
                for process in map(
                    psutil.Process, (c.pid for c in multiprocessing.active_children())
                )
                if process.status() == psutil.STATUS_STOPPED
            ]
            time.sleep(0.01)
        time.sleep(2 * world.HANGS_AFTER)
        stopped[0].resume()

    waiting = threading.Thread(target=go_on_later)
    waiting.start()
    verdict = told(STOPS + (registry.find(name).folder / "solution.py").read_text(), name)
    waiting.join()
    assert verdict.is_solved, verdict


def test_ranks_that_stand_still_outside_the_file_are_tried_again(told, monkeypatch):
    real, worlds = checker.run_world, []

    def run_world(*args):
        ended = real(*args)
        if not worlds:
            ended.error = world.Stuck(Ending.SLOW, [])
            for place in ended.board.places:
                place.line = 0
        worlds.append(ended)
        return ended

    monkeypatch.setattr(checker, "run_world", run_world)
    assert told(RIGHT).is_solved
    assert len(worlds) == 2


@pytest.mark.slow
def test_solutions_pass_beside_eight_busy_processes(monkeypatch):
    """In worlds of four: slowness is never taken for a hang.

    Three of them: all were tried once, in worlds of all sizes, and disturb whatever runs beside
    them for twenty minutes.
    """
    monkeypatch.undo()
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: replace(find(name), sizes=(4,)))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        verdicts = {
            name: try_program(name, str(registry.find(name).folder / "solution.py"))
            for name in ("neighbours", "overlap", "all_reduce_as_a_ring")
        }
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert {name: v for name, v in verdicts.items() if not v.is_solved} == {}
