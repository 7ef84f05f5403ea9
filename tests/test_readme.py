"""What the README says is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.lesson.chapters import CHAPTERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_table_of_lessons_is_the_table_of_records():
    rows = [
        f"| [{name}](notebooks/{name}.ipynb), [.py](lessons/{name}.py) | {lesson.summary} |"
        for chapter in [CHAPTERS["collectives"]]
        for name, lesson in zip(chapter.names, chapter.lessons, strict=True)
    ]
    assert "\n".join(["| lesson | what happens |", "|---|---|", *rows, ""]) in README


def test_every_file_that_it_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize(
    "block", blocks("console"), ids=lambda block: block.splitlines()[0].split("/")[-1]
)
def test_the_output_that_it_shows_is_the_output(block):
    command, *lines = block.splitlines()
    assert lines.pop() == "..."
    done = subprocess.run(
        [sys.executable, *command.split()[2:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.splitlines()[: len(lines)] == lines


def test_the_program_that_it_shows_prints_what_it_says(tmp_path):
    (program,) = blocks("python")
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=100
    )
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
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stderr.endswith("LaunchError: " + blocks("text")[1])


DIAGNOSED = """\
import torch
import torch.distributed as dist


def train(rank):
    gradient = torch.ones(1024)
    for i in range(20):
        step(rank, gradient, i)


# Rank 1 sends only after the all_reduce of that step.


def exchange(token):
    dist.recv(token, src=1)


def step(rank, gradient, i):
    token = torch.ones(1)
    if rank == 2 and i == 7:
        exchange(token)
    dist.all_reduce(gradient)
    if rank == 1 and i == 7:
        dist.send(token, 2)


dist.init_process_group("gloo")
train(dist.get_rank())
"""


def test_a_diagnosis_looks_as_it_shows(tmp_path):
    (tmp_path / "train.py").write_text(DIAGNOSED)
    command, *lines = blocks("text")[0].splitlines()
    words = command.replace("torchrun", f"{sys.executable} -m torch.distributed.run").split()[2:]
    diagnose = [sys.executable, "-m", "collectives", *words[:1], "--hang-after", "3", *words[1:]]
    done = subprocess.run(diagnose, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-len(lines) :] == lines


@pytest.mark.parametrize(
    "command",
    sorted(set(re.findall(r"^collectives ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE))),
)
def test_every_command_that_it_names_exists(command):
    from typer.main import get_command

    from collectives.cli import app

    assert command in get_command(app).commands


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"^make ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE)))
)
def test_every_make_target_that_it_names_exists(target):
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()
