"""Recorded matrices: what can be read, and how two are compared."""

import json
import re
from dataclasses import replace

import pytest
import torch
from hand_made import cell, matrix

from collectives.backends import claims
from collectives.matrix import claimed, recorded
from collectives.matrix.measured import Measured
from collectives.matrix.selection import select
from collectives.semantics.calls import LESSONS


def test_what_was_written_is_read(tmp_path):
    (tmp_path / "matrix.json").write_text(recorded.as_json(matrix(cell())))
    assert recorded.read(tmp_path / "matrix.json") == matrix(cell())


def with_cells(*cells) -> bytes:
    """The file of a matrix with these cells, of which some are JSON already."""
    document = json.loads(recorded.as_json(matrix()))
    document["cells"] = [vars(one) if isinstance(one, Measured) else one for one in cells]
    return json.dumps(document).encode()


FAULTS = [
    (b"\x89PNG\xff", "is not JSON"),
    (b"", "is not JSON"),
    (b"[1, 2]", "is not a recorded matrix"),
    (b'{"format": "1", "cells": []}', "is not a recorded matrix"),
    (b'{"format": 2, "cells": []}', "has format 2, this version of collectives reads up to 1"),
    (with_cells(3), "is not a recorded matrix"),
    (with_cells({"form": "all_reduce"}), "its cell 1 lacks backend, called"),
    (with_cells(vars(cell()) | {"op": ["SUM"]}), "its cell 1 has op = ['SUM']"),
    (with_cells(cell(), vars(cell()) | {"detail": None}), "its cell 2 has detail = None"),
    (with_cells(vars(cell()) | {"form": ""}), "its cell 1 has form = ''"),
    (with_cells(vars(cell()) | {"world_size": "2"}), "its cell 1 has world_size = '2'"),
    (with_cells(vars(cell()) | {"seconds": float("nan")}), "is not JSON"),
    (with_cells(), "is a matrix without cells"),
    (with_cells(cell()).replace(b'"torch"', b'"tench"'), "it lacks torch"),
    (with_cells(cell()).replace(b'"format": 1', b'"format": NaN'), "is not JSON"),
    (with_cells(cell()).replace(b'"format": 1', b'"format": true'), "is not a recorded matrix"),
    (with_cells(cell(state="great")), "in the state 'great'"),
    (
        with_cells(cell(), cell()),
        "has the cell all_reduce(SUM, float32) on gloo/cpu, 2 ranks twice",
    ),
]


def test_what_is_no_matrix_is_an_error_in_one_sentence(tmp_path):
    path = tmp_path / "other.json"
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        recorded.read(path)
    for data, words in FAULTS:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            recorded.read(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_time_and_words_of_an_error_are_no_difference():
    before = matrix(cell(state="refuses", detail="RuntimeError: a"))
    changed = {"seconds": 9.0, "called": "all_reduce_single", "detail": "RuntimeError: b"}
    assert recorded.differences(before, matrix(replace(before.cells[0], **changed))) == []


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("works", "refuses", "worse"),
        ("works", "wrong", "worse"),
        ("refuses", "wrong", "worse"),
        ("refuses", "hangs", "worse"),
        ("refuses", "works", "better"),
        ("wrong", "refuses", "better"),
        ("crashes", "refuses", "better"),
        ("works", "unavailable", "gone"),
        ("unavailable", "works", "new"),
    ],
)
def test_a_cell_got_better_or_worse(before, after, kind):
    (found,) = recorded.differences(matrix(cell(state=before)), matrix(cell(state=after)))
    assert found.kind == kind


def test_a_cell_of_another_world_size_is_another_cell():
    both = matrix(cell(), cell(world_size=3))
    assert recorded.fault_of(json.loads(recorded.as_json(both))) is None
    (found,) = recorded.differences(matrix(cell()), both)
    assert found.kind == "new"
    assert ", 3 ranks: " in found.text


