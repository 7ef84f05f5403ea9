"""The figure: cells have the colours of their ranks, letters can be read, bytes never change."""

import functools
import os
import re

import pytest
import torch
from drawn import PICTURES, SUM, draw
from figures import crossed, to_hex, too_small, words
from processes import finished
from repository import ROOT
from rich.console import Console

from collectives.pictures import picture, text
from collectives.pictures.colours import contrast
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import STATES, trace
from collectives.semantics.calls import CALLS, LESSONS


@functools.cache
def drawn(name):
    return draw(**PICTURES[name])


def cells(name):
    """By gid, what was traced of each cell that a picture shows."""
    origins = trace(**PICTURES[name])
    return {
        f"{panel}/r{rank}/e{number}": cell
        for panel, rows in {"before": origins.before, "after": origins.after}.items()
        for rank, row in enumerate(rows)
        for number, cell in enumerate(row or ())
    }


def printed(**arguments):
    nowhere = open(os.devnull, "w")  # noqa: SIM115
    console = Console(width=80, file=nowhere, record=True, color_system=None)
    console.print(text.text(CallPanel(trace(**arguments))))
    return console.export_text()


def test_every_state_occurs_in_these_tests():
    assert {cell.state for name in PICTURES for cell in cells(name).values()} == STATES.keys()


@pytest.mark.parametrize("name", PICTURES)
def test_text_can_be_read_on_what_lies_behind_it(name):
    figure = drawn(name)
    axes, page = figure.axes[0], to_hex(figure.get_facecolor())
    for one in axes.texts:
        place = axes.transData.transform(one.get_position())
        behind = [patch for patch in axes.patches if patch.contains_point(place)]
        ground = to_hex(behind[-1].get_facecolor()) if behind else page
        assert contrast(to_hex(one.get_color()), ground) >= 4.5, one
        assert not (behind and behind[-1].get_hatch()), f"{one} stands on a pattern"


def test_a_cell_without_a_colour_is_explained():
    for name in PICTURES:
        is_grey = any(not cell.ranks and cell.state != "undefined" for cell in cells(name).values())
        written = " ".join(words(drawn(name)))
        assert ("several ranks or sums give this value" in written) == is_grey, name


def test_several_calls_stand_in_one_picture():
    calls = [
        CallPanel(trace(SUM, [SUM[root]] * 4, root=root), "broadcast", f"call {root}")
        for root in range(3)
    ]
    figure = picture.draw(calls)
    assert "Call 2: broadcast. 4 ranks. The root is rank 2." in figure.get_label()
    assert (too_small(figure), crossed(figure)) == ([], [])
    assert b'id="call3/after/r0/e0"' in picture.svg(figure)


def test_the_overview_shows_every_lesson_whose_call_moves_tensors():
    code = (ROOT / "docs" / "calls.svg").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"<text [^>]*700[^>]*>(.*?)</text>", code))))
    shown = {CALLS[name].lesson for name in CALLS.keys() & named}
    assert {*LESSONS} - shown == {"barrier"}


def test_the_description_tells_the_whole_story():
    before, after = ([torch.tensor([one]), torch.tensor([2])] for one in (1, 3))
    assert text.sentences(trace(before, after, op="SUM", root=0, in_place=True)) == (
        "2 ranks. The reduction is SUM. The root is rank 0. "
        "Before, rank 0 has 1, to be overwritten. Before, rank 1 has 2. "
        "After, rank 0 has 3 reduced from rank 0 and rank 1. After, rank 1 has 2 untouched."
    )


def test_pictures_are_saved_as_svg_and_png(tmp_path):
    figure = drawn("all_reduce")
    picture.save(figure, tmp_path / "a.svg")
    picture.save(figure, str(tmp_path / "a.png"))
    assert (tmp_path / "a.svg").read_bytes() == picture.svg(figure)
    first = (tmp_path / "a.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    picture.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == first
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        picture.save(figure, tmp_path / "a.pdf")


def test_importing_needs_neither_torch_nor_a_window():
    unwanted = "{'torch', 'matplotlib.pyplot'}"
    code = f"import sys, collectives.pictures.picture; print({unwanted} & sys.modules.keys())"
    assert finished(["python", "-c", code]).stdout == "set()\n"


@pytest.mark.parametrize("name", PICTURES)
def test_the_terminal_says_the_same_in_80_columns_without_colour(name):
    lines = printed(**PICTURES[name]).splitlines()
    assert all(line.isascii() and len(line) <= 80 for line in lines)
