"""What the README says is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.collective import COLLECTIVES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_table_of_lessons_is_the_table_of_records():
    files = {name: f"[{name}](notebooks/{name}.ipynb), [.py](lessons/{name}.py)" for name in COLLECTIVES}
    rows = [f"| {files[record.name]} | {record.summary} |" for record in COLLECTIVES.values()]
    assert "\n".join(["| lesson | what happens |", "|---|---|", *rows, ""]) in README


def test_every_file_that_it_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0].split("/")[-1])
def test_the_output_that_it_shows_is_the_output(block):
    command, *lines = block.splitlines()
    assert lines.pop() == "..."
    done = subprocess.run([sys.executable, *command.split()[2:]], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[: len(lines)] == lines


def test_the_program_that_it_shows_prints_what_it_says(tmp_path):
    (program,) = blocks("python")
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == re.search(r"# (\[.*\])$", program, re.MULTILINE)[1], done.stderr


TRAIN = """\
import time
from collectives import launch
import torch
import torch.distributed as dist
launch(print, 1)
def step(rank, world_size, device):
    x = torch.ones(1)
    if rank == 2:
        time.sleep(100)
    for _ in range(3):
        dist.all_reduce(x)
launch(step, 3, timeout=5)
"""


def test_a_hang_looks_as_it_shows(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.endswith("LaunchError: " + blocks("text")[0])


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^collectives ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE))))
def test_every_command_that_it_names_exists(command):
    from typer.main import get_command

    from collectives.cli import app

    assert command in get_command(app).commands


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE))))
def test_every_make_target_that_it_names_exists(target):
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()
