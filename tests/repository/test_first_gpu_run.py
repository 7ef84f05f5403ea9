"""`make gpu`: no step runs beyond its time, nothing names the machine, and a second run goes on."""

import contextlib
import json
import os
import re
import socket
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import psutil
import pytest
from hand_made import cell, matrix
from processes import is_alive, wait_until

from collectives.matrix import recorded
from tools.first_gpu_run import __main__ as first_gpu_run
from tools.first_gpu_run import archive, summary
from tools.first_gpu_run.perform import NO_NAMES, ROOT, perform
from tools.first_gpu_run.plan import GpuStep, Machine, steps

ONE = Machine(gpus=1)
MACHINES = [ONE, Machine(2), Machine(4), Machine(1, can_share=True)]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# A step with a child: both must end. The child's id is what it prints first.
_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def run_all(monkeypatch, tmp_path):
    """`run_all(plan)`: these steps, in tmp_path/found, with tmp_path/found.zip."""

    def run(plan, minutes=30.0, folder="found", machine=ONE):
        monkeypatch.setattr(first_gpu_run, "steps", lambda folder, machine: plan)
        monkeypatch.setattr(first_gpu_run, "BEGUN", time.monotonic())
        packed = tmp_path / "found.zip"
        return first_gpu_run.run_all(tmp_path / folder, packed, minutes, machine)

    return run


@pytest.fixture
def plan(tmp_path):
    """Each step that ends leaves a letter in tmp_path/ran."""
    ran = tmp_path / "ran"

    def leaves(letter, then=""):
        return python(
            f"open({str(ran)!r}, 'a').write({letter!r}); print('from ' + {letter!r}){then}"
        )

    return [
        GpuStep(1, "works", "One?", leaves("a"), 60),
        GpuStep(2, "crashes", "Two?", leaves("b", "; import os; os.abort()"), 60, is_open=True),
        GpuStep(2, "waits", "Does it end?", python(_CHILD), 5),
        GpuStep(3, "last", "Three?", leaves("c"), 60),
    ]


def text_of(packed: Path) -> dict[str, str]:
    with zipfile.ZipFile(packed) as members:
        return {Path(one).name: members.read(one).decode() for one in members.namelist()}


def test_each_step_ends_in_its_limit_and_a_second_run_does_not_repeat_it(
    run_all, plan, tmp_path, capsys
):
    for _ in range(2):
        assert run_all(plan) == 1  # for the one that waits
    (child,) = re.findall(r"^\d+$", (tmp_path / "found/waits.txt").read_text(), flags=re.M)
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(child))
        wait_until(lambda: not is_alive(left), limit=30)
    assert (tmp_path / "ran").read_text() == "abc"
    text = (tmp_path / "found/summary.md").read_text()
    assert "| works | One? | exit status 0 |" in text
    assert "| crashes | Two? | exit status -6 |" in text
    assert "| waits | Does it end? | ran into its limit |" in text
    assert "crashes: ended before (exit status -6)" in capsys.readouterr().out


def test_a_step_whose_end_nobody_knows_makes_no_run_fail(run_all, plan):
    works, crashes, *_ = plan
    assert run_all([works, crashes]) == 0


def test_no_step_runs_beyond_the_minutes_and_one_that_is_cut_off_runs_again(
    run_all, plan, tmp_path, capsys
):
    _, _, waits, last = plan
    waits = GpuStep(2, "waits", "?", waits.command, 600)
    begin = time.monotonic()
    run_all([waits, last], minutes=15 / 60)
    assert time.monotonic() - begin < 300  # its own limit is longer
    assert "The same command goes on with waits." in capsys.readouterr().out
    assert "| waits | ? | cut off" in text_of(tmp_path / "found.zip")["summary.md"]
    again = GpuStep(2, "waits", "?", python("print(1)"), 600)
    assert run_all([again, last]) == 0
    assert "| waits | ? | exit status 0 |" in text_of(tmp_path / "found.zip")["summary.md"]


def test_after_each_step_the_archive_has_all_until_then_and_another_folder_goes_on_from_it(
    run_all, plan, tmp_path, monkeypatch
):
    works, crashes, _, last = plan
    real, seen = archive.pack, []

    def pack(folder, packed, hide):
        real(folder, packed, hide)
        seen.append(set(text_of(packed)) - {"summary.md", "steps.json"})

    monkeypatch.setattr(archive, "pack", pack)
    run_all([works, crashes])
    assert seen[:2] == [{"works.txt"}, {"works.txt", "crashes.txt"}]
    run_all([works, crashes, last], folder="another")
    assert (tmp_path / "ran").read_text() == "abc"
    found = text_of(tmp_path / "found.zip")
    assert "from a" in found["works.txt"]
    assert "from c" in found["last.txt"]


def test_a_file_that_is_no_archive_of_a_run_stays_as_it_is(run_all, plan, tmp_path):
    (tmp_path / "found.zip").write_text("mine")
    with pytest.raises(ValueError, match="is no archive of `make gpu`"):
        run_all(plan)
    assert (tmp_path / "found.zip").read_text() == "mine"


def test_nothing_is_unpacked_outside_the_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("steps.json", '[{"name": "x", "status": 0, "seconds": 1}]')
        packed.writestr("../x.txt", "")
        packed.writestr("x.py", "")
    archive.unpack(tmp_path / "bad.zip", tmp_path / "in/here")
    assert {file.name for file in (tmp_path / "in/here").iterdir()} == {"steps.json", "x.txt"}
    assert not (tmp_path / "in/x.txt").exists()


