"""The page of a matrix: everything in it, nothing fetched, readable by eye and by machine."""

import re

from hand_made import cell, matrix

from collectives.matrix import report_html
from collectives.matrix.measured import MARKS, UNAVAILABLE
from collectives.pictures.colours import contrast

NASTY = 'RuntimeError: <script>alert("1")</script> & {{ title }} </script>'


def page(*cells):
    from bs4 import BeautifulSoup

    return BeautifulSoup(report_html.page(matrix(*cells)), "html.parser")


def test_every_cell_stands_once_in_the_table_with_its_letter_and_its_reason():
    found = page(
        cell(),
        cell(op="AVG", dtype="int64", state="refuses", detail=NASTY),
        cell("barrier", None, None),
    )
    rows = [[place.text for place in row(["th", "td"])] for row in found.table("tr")]
    assert rows == [
        ["form and reduction", "no tensor", "float32", "int64"],
        ["all_reduce"],
        ["all_reduce SUM", "", "+", ""],
        ["all_reduce AVG", "", "", "r"],
        ["barrier"],
        ["barrier", "+", "", ""],
    ]
    buttons = found.table("button")
    assert [one["data-why"] for one in buttons] == ["", NASTY, ""]
    assert [one["data-state"] for one in buttons] == ["works", "refuses", "works"]
    assert [one["tabindex"] for one in buttons] == ["0", "-1", "-1"]
    assert all(one["aria-label"] == one["data-state"] for one in buttons)
    assert {one.get("scope") for one in found("th")} == {"col", "row", "rowgroup"}
    assert len(found("script")) == len(found("caption")) == 1


def test_each_backend_device_and_world_size_has_a_table_of_its_own_or_a_reason():
    away = [
        cell(dtype=dtype, state=UNAVAILABLE, detail="it needs a <GPU>", device="cuda")
        for dtype in ("int8", "float32")
    ]
    measured = cell(), cell(backend="mpi"), cell(world_size=3), cell(dtype="int8")
    *tables, reason = page(*measured, *away)("section")[:4]
    names = ["gloo/cpu, 2 ranks", "mpi/cpu, 2 ranks", "gloo/cpu, 3 ranks"]
    assert [one.table["data-where"] for one in tables] == names == [one.h2.text for one in tables]
    assert reason.h2.text == "gloo/cuda, 2 ranks"
    assert reason.p.text == "Not measured here, 2 cells: it needs a <GPU>."


def test_the_page_fetches_nothing():
    found = page(cell())
    assert not [one for one in found(True) if {"src", "href", "srcset", "data"} & one.attrs.keys()]
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(", str(found))


def test_backend_state_and_dtype_can_be_filtered():
    found = page(cell(), cell(dtype="int8", state="refuses"), cell(backend="mpi"))
    boxes = [(one["name"], one["value"], one.parent.text) for one in found(type="checkbox")]
    assert [(name, value, text.strip()) for name, value, text in boxes] == [
        ("backend", "gloo/cpu", "gloo/cpu"),
        ("backend", "mpi/cpu", "mpi/cpu"),
        ("state", "works", "+ works (2)"),
        ("state", "refuses", "r refuses (1)"),
        ("dtype", "float32", "float32"),
        ("dtype", "int8", "int8"),
    ]


def test_an_empty_matrix_has_a_page():
    assert page()("table") == []


def test_every_state_has_a_letter_that_can_be_read_on_its_background():
    assert len(set(MARKS.values())) == len(MARKS)
    pairs = re.findall(r"--(\w+): #(\w+); --\1-text: #(\w+);", report_html.page(matrix(cell())))
    assert [state for state, *_ in pairs] == [*MARKS] * 2  # in the light and in the dark scheme
    for state, ground, letter in pairs:
        assert contrast(f"#{ground}", f"#{letter}") >= 4.5, state