def test_cells_that_came_and_went_are_named_and_worse_comes_first():
    refused = cell(op="AVG", state="refuses", detail="RuntimeError: no")
    before = matrix(cell(), cell(dtype="int8"), refused)
    after = matrix(cell(state="wrong", detail="rank 0: got 1"), cell(dtype="int16"), cell(op="AVG"))
    assert [found.text for found in recorded.differences(before, after)] == [
        "worse: all_reduce(SUM, float32) on gloo/cpu, 2 ranks: was works, is wrong (rank 0: got 1)",
        "better: all_reduce(AVG, float32) on gloo/cpu, 2 ranks: "
        "was refuses (RuntimeError: no), is works",
        "gone: all_reduce(SUM, int8) on gloo/cpu, 2 ranks: was works, is not measured",
        "new: all_reduce(SUM, int16) on gloo/cpu, 2 ranks: was not measured, is works",
    ]


# The recorded matrices.

RECORDED = {version: recorded.named(version) for version in recorded.releases()}


@pytest.mark.parametrize("version", RECORDED)
def test_a_recorded_matrix_is_a_full_one_and_as_claimed(version):
    found = RECORDED[version]
    assert found.torch.startswith(f"{version}.")
    assert claimed.differences(found) == []
    assert {one.collective for one in found.cells} == set(LESSONS)
    assert sum(one.was_tried for one in found.cells) >= 1000
    for one in found.cells:
        if not one.was_tried:  # that torch had no such function
            assert one.detail == f"torch {found.torch} has no torch.distributed.{one.name}"


@pytest.mark.parametrize("version", RECORDED)
def test_a_recorded_matrix_is_written_as_it_was_read(version):
    text = (recorded.FOLDER / f"torch-{version}.json").read_text(encoding="utf-8")
    assert recorded.as_json(RECORDED[version]) == text


def test_the_record_of_this_torch_has_the_very_cells_that_are_measured_today():
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in RECORDED:
        pytest.skip(f"no matrix of torch {version} is recorded")
    record = {one.cell for one in RECORDED[version].cells}
    sizes = sorted({cell.world_size for cell in record})
    assert record == set(select(["gloo"], device=["cpu"], world_sizes=sizes))


GLOO = [claim for claim in claims.table() if claim.backend == "gloo" and claim.device == "cpu"]


def is_recorded(claim):
    """Whether a version and a world size that it speaks of were recorded."""
    return any(
        claims.holds(claim.torch, found.torch)
        and any(claims.holds(claim.world_size, str(one.world_size)) for one in found.cells)
        for found in RECORDED.values()
    )


def test_every_claim_decides_a_cell_of_a_record():
    """What is no claim about any recorded cell, nobody has seen."""
    seen = {
        id(claims.expected(one.cell, found.torch))
        for found in RECORDED.values()
        for one in found.cells
    }
    mine = [claim for claim in GLOO if claim.form and is_recorded(claim)]
    assert [str(claim) for claim in mine if id(claim) not in seen] == []


@pytest.mark.parametrize("claim", [claim for claim in GLOO if claim.torch], ids=str)
def test_a_claim_with_bounds_does_not_hold_beyond_them(claim):
    decided = {
        one.cell
        for found in RECORDED.values()
        for one in found.cells
        if claim.speaks_of(one.cell) and claims.expected(one.cell, found.torch) is claim
    }
    states = {
        one.state
        for found in RECORDED.values()
        if not claims.holds(claim.torch, found.torch)
        for one in found.cells
        if one.cell in decided
    }
    assert claim.state not in states


def test_a_recorded_matrix_that_was_edited_is_not_as_claimed_and_differs_from_a_run():
    now = next(iter(RECORDED.values()))
    place = next(number for number, one in enumerate(now.cells) if one.op == "PREMUL_SUM")
    edited = replace(now.cells[place], state="works", detail="")
    lie = replace(now, cells=[*now.cells[:place], edited, *now.cells[place + 1 :]])
    (found,) = claimed.differences(lie)
    assert found.kind == "better"
    text, status = recorded.report(lie, "a lie", now, is_selection=True)
    assert status == 1
    assert f"worse: {edited}: was works, is refuses" in text