def test_the_archive_names_neither_the_machine_nor_its_user_nor_a_path(
    run_all, tmp_path, monkeypatch
):
    addresses = {one.address for every in psutil.net_if_addrs().values() for one in every}
    monkeypatch.setenv("LOGNAME", "alice")  # whom getpass believes
    names = {socket.gethostname(), "alice", *addresses}
    names -= NO_NAMES
    paths = [os.path.expanduser("~"), sys.prefix, str(tmp_path), str(ROOT), "/etc/ssl/x"]
    words = [f"<{name}>" for name in (*names, *paths)] + [f'File "{ROOT}/lessons/x.py", line 3']
    step = GpuStep(1, "tells", "?", python(f"print({chr(10).join(words)!r})"), 60)
    (tmp_path / "found").mkdir()
    (tmp_path / "found/quick_1.json").write_text(recorded.as_json(matrix(cell(detail=words[-1]))))
    run_all([step])
    found = "".join(text_of(tmp_path / "found.zip").values())
    assert 'File "CHECKOUT/lessons/x.py", line 3' in found
    assert [one for one in names if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", found)] == []
    assert [path for path in paths if path in found] == []


STAGES = "stages: proved on all 2 ranks"
TAGS = "tags: skipped: nccl on cuda: NCCL ignores tags"
HALO = "halo: rank 1 raised Mismatch"


def test_the_summary_says_what_is_not_as_in_the_rehearsal(run_all, monkeypatch, tmp_path):
    folder, before = tmp_path / "found", tmp_path / "rehearsed"
    kept = {"stages": "passed", "tags": "skipped", "halo": "failed", "never": "passed"}
    plan, rows = [], []
    for name, status, lines in (
        ("same", 0, [STAGES, TAGS, HALO]),
        ("other", 0, [STAGES.replace("stages", "tags"), HALO.replace("halo", "stages")]),
        ("fails", 1, []),
    ):
        code = f"print({chr(10).join(lines)!r}); raise SystemExit({status})"
        plan.append(GpuStep(1, name, "?", python(code), 60))
        rows.append({"name": name, "status": 0, "seconds": 0.0, "lessons": kept})
    plan.append(GpuStep(1, "unknown", "?", python("raise SystemExit(1)"), 60))
    monkeypatch.setattr(summary, "REHEARSED", before)
    for place, state in ((before, "refuses"), (folder, "works")):
        place.mkdir()
        (place / "quick_1.json").write_text(recorded.as_json(matrix(cell(state=state))))
    (before / "steps.json").write_text(json.dumps(rows))
    run_all(plan)
    text = (folder / "summary.md").read_text()
    *lines, of_the_matrix = (
        text.partition("## Not as rehearsed\n\n")[2].partition("\n\n")[0].splitlines()
    )
    assert lines == [
        "- other: stages failed; rehearsed: passed",
        "- other: tags passed; rehearsed: skipped",
        "- fails: exit status 1; rehearsed: exit status 0",
    ]
    assert of_the_matrix.startswith("- better: ")


def test_what_is_expected_of_one_gpu_fits_into_nine_minutes_and_every_step_was_rehearsed(tmp_path):
    every = steps(tmp_path, ONE)
    seconds = [summary.expected(step) for step in every]
    assert None not in seconds
    assert sum(seconds) <= 9 * 60
    assert [
        step.name for step, about in zip(every, seconds, strict=True) if about > step.limit
    ] == []


def test_the_rehearsal_to_compare_with_has_steps_of_the_plan(tmp_path):
    known = {step.name for machine in MACHINES for step in steps(tmp_path, machine)}
    assert archive.read_state(summary.REHEARSED).keys() <= known
    files = list(summary.REHEARSED.glob("quick_*.json"))
    assert {one.seconds for file in files for one in recorded.read(file).cells} == {0.0}


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_every_command_of_the_plan_is_one_that_exists(machine, tmp_path):
    from collectives.course import files

    every = steps(tmp_path, machine)
    assert len({step.name for step in every}) == len(every)
    assert {step.group for step in every} == (
        {1, 2, 3, 4} if machine.most == 1 else {1, 2, 3, 4, 5}
    )
    for step in every:
        if step.command[1:4] == ("-m", "collectives", "run"):
            names = step.command[4 : step.command.index("--backend")]
            assert files.choose(list(names), every=False), step
        if "--try" in step.command:
            assert step.command[step.command.index("--try") + 1] in first_gpu_run.TRIES


def test_only_the_last_group_loads_another_nccl(run_all, monkeypatch, tmp_path):
    loaded = {}
    monkeypatch.setattr(
        first_gpu_run,
        "perform",
        lambda step, left, file, hide, library: (
            loaded.update({step.name: library}) or perform(step, left, file, hide)
        ),
    )
    plan = [GpuStep(group, f"in_{group}", "?", python(""), 60) for group in (1, 5)]
    machine = Machine(1, True, tmp_path / "libnccl.so.2")
    run_all(plan, machine=machine)
    assert loaded == {"in_1": None, "in_5": machine.library}


def test_without_a_gpu_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make gpu", "--folder", str(tmp_path / "found")])
    assert first_gpu_run.main() == 3
    assert "nccl needs one GPU per rank" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_runs_it_with_what_the_course_needs_beside_torch(monkeypatch):
    cells = json.loads((ROOT / "tools/gpu_in_a_notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (command,) = re.findall(r"python -m tools.first_gpu_run (.*)", "\n".join(code))
    monkeypatch.setattr(sys, "argv", ["first_gpu_run", *command.split(), "--plan"])
    assert first_gpu_run.main() == 0
    installed = set(re.search(r"pip install -q (.*)", code[0])[1].split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = project["dependencies"] + extras["pictures"] + extras["training"]
    assert {re.match(r"[\w-]+", one)[0] for one in needed} - {"torch", "numpy"} == installed
