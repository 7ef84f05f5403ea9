"""The recorded matrices: each can be read and is as claimed, and what became of a cell from version to version is told rightly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_claims import cell, matrix
from typer.testing import CliRunner

from collectives.cli import app
from collectives.matrix import compare_command, history, recorded
from collectives.matrix.cells import cells
from collectives.matrix.findings import judge
from collectives.spec.calls import LESSONS

RECORDED = history.matrices()
IDS = [found["torch"] for found in RECORDED]


# The files.


def test_the_tested_torch_a_newer_one_and_two_older_ones_are_recorded_each_once():
    releases = [history.release(version) for version in IDS]
    assert len(set(releases)) == len(releases)
    numbers = [tuple(map(int, release.split("."))) for release in releases]
    assert numbers == sorted(numbers)
    place = numbers.index((2, 13))
    assert place >= 2
    assert len(numbers) > place + 1


@pytest.mark.parametrize("found", RECORDED, ids=IDS)
def test_a_recorded_matrix_is_as_claimed(found):
    assert [str(finding) for finding in judge(found)] == []


@pytest.mark.parametrize("found", RECORDED, ids=IDS)
def test_a_recorded_matrix_is_a_full_one(found):
    assert {one["collective"] for one in found["cells"]} == set(LESSONS)
    measured = [one for one in found["cells"] if one["state"] != recorded.UNAVAILABLE]
    assert {(one["backend"], one["device"], one["world_size"]) for one in measured} >= {
        ("gloo", "cpu", 2)
    }
    assert len(measured) >= 1000


@pytest.mark.parametrize("found", RECORDED, ids=IDS)
def test_where_a_recorded_matrix_has_no_answer_that_torch_had_no_such_function(found):
    for one in found["cells"]:
        if one["state"] == recorded.UNAVAILABLE:
            assert one["called"] is None
            assert (
                one["detail"]
                == f"torch {found['torch']} has no torch.distributed.{one['form'].partition(':')[0]}"
            )


def mine() -> dict:
    try:
        return history.named(history.release(torch.__version__))
    except ValueError as error:
        pytest.skip(str(error))


def test_the_record_of_this_torch_has_the_very_cells_that_are_measured_today():
    today = {recorded.key(vars(one)) for one in cells([("gloo", "cpu")], [2])}
    assert today == {
        recorded.key(one)
        for one in mine()["cells"]
        if (one["backend"], one["device"]) == ("gloo", "cpu")
    }


def test_where_a_record_and_a_run_differ_that_is_told(tmp_path):
    """test_matrix.py compares the record of this torch with a run."""
    now = mine()
    lie = json.loads(json.dumps(now))
    edited = next(
        one
        for one in lie["cells"]
        if one["form"] == "all_reduce:noncontiguous" and one["dtype"] == "float32"
    )
    edited |= {"state": "works", "detail": ""}
    recorded.write(lie, tmp_path / "lie.json")
    text, status = compare_command.against(now, str(tmp_path / "lie.json"), selected=True)
    assert status == 1
    assert (
        "worse: all_reduce:noncontiguous(SUM, float32) on gloo/cpu, 2 ranks: was works, is wrong"
        in text
    )


def test_the_way_to_record_an_older_torch_changes_no_answer_of_this_one(tmp_path):
    file = tmp_path / "older.json"
    words = [
        "--backend",
        "gloo",
        "--device",
        "cpu",
        "--collective",
        "broadcast",
        "--quick",
        "--timeout",
        "60",
        "--json",
        file,
    ]
    program = [
        sys.executable,
        "-m",
        "collectives",
        "matrix",
        *map(str, words),
        "--import",
        "collectives.matrix.older_torch",
    ]
    done = subprocess.run(
        [*program, "--against", mine()["torch"].partition("+")[0]],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "no cell differs" in done.stdout


def test_the_readme_names_the_versions_that_are_recorded():
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    *most, last = [history.release(version) for version in IDS]
    assert f"holds what torch {', '.join(most)} and {last} do" in readme


def test_a_recorded_matrix_that_was_edited_is_not_as_claimed():
    lie = json.loads(json.dumps(RECORDED[0]))
    edited = next(
        one for one in lie["cells"] if one["state"] == "refuses" and one["op"] == "PREMUL_SUM"
    )
    edited |= {"state": "works", "detail": ""}
    (finding,) = judge(lie)
    assert finding.kind == "better"


# A cell's history.


def versions(*states: str | None) -> tuple[dict, ...]:
    """Matrices of torch 2.1, 2.2, ... in which the same cell has these states; None: it is not there, though its dtype is."""
    found = []
    for minor, state in enumerate(states, 1):
        other = cell("reduce")
        its = (
            []
            if state is None
            else [cell(state=state, detail="" if state == "works" else f"Error: {minor}")]
        )
        found.append(matrix(other, *its, torch=f"2.{minor}.0+cpu"))
    return tuple(found)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([], ""),
        (["works"], "2.1: works"),
        (["works", "works", "works"], "2.1 to 2.3: works"),
        (
            ["refuses", "refuses", "works", "works"],
            "until 2.2: refuses (Error: 2); since 2.3: works",
        ),
        (["works", "wrong"], "until 2.1: works; since 2.2: wrong (Error: 2)"),
        (
            ["works", "refuses", "works"],
            "until 2.1: works; 2.2: refuses (Error: 2); since 2.3: works",
        ),
        (
            ["crashes", "hangs", "hangs", "works"],
            "until 2.1: crashes (Error: 1); 2.2 to 2.3: hangs (Error: 3); since 2.4: works",
        ),
        (["works", None, "works"], "2.1 to 2.3: works"),
        ([None, "works", "refuses"], "until 2.2: works; since 2.3: refuses (Error: 3)"),
    ],
    ids=[
        "never recorded",
        "once",
        "always",
        "better",
        "worse",
        "came back",
        "twice better",
        "a gap",
        "a late start",
    ],
)
def test_what_became_of_a_cell(states, words):
    (runs,) = history.histories([cell()], versions(*states)).values()
    assert history.story(runs) == words


def test_a_dtype_or_a_function_that_a_version_has_not_is_said_to_be_absent():
    lacking = cell(
        state="unavailable", detail="torch 2.1.0 has no torch.distributed.all_reduce"
    ) | {"called": None}
    old, new = matrix(lacking, torch="2.1.0"), matrix(cell(), cell(dtype="float4"), torch="2.2.0")
    found = history.histories(new["cells"], (old, new))
    assert [history.story(runs) for runs in found.values()] == [
        "until 2.1: absent (torch 2.1.0 has no torch.distributed.all_reduce); since 2.2: works",
        "until 2.1: absent (torch 2.1 has no float4); since 2.2: works",
    ]


def test_a_machine_without_a_gpu_says_nothing_of_cells_on_one():
    here = cell(state="unavailable", detail="no GPU")
    (runs,) = history.histories([here], (matrix(here),)).values()
    assert runs == []


@pytest.mark.parametrize(
    ("version", "state", "contradicts"),
    [
        ("2.1.0", "refuses", None),
        ("2.1.5+cpu", "works", "2.1 to 2.2"),
        ("2.2.0", "works", "2.1 to 2.2"),
        ("2.3.0", "works", None),
        ("2.3.0", "wrong", "2.3"),
        ("2.10.0", "refuses", "2.3"),
        ("2.0.0", "wrong", None),
        ("2.3.0", "unavailable", None),
    ],
)
def test_a_cell_is_compared_with_the_record_of_its_version_or_the_nearest_before(
    version, state, contradicts
):
    here = cell(state=state)
    (runs,) = history.histories([here], versions("refuses", "refuses", "works")).values()
    found = history.contradicted(here, version, runs)
    assert (found and found.span) == contradicts


# --against


def test_against_takes_a_version_a_file_or_docs(tmp_path):
    assert compare_command.other("docs") is None
    assert compare_command.other("2.13") is compare_command.other(
        history.named("2.13")["torch"].partition("+")[0]
    )
    recorded.write(matrix(cell()), tmp_path / "2.13")
    assert compare_command.other(str(tmp_path / "2.13")) == matrix(cell())


def test_a_version_that_is_not_recorded_is_told_with_those_that_are():
    done = CliRunner().invoke(app, ["matrix", "--against", "1.13"])
    assert done.exit_code == 2
    assert "no matrix of torch 1.13 is recorded: there are 2." in done.stderr
