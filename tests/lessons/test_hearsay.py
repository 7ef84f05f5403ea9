"""What a verdict says is what its run prints, and a run turns red if the claim becomes true."""

import re

import pytest
from lesson_source import Source
from planted import beside
from processes import finished
from repository import ROOT

from collectives.backends import availability
from collectives.course import files
from collectives.course.runner import run_and_print
from collectives.course.show import Display
from collectives.launcher.world import World
from collectives.matrix import recorded

PATH = ROOT / "lessons" / "hearsay.py"
TEXT = PATH.read_text(encoding="utf-8")
STEPS = {step.__name__: step for step in files.load(PATH).STEPS}

every_step = pytest.mark.parametrize("name", STEPS)


def verdict(name: str) -> str:
    """The prose below the run of a step, in one line."""
    prose = TEXT.partition(f"    run({name})\n")[2].partition("# %% [markdown]\n")[2]
    lines = prose.partition("\n\n")[0].splitlines()
    return " ".join(line.removeprefix("# ") for line in lines)


@every_step
def test_the_verdict_quotes_what_the_run_prints(name):
    said = re.findall(r"\b(rank (\d)|every rank|the run) prints `([^`]+)`", verdict(name), re.I)
    assert said
    lines = [" ".join(line.split()) for line in Source("hearsay").printed[name].splitlines()]
    rows = dict(line.split(" ", 1) for line in lines[2:])
    for who, rank, quoted in said:
        if who.lower() == "the run":
            assert quoted in " ".join(lines)
        else:
            assert {rows[rank]} if rank else set(rows.values()) == {quoted}


@every_step
def test_a_claim_that_comes_true_is_planted(name):
    assert name in [fault.function for fault in beside(PATH)]


def test_the_table_of_versions_is_what_was_measured():
    """The matrices of other versions were recorded when the lesson was written."""
    table = re.findall(r"^# \| (.+) \|$", TEXT, re.MULTILINE)
    (_, *versions), *rows = [row.split(" | ") for row in table]
    assert set(recorded.releases()) <= set(versions)
    for call, *states in rows:
        form, op = re.fullmatch(r"`(\w+)`(?:, `(\w+)`)?", call).groups()
        for version, state in zip(versions, states, strict=True):
            if version in recorded.releases():
                found = {
                    cell.state
                    for cell in recorded.named(version).cells
                    if (cell.backend, cell.form, cell.dtype) == ("gloo", form, "float32")
                    and cell.op in ((op,) if op else (None, "SUM"))
                }
                assert found == {state}, (call, version)


# What the lesson shows as typed.


def typed() -> list[tuple[str, str]]:
    """Each command, with the beginning of what it prints."""
    blocks = re.findall(r"^# ```console\n(.*?)^# ```$", TEXT, re.MULTILINE | re.DOTALL)
    return [
        tuple(part.split("\n", 1))
        for block in blocks
        for part in re.split(r"^\$ ", re.sub("(?m)^# ", "", block), flags=re.MULTILINE)[1:]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "output"), typed(), ids=[command.split()[0] for command, _ in typed()]
)
def test_a_command_prints_what_the_lesson_shows(command, output, tmp_path):
    if command.startswith("mpiexec") and (missing := availability.missing_for_mpi()):
        pytest.skip(f"mpi needs {missing}")
    (tmp_path / "lessons").symlink_to(ROOT / "lessons")
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(output), done.stderr


# Where a claim cannot be tested.


@every_step
def test_a_claim_about_gloo_is_skipped_on_another_backend(name, capsys):
    reason = "it tests what is said of gloo"
    on_mpi = World(4, "mpi", "cpu", asked=frozenset({"backend"}))
    assert run_and_print(STEPS[name], Display(), on_mpi) == (3, reason)
    assert capsys.readouterr().out == f"{name}: skipped: {reason}\n"
