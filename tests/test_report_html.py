"""The page of a matrix: everything in it, nothing fetched, readable by eye and by machine."""

import re
from html.parser import HTMLParser

from hand_made import cell, matrix

from collectives.backends.claims import STATES
from collectives.matrix import report_html
from collectives.matrix.measured import MARKS, UNAVAILABLE

NASTY = 'RuntimeError: <script>alert("1")</script> & {{title}} </script>'


class Page(HTMLParser):
    """The tables of a page as rows of texts, all elements, and those that are still open."""

    VOID = ("meta", "input", "br", "link")

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.tables, self.buttons = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.tables[-1][-1][-1] += data


def page(*cells) -> Page:
    return Page(report_html.page(matrix(*cells)))


def buttons(found: Page) -> list[dict]:
    return [
        attributes
        for tag, attributes in found.elements
        if tag == "button" and "data-state" in attributes
    ]


def test_every_cell_stands_once_in_the_table_with_its_letter_and_its_reason():
    found = page(
        cell(),
        cell(op="AVG", dtype="int64", state="refuses", detail="RuntimeError: no"),
        cell("barrier", None, None),
    )
    (table,) = found.tables
    assert table[0] == ["form and reduction", "no tensor", "float32", "int64"]
    assert ["all_reduce SUM", "", "+", ""] in table
    assert ["all_reduce AVG", "", "", "r"] in table
    assert ["barrier", "+", "", ""] in table
    assert [one["data-why"] for one in buttons(found)] == ["", "RuntimeError: no", ""]


def test_each_backend_device_and_world_size_has_a_table_of_its_own_or_a_reason():
    away = [
        cell(dtype=dtype, state=UNAVAILABLE, detail="it needs a <GPU>") | {"device": "cuda"}
        for dtype in ("int8", "float32")
    ]
    measured = cell(), cell(backend="mpi"), cell(world_size=3), cell(dtype="int8")
    found = page(*measured, *away)
    assert [attributes["data-where"] for tag, attributes in found.elements if tag == "table"] == [
        "gloo/cpu, 2 ranks",
        "mpi/cpu, 2 ranks",
        "gloo/cpu, 3 ranks",
    ]
    assert (
        "<h2>gloo/cuda, 2 ranks</h2><p>Not measured here, 2 cells: it needs a &lt;GPU&gt;.</p>"
        in report_html.page(matrix(*away))
    )


def test_everything_opened_is_closed_whatever_a_reason_holds_and_headers_have_a_scope():
    found = page(cell(), cell(state="refuses", op="AVG", detail=NASTY))
    assert found.open == []
    assert sum(tag == "script" for tag, _ in found.elements) == 1
    assert buttons(found)[1]["data-why"] == NASTY
    assert all(
        attributes.get("scope") in ("col", "row", "rowgroup")
        for tag, attributes in found.elements
        if tag == "th"
    )
    assert sum(tag == "caption" for tag, _ in found.elements) == 1
    assert [one["tabindex"] for one in buttons(found)] == ["0", "-1"]
    assert all(one["aria-label"] == one["data-state"] for one in buttons(found))


def test_the_page_fetches_nothing():
    found = page(cell())
    assert not [
        attributes
        for _, attributes in found.elements
        if {"src", "href", "srcset", "data"} & set(attributes)
    ]
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(", report_html.page(matrix(cell())))


def test_backend_state_and_dtype_can_be_filtered():
    found = page(cell(), cell(dtype="int8", state="refuses"), cell(backend="mpi"))
    boxes = [
        (attributes["name"], attributes["value"])
        for tag, attributes in found.elements
        if attributes.get("type") == "checkbox"
    ]
    assert boxes == [
        *(("backend", name) for name in ("gloo/cpu", "mpi/cpu")),
        *(("state", name) for name in ("works", "refuses")),
        *(("dtype", name) for name in ("float32", "int8")),
    ]


def test_an_empty_matrix_has_a_page():
    assert page().tables == []


def test_every_state_has_a_mark_of_its_own():
    assert set(report_html.LOOKS) == {*STATES, UNAVAILABLE} == set(MARKS)
    assert len(set(MARKS.values())) == len(MARKS)


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return sum(
        weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def test_letters_can_be_read_on_their_background():
    for state, schemes in report_html.LOOKS.items():
        for scheme in schemes:
            darker, lighter = sorted(map(luminance, scheme))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, state
