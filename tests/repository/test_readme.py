"""What the README, CONTRIBUTING and the pages of docs/ say is so."""

import inspect
import re
import shlex

import click
import pytest
from lesson_source import Source
from processes import finished
from repository import ROOT, anchors

from collectives import launch
from collectives.backends.claims import STATES
from collectives.diagnosis import run as run_diagnosis
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.recording import pending_work
from collectives.recording.ending import Ending
from collectives.recording.inject import Recording

PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
README = PAGES["README.md"]


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """All that a page tells its reader to type, less the comments."""
    found = []
    for page in PAGES.values():
        for block in blocks("sh", page):
            found += block.splitlines()
        for block in blocks("console", page) + blocks("text", page):
            found += [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        found += re.findall(r"`((?:collectives|make) [^`]+)`", page)
    return sorted({re.sub(r"\s+#.*", "", line) for line in found if line.strip()})


# What stands there.


def test_the_readme_has_at_most_100_lines_beside_its_table():
    before, _, table = README.partition("<!-- lessons")
    assert len((before + table.partition("<!-- end of lessons -->")[2]).splitlines()) <= 100


def test_the_readme_links_to_every_page():
    for name in PAGES:
        assert name == "README.md" or f"]({name})" in README, name


def test_every_link_leads_somewhere():
    faults = []
    for name, page in PAGES.items():
        for path, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page):
            target = ((ROOT / name).parent / path if path else ROOT / name).resolve()
            if not target.exists() or (anchor and anchor not in anchors(target)):
                faults.append(f"{name}: {path}#{anchor}")
    assert not faults, "\n".join(faults)


def test_every_module_that_is_named_exists():
    named = set(re.findall(r"\bcollectives(?:\.[a-z_]+)+\b", "\n".join(PAGES.values())))
    paths = [ROOT / module.replace(".", "/") for module in named]
    assert [
        path for path in paths if not (path.is_dir() or path.with_suffix(".py").is_file())
    ] == []


def test_every_state_of_a_cell_is_explained():
    page = PAGES["docs/backends.md"]
    assert all(f"**{state}" in page for state in STATES if state != "works")


def test_every_argument_of_launch_is_explained():
    table = PAGES["docs/launcher.md"].partition("| argument |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert ["fn", *named] == list(inspect.signature(launch).parameters)


def test_the_list_of_what_the_diagnosis_touches_is_complete():
    """As far as the code has tables of it."""
    page = PAGES["docs/diagnosis.md"].partition("## What it touches")[2].partition("\n## ")[0]
    for name in (*Recording().exits.on_import, *pending_work.COMPLETION_METHODS):
        assert f"`{name}`" in page, name


def test_the_fields_of_the_json_of_a_diagnosis_are_listed():
    row = re.search(r"^\| `--json FILE` \|.*$", PAGES["docs/diagnosis.md"], re.MULTILINE)[0]
    fields = run_diagnosis.as_json(Verdict(Ending.OK, ""), [], 0)
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(fields)


# What one can type.


def test_every_option_that_is_named_exists():
    """The command lines are parsed, and nothing is run."""
    from typer.main import get_command

    from collectives.cli import app

    faults = []
    for line in commands():
        if "collectives" not in line.split():
            continue
        command, words = get_command(app), shlex.split(line.partition("collectives ")[2])
        words = ["1" if word == "PID" else word for word in words]
        while words and words[0] in getattr(command, "commands", ()):
            command, words = command.commands[words[0]], words[1:]
        if hasattr(command, "commands") and words and words[0][0] not in "-[":
            faults.append(f"{line}: there is no command {words[0]}")
        try:
            if words not in ([], ["--"], ["--help"]):
                command.make_context(command.name, words)
        except click.ClickException as error:
            faults.append(f"{line}: {error.format_message()}")
    assert not faults, "\n".join(faults)


def test_every_make_target_that_is_named_exists():
    pages = "\n".join(PAGES.values())
    targets = set(re.findall(r"(?:^|\$ |`)make ([a-z-]+)", pages, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec"])
def test_a_launcher_runs_a_lesson_as_typed(launcher):
    lines = "".join(blocks("sh", README)).splitlines()
    (command,) = (line.partition("  #")[0] for line in lines if line.startswith(f"{launcher} -"))
    done = finished(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all_reduce: proved on all 4 ranks\n")


def test_the_readme_shows_what_the_first_program_prints():
    """The lesson `start` shows it as well, and its test runs the program."""
    (block,) = blocks("console", README)
    assert block.replace("examples/", "", 1) in Source("start").prose


def test_the_output_that_a_page_shows_is_that_of_the_notebook():
    for name, page in PAGES.items():
        for block in blocks("console", page) if name != "README.md" else []:
            (lesson,) = re.findall(r"^\$ python lessons/(.+)\.py", block, re.MULTILINE)
            *shown, end = [line for line in block.splitlines() if line[0] != "$"]
            printed = "".join(Source(lesson).printed.values()).splitlines()
            assert (printed[: len(shown)], end) == (shown, "...")


@pytest.mark.slow
def test_the_program_that_is_shown_prints_what_it_says(tmp_path):
    (program,) = blocks("python", PAGES["docs/launcher.md"])
    (tmp_path / "program.py").write_text(program)
    done = finished(f"python {tmp_path / 'program.py'}")
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


@pytest.mark.slow
def test_a_hang_looks_as_it_shows(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = finished("python train.py", cwd=tmp_path)
    assert done.stderr.endswith("LaunchError: " + blocks("text", PAGES["docs/launcher.md"])[0])


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


@pytest.mark.slow
def test_a_diagnosis_looks_as_it_shows(tmp_path):
    (tmp_path / "train.py").write_text(DIAGNOSED)
    block = blocks("text", README)[0]
    assert block == blocks("text", PAGES["docs/diagnosis.md"])[0]
    command, *lines = block.splitlines()
    command = command[2:].replace("diagnose", "diagnose --hang-after 3", 1)
    done = finished(command, cwd=tmp_path)
    assert done.stderr.splitlines()[-len(lines) :] == lines
