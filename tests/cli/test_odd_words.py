"""Commands lose nothing that they measured, print no traceback and obey no control character."""

import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from hand_made import cell
from processes import shell_environment
from typer.testing import CliRunner

from collectives.bench import bus
from collectives.cli import app
from collectives.matrix import run as matrix_run

needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has a file that is always full"
)

LONG = "x" * 300  # longer than a name may be on any file system

FILES = {
    "exits.py": "raise SystemExit(7)\n",
    "without_steps.py": "x = 1\n",
    "partial.py": "import functools\nSTEPS = [functools.partial(print)]\n",
    "deep.toml": "a = " + "[" * 100_000,
}


def collectives(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


ODD = {
    "list ''": "there is no chapter ''",
    "run partial.py": "each made by def step(rank, world_size, device)",
    "run without_steps.py": "it needs STEPS",
    "run all_reduce --all": "leave out",
    "run -n 2": "name a lesson",
    "run no_such_folder/all_reduce.py": "The lesson of that name is 'all_reduce'",
    "run all_reduce --wrong": "all_reduce proposes no wrong program",
    "run all_reduce -n 0": "not a number of ranks",
    "run all_reduce --timeout 0": "not a time limit",
    "run all_reduce --backend glo": "did you mean 'gloo'?",
    "run all_reduce --device tpu": "use 'cpu' or 'cuda'",
    "run all_reduce --trace .": ". cannot be written: Is a directory",
    f"run all_reduce --trace {LONG}": "cannot be written: File name too long",
    f"run all_reduce --save-picture {LONG}.svg": "cannot be written: File name too long",
    "matrix --import ../x": "--import ../x: that is no name of a module",
    "matrix --import exits": "--import exits: its import raised SystemExit: 7",
    "matrix --claims deep.toml": "deep.toml is not a file of claims",
    "matrix --json .": ". cannot be written: Is a directory",
    f"matrix --html {LONG}": "cannot be written: File name too long",
    "bench bus --json .": ". cannot be written: Is a directory",
    f"bench bus --csv {LONG}": "cannot be written: File name too long",
    "diagnose --json . -- true": ". cannot be written: Is a directory",
    "diagnose ./exits.py --epochs 2": "is no command: -- torchrun --nproc-per-node 2 ./exits.py",
    "check-training -- python exits.py": "name your script, without python or torchrun",
}


@pytest.mark.parametrize("words", ODD, ids=lambda words: words.replace(LONG, "long"))
def test_odd_words_are_told_in_one_sentence_with_status_2(words, folder):
    if "--save-picture" in words:
        pytest.importorskip("matplotlib")
    result = collectives(*(word.strip("'") for word in words.split(" ")))
    assert result.exit_code == 2, result.exception
    assert ODD[words] in result.stderr
    assert (len(result.stderr.splitlines()), result.stdout) == (1, "")


@pytest.mark.parametrize("words", ["run barrier", "matrix --quick", "bench bus"])
def test_a_machine_without_loopback_is_told_in_one_sentence_before_anything_runs(
    words, monkeypatch
):
    def no_socket(*args):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("collectives.launcher.world.socket", Mock(socket=no_socket))
    result = collectives(*words.split())
    assert (result.exit_code, result.stdout) == (3, ""), result.exception
    assert "over loopback, which is down: `ip link set lo up` starts it" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", ["run all_reduce", "list", "practice", "matrix --quick"])
def test_a_folder_that_is_gone_is_told_in_one_sentence(words, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    result = collectives(*words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("the current folder is gone: change to one that exists.\n")


# What was measured


@pytest.fixture
def table(monkeypatch):
    """`bench bus` has measured this."""
    request = bus.Request(("all_reduce",), begin=4000, end=4000, factor=2)
    found = bus.table(request, [("gloo", "cpu", [{"in-place": (1e-6, 0)}])] * 2)
    monkeypatch.setattr(bus, "measure", lambda *args: found)


@pytest.fixture
def cells(monkeypatch):
    """`matrix` has measured these."""
    found = [cell(), cell(form="reduce", state="hangs", detail="rank 1 hung\x1b[2J\u202e\udc80")]
    monkeypatch.setattr(matrix_run, "measure", lambda *args: iter(found))
    words = "--backend gloo --collective all_reduce --collective reduce"
    return ["matrix", *words.split(), *["--dtype", "float32", "--op", "SUM"]]


@needs_full
def test_a_table_that_cannot_be_written_is_printed_and_the_other_files_are_written(table, tmp_path):
    words = "bench bus -b 4000 -e 4000 -n 2 --csv /dev/full --json"
    result = collectives(*words.split(), tmp_path / "x.json")
    assert result.exit_code == 2, result.exception
    assert "# average bus bandwidth" in result.stdout
    assert result.stderr.endswith("/dev/full cannot be written: No space left on device.\n")
    assert len(result.stderr.splitlines()) == 1
    assert "busbw" in (tmp_path / "x.json").read_text()


@needs_full
def test_a_matrix_that_cannot_be_written_is_printed_and_compared(cells, tmp_path):
    result = collectives(*cells, "--json", "/dev/full", "--html", tmp_path / "x.html")
    assert result.exit_code == 2, result.exception
    assert "gloo/cpu, 2 ranks" in result.stdout
    assert "not as claimed:" in result.stdout
    assert "/dev/full cannot be written: No space left on device." in result.stderr
    assert "<html" in (tmp_path / "x.html").read_text()


def test_a_measurement_that_fails_leaves_the_file_of_the_last_one(tmp_path, monkeypatch):
    def measure(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(bus, "measure", measure)
    file = tmp_path / "x.json"
    file.write_text("the last one")
    result = collectives("bench", "bus", "-n", 2, "--json", file)
    assert (result.exit_code, file.read_text()) == (1, "the last one")


@needs_full
def test_a_full_disk_below_standard_output_is_told_in_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            ["collectives", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=shell_environment(),
            timeout=150,
        )
    why = "collectives: standard output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (2, why)


# Somebody else's text

CLEAR = "\x1b]0;mine\x07\x1b[2J\x9b\u202e\udc80"
SHOWN = r"\x1b]0;mine\x07\x1b[2J\x9b\u202e\udc80"

LESSON = f"""
def returns(rank, world_size, device):
    return {{"word": {CLEAR!a}}}


def raises(rank, world_size, device):
    raise RuntimeError({CLEAR!a})


STEPS = [returns, raises]
"""


def test_control_characters_of_a_lesson_are_shown_and_not_obeyed(tmp_path):
    (tmp_path / "mine.py").write_text(LESSON)
    result = collectives("run", tmp_path / "mine.py", "-n", 1)
    assert result.exit_code == 1, result.exception
    assert result.stdout.splitlines()[2] == f"  0     {SHOWN}"
    assert f"rank 0 raised RuntimeError: {SHOWN}" in result.stderr
    assert result.stdout.splitlines()[-1].endswith(f"raises: rank 0 raised RuntimeError: {SHOWN}")


def test_control_characters_of_a_cell_are_shown_and_not_obeyed(cells):
    result = collectives(*cells)
    assert r"hangs: reduce float32 SUM gloo/cpu 2 ranks: rank 1 hung\x1b[2J\u202e\udc80" in (
        result.stdout
    )
    assert r"rank 1 hung\x1b[2J\u202e\udc80" in result.stderr
    assert not {"\x1b", "\u202e"} & {*result.output}
