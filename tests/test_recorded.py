"""Recorded matrices: what can be read, and how two are compared."""

import json

import pytest
from hand_made import cell, matrix

from collectives.matrix import recorded


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(matrix(cell())))
    assert recorded.read(path) == matrix(cell())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON"),
        ("[1, 2]", "has no `format` and `cells`"),
        ('{"name": "package"}', "has no `format` and `cells`"),
        ('{"format": "1", "cells": []}', "its format is '1'"),
        (
            '{"format": 2, "cells": []}',
            "has format 2, this version of collectives reads up to 1: update collectives",
        ),
        ('{"format": 1, "cells": {}}', "`cells` are no list"),
        ('{"format": 1, "cells": [3]}', "its cell 1 lacks everything"),
        ('{"format": 1, "cells": [{"form": "all_reduce"}]}', "its cell 1 lacks backend, called"),
        (json.dumps(matrix(cell() | {"op": ["SUM"]})), "a field of its cell 1"),
        (json.dumps(matrix(cell(state="great"))), "in the state 'great'"),
        (
            json.dumps(matrix(cell(), cell())),
            r"has the cell all_reduce\(SUM, float32\) on gloo/cpu, 2 ranks twice",
        ),
    ],
)
def test_a_file_of_another_format_is_an_error_in_one_sentence(tmp_path, text, words):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        recorded.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        recorded.read(tmp_path / "none.json")
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="it is not text"):
        recorded.read(tmp_path / "picture")


def test_a_matrix_does_not_differ_from_itself():
    same = matrix(cell(), cell(state="refuses", op="AVG"))
    assert recorded.differences(same, same) == []


def test_time_and_words_of_an_error_are_no_difference():
    one, other = (
        cell(state="refuses", detail="RuntimeError: a"),
        cell(state="refuses", detail="RuntimeError: b"),
    )
    assert (
        recorded.differences(
            matrix(one), matrix(other | {"seconds": 9.0, "called": "all_reduce_single"})
        )
        == []
    )


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
    assert recorded.fault_of(both) is None
    (found,) = recorded.differences(matrix(cell()), both)
    assert (found.kind, found.cells[0]["world_size"]) == ("new", 3)


def test_cells_that_came_and_went_are_named_and_worse_comes_first():
    before = matrix(
        cell(), cell(dtype="int8"), cell(op="AVG", state="refuses", detail="RuntimeError: no")
    )
    after = matrix(cell(state="wrong", detail="rank 0: got 1"), cell(dtype="int16"), cell(op="AVG"))
    assert [str(found) for found in recorded.differences(before, after)] == [
        "worse: all_reduce(SUM, float32) on gloo/cpu, 2 ranks: was works, is wrong (rank 0: got 1)",
        "better: all_reduce(AVG, float32) on gloo/cpu, 2 ranks: "
        "was refuses (RuntimeError: no), is works",
        "gone: all_reduce(SUM, int8) on gloo/cpu, 2 ranks: was works, is not measured",
        "new: all_reduce(SUM, int16) on gloo/cpu, 2 ranks: was not measured, is works",
    ]
