"""The pictures of the chapter on machines: what they say, and whether it can be read."""

import html
import json

import pytest
from figures import crossed, texts, too_small
from matplotlib.colors import to_hex

from collectives.lesson.make import elastic_table
from collectives.lesson.results import Cables, Pairs
from collectives.lesson.show import Display
from collectives.pictures import cables, pairs, world_sizes
from collectives.pictures.cables import Wiring
from collectives.pictures.colours import WRONG, contrast, tint
from collectives.pictures.world_sizes import Story

SLOW = {(0, 1): False, (0, 2): True, (1, 2): True}
RING = [(rank, (rank + 1) % 4) for rank in range(4)]
PANELS = [
    ("in blocks", ([0, 1], [3, 2]), RING, 7.34),
    ("round-robin", ([0, 2], [1, 3]), RING, 14.68),
    ("leaders", ([0, 1, 4], [2, 3, 5]), [(1, 0), (4, 0), (0, 2), (2, 0), (0, 1), (0, 4)], 4.19),
]
STORIES = {
    "quick": [Story("killed worker", 2, 2, 0.1, 11.2), Story("new machine", 1, 2, 7.0, 15.4)],
    "slow": [Story("killed agent", 2, 2, None, None), Story("cable", 2, 1, -0.1, 51.4)],
}
FIGURES = {
    "pairs": pairs.draw([True] * 3, SLOW, title="slow_machine"),
    "cables": cables.draw([Wiring(*one) for one in PANELS], title="cables"),
    "world_sizes": world_sizes.draw(STORIES, title="elastic"),
}
every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)


def patches(figure):
    return {one.get_gid(): one for one in figure.axes[0].patches if one.get_gid()}


@every_figure
def test_letters_are_large_enough_and_inside_the_picture(figure):
    assert not too_small(figure)
    figure.draw_without_rendering()
    page = figure.bbox
    for text in texts(figure):
        box = text.get_window_extent()
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text


@every_figure
def test_no_arrow_goes_through_words(figure):
    assert crossed(figure) == []


def test_a_slow_pair_is_red_in_both_of_its_places():
    boxes = patches(FIGURES["pairs"])
    red = {gid for gid, box in boxes.items() if to_hex(box.get_facecolor()) == tint(WRONG)}
    slow = {f"pair/{a}-{b}" for pair in SLOW if SLOW[pair] for a, b in (pair, pair[::-1])}
    assert red == slow | {"all/0", "all/1", "all/2"}
    assert set(boxes) - red == {"pair/0-1", "pair/1-0"}
    assert contrast("#111111", tint(WRONG)) >= 4.5


def test_an_arrow_for_each_send_and_only_those_of_node0_leave_it_in_red():
    arrows = patches(FIGURES["cables"])
    assert set(arrows) == {f"{name}/r{a}-r{b}" for name, _, sends, _ in PANELS for a, b in sends}
    red = {gid for gid, one in arrows.items() if to_hex(one.get_edgecolor()) == cables._OUT}
    assert red == {"in blocks/r1-r2", "round-robin/r0-r1", "round-robin/r2-r3", "leaders/r0-r2"}


def test_a_pause_is_as_long_as_no_step_was_made():
    lines = {line.get_gid(): line.get_xdata() for line in FIGURES["world_sizes"].axes[0].lines}
    widths = {gid: x[1] - x[0] for gid, x in lines.items() if gid}
    assert set(widths) == {
        "pause/quick/killed worker",
        "pause/quick/new machine",
        "pause/slow/cable",
    }
    ratio = widths["pause/quick/new machine"] / widths["pause/quick/killed worker"]
    assert ratio == pytest.approx((15.4 - 7.0) / (11.2 - 0.1))


def test_all_of_it_is_said_in_words():
    assert (
        "node0 and node1 alone are fast. node0 and node2 alone are slow."
        in FIGURES["pairs"].get_label()
    )
    assert (
        "rank 0 sends to rank 1, rank 2 sends to rank 3, 14.7 MB." in FIGURES["cables"].get_label()
    )
    assert (
        "slow: killed agent, 2 ranks train on; cable, 2 ranks, then 1 rank after 51 s."
        in FIGURES["world_sizes"].get_label()
    )


@pytest.mark.parametrize("found", [Pairs([], [True], SLOW), Cables([], PANELS)])
def test_what_a_step_in_a_lab_found_is_drawn(found, tmp_path):
    display = Display(save_picture=tmp_path / "step.svg")
    display.keep("step", found)
    display.show("step", [])
    assert (tmp_path / "step.svg").read_bytes().count(b"<svg ") == 1


def test_the_table_and_the_picture_in_the_page_are_those_of_the_file_beside_it():
    measured = json.loads(elastic_table.MEASURED.read_text(encoding="utf-8"))
    assert elastic_table.PART.read() == elastic_table.table(measured)
    words = elastic_table.figure(measured).get_label()
    assert words in html.unescape(elastic_table.PICTURE.read_text(encoding="utf-8"))
