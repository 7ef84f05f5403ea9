"""Of every figure: it is as somebody has seen it, nothing crosses its letters, and its bytes stay.

A figure that changed on purpose: look at it, and run this file with `--snapshot-update`.
"""

import io
import itertools
import json
import os
import pickle
import subprocess
import sys
from xml.etree import ElementTree

import drawn
import pytest
from figures import boxes, crossed, drawing, svg, texts, to_hex, too_small
from PIL import Image
from repository import ROOT

from collectives.pictures.colours import PAGE, PALETTE, colour_of
from collectives.pictures.page import BELOW, take_caption
from collectives.pictures.picture import png


def faults(find) -> dict:
    found = {name: find(figure) for name, figure in drawn.figures().items()}
    return {name: fault for name, fault in found.items() if fault}


@pytest.mark.parametrize("name", drawn.SEEN)
def test_a_figure_is_as_it_was_seen(name, snapshot):
    assert drawing((drawn.figures() | drawn.plots())[name]) == snapshot


def test_the_ninth_rank_has_the_colour_of_the_first():
    assert colour_of(8) == colour_of(0) == PALETTE[0]


def test_letters_can_be_read_in_a_column_of_850_pixels():
    assert faults(too_small) == {}


def test_no_arrow_goes_through_a_word():
    assert faults(crossed) == {}


def test_no_word_lies_on_another():
    assert faults(overlapping) == {}


def overlapping(figure) -> list[tuple[str, str]]:
    pairs = itertools.combinations(boxes(figure), 2)
    return [(one, other) for (one, x), (other, y) in pairs if x.overlaps(y)]


def test_all_words_lie_on_the_page():
    assert faults(off_the_page) == {}


def off_the_page(figure) -> list[str]:
    page = figure.bbox.padded(0.01)
    return [text for text, box in boxes(figure) if not all(map(page.contains, *box.get_points().T))]


def test_a_page_writes_title_and_caption_and_the_drawing_that_is_left_is_whole():
    """A drawing shrinks on a small screen, and its letters with it."""
    found = {}
    for name, whole in (drawn.figures() | drawn.plots()).items():
        figure = pickle.loads(pickle.dumps(whole))
        lines = {text.get_text() for text in texts(figure) if text.get_label() == BELOW}
        title, below = take_caption(figure)
        left = {text.get_text() for text in texts(figure)}
        if ({title} | lines) & left or off_the_page(figure) or not (title or name == "overview"):
            found[name] = title, below, off_the_page(figure)
    assert found == {}
    title, below = take_caption(pickle.loads(pickle.dumps(drawn.figures()["eight"])))
    assert title == "eight"
    assert below == (
        "Left to right shows order, not duration. Dotted: no rank returns before the last one has "
        "called. Arrows of a call with a root: whose data a rank gets."
    )


def test_every_svg_is_valid_with_a_description_and_ids_that_occur_once():
    found = []
    for name, figure in (drawn.figures() | drawn.plots()).items():
        top = ElementTree.fromstring(code := svg(figure))
        ids = [element.get("id") for element in top.iter() if element.get("id")]
        said = top.get("aria-label") or ""
        is_described = top.get("role") == "img" and said == figure.get_label() and len(said) > 40
        has_date = b"metadata" in code
        if not is_described or has_date or len(ids) != len(set(ids)):
            found.append(name)
        if to_hex(figure.get_facecolor()) != PAGE:
            found.append(f"{name} has another ground")
    assert found == []


def test_a_small_png_keeps_the_colours_of_the_ranks():
    """What JupyterLab shows of a notebook that nobody has trusted yet."""
    small = Image.open(io.BytesIO(png(drawn.figures()["ring"]))).convert("RGB")
    colours = [colour for _, colour in small.getcolors(10**6)]
    for one in (PAGE, *PALETTE[:3]):
        parts = bytes.fromhex(one[1:])
        assert min(max(map(abs, map(int.__sub__, parts, other))) for other in colours) <= 3, one


@pytest.mark.slow
def test_the_bytes_are_the_same_in_another_process():
    other = subprocess.run(
        [sys.executable, "tests/support/drawn.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "2", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(other.stdout) == drawn.hashes()


@pytest.mark.slow
def test_the_readers_settings_change_nothing_and_are_not_changed():
    import matplotlib

    plain = drawn.hashes()
    settings = {"axes.facecolor": "black", "text.color": "white", "hatch.color": "red"}
    drawn.figures.cache_clear()
    drawn.plots.cache_clear()
    with matplotlib.rc_context(settings):
        before = dict(matplotlib.rcParams)
        assert drawn.hashes() == plain
        assert dict(matplotlib.rcParams) == before
