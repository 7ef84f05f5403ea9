"""Of every figure: its letters can be read, nothing crosses them, and its bytes never change."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import drawn
import pytest
from figures import crossed, texts, to_hex, too_small
from repository import ROOT

from collectives.pictures import cables, picture
from collectives.pictures.colours import PAGE, PALETTE


def faults(find) -> dict:
    found = {name: find(figure) for name, figure in drawn.figures().items()}
    return {name: fault for name, fault in found.items() if fault}


def test_letters_can_be_read_in_a_column_of_850_pixels():
    assert faults(too_small) == {}


def test_no_arrow_goes_through_a_word():
    assert faults(crossed) == {}


def test_no_word_lies_on_another():
    assert faults(overlapping) == {}


def overlapping(figure) -> list[tuple[str, str]]:
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    return [(a, b) for at, (a, x) in enumerate(boxes) for b, y in boxes[:at] if x.overlaps(y)]


def test_all_words_lie_on_the_page():
    assert faults(off_the_page) == {}


def off_the_page(figure) -> list[str]:
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in texts(figure)}
    page = figure.bbox.padded(0.01)
    return [
        text
        for text, box in boxes.items()
        if not (page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1))
    ]


def test_every_svg_is_valid_with_a_description_and_ids_that_occur_once():
    found = []
    for name, figure in (drawn.figures() | drawn.plots()).items():
        top = ElementTree.fromstring(code := picture.svg(figure))
        ids = [element.get("id") for element in top.iter() if element.get("id")]
        said = top.get("aria-label") or ""
        is_described = top.get("role") == "img" and said == figure.get_label() and len(said) > 40
        has_date = b"metadata" in code
        if not is_described or has_date or len(ids) != len(set(ids)):
            found.append(name)
        if to_hex(figure.get_facecolor()) != PAGE:
            found.append(f"{name} has another ground")
    assert found == []


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


def boxes_of(name: str) -> dict:
    patches = drawn.figures()[name].axes[0].patches
    return {one.get_gid(): one for one in patches if one.get_gid()}


def test_a_cell_of_a_grid_is_filled_in_the_colour_of_its_rank_if_it_is_true():
    filled = {gid: box for gid, box in boxes_of("rows").items() if gid.startswith("used")}
    assert {gid: to_hex(box.get_facecolor()) for gid, box in filled.items()} == {
        f"used/r{rank}/{step}": PALETTE[rank] if step % 4 == rank else "#ffffff"
        for rank in range(4)
        for step in range(28)
    }


def test_an_arrow_for_each_send_and_only_those_of_node0_leave_it_in_red():
    arrows = boxes_of("cables")
    sends = {f"{name}/r{a}-r{b}" for name, _, sends, _ in drawn.PANELS for a, b in sends}
    assert set(arrows) == sends
    red = {gid for gid, one in arrows.items() if to_hex(one.get_edgecolor()) == cables._OUT}
    assert red == {"in blocks/r1-r2", "round-robin/r0-r1", "round-robin/r2-r3", "leaders/r0-r2"}


def test_the_ninth_rank_has_the_colour_of_the_first():
    figure = drawn.ROWS[0].draw("rows", drawn.ROWS * 3)
    boxes = {box.get_gid(): to_hex(box.get_facecolor()) for box in figure.axes[0].patches}
    assert boxes["used/r8/0"] == boxes["used/r0/0"] == PALETTE[0]


def test_a_sample_is_filled_for_each_rank_that_takes_it_and_a_long_row_has_its_ends():
    boxes = {gid: to_hex(box.get_facecolor()) for gid, box in boxes_of("shards").items()}
    taken = {gid for gid, colour in boxes.items() if colour != "#ffffff"}
    padded = {gid.removeprefix("padded/") for gid in taken if gid.startswith("padded")}
    assert padded == {"r0/0", "r0/3", "r1/1", "r1/4", "r2/2", "r2/0"}  # and nobody takes image 5
    columns = [gid.removeprefix("long/r0/") for gid in boxes if gid.startswith("long/r0")]
    assert columns == [*map(str, range(11)), *map(str, range(79, 90))]
    assert "long, rank 0: 30 of 90" in drawn.figures()["shards"].get_label()


def test_a_bucket_is_on_its_way_from_its_last_gradient_until_the_wait():
    boxes = {gid: box.get_bbox() for gid, box in boxes_of("buckets").items()}
    assert boxes["two/0"].x0 == pytest.approx(boxes["two/2.weight"].x1)
    assert boxes["two/1"].x0 == pytest.approx(boxes["two/0.weight"].x1)
    assert boxes["two/0"].x1 == pytest.approx(boxes["two/1"].x1)
    starts = [boxes[f"at once/{number}"].x0 for number in (0, 1)]
    assert starts == pytest.approx([boxes["at once/bias"].x1] * 2)


def test_rows_show_who_writes_and_who_reads_between_two_barriers():
    boxes = {gid.rpartition("/r") for gid in boxes_of("shared rows")}
    found = {
        place: {int(rank) for where, _, rank in boxes if where == place} for place, *_ in boxes
    }
    assert found == {
        **{f"writes/0/{rank}/0": {rank} for rank in range(4)},
        **{f"reads/1/{row}/{4 * rank}": {rank} for row in range(4) for rank in range(4)},
        **{f"writes/1/0/{4 * rank}": {rank} for rank in range(4)},
        "reads/2/0/0": {0, 1, 2, 3},
    }


def test_a_pass_is_as_wide_as_it_is_long_on_one_scale_for_all_orders():
    boxes = {gid: box.get_bbox() for gid, box in boxes_of("orders").items()}
    assert len(boxes) == 4 * (4 + 3)
    slot = boxes["two parts/r0/forward/0"].width
    assert boxes["two parts/r3/backward/0/1"].width == pytest.approx(2 * slot)
    assert boxes["two halves/r0/forward/0"].width == pytest.approx(2 * slot)
    # The second part of rank 0 comes after the first part of rank 3.
    assert boxes["two parts/r0/forward/0/1"].x0 == pytest.approx(boxes["two parts/r3/forward/0"].x1)
    # Rank 2 does not wait until rank 3 has the gradient of the weights.
    assert boxes["two halves/r2/input/0"].x0 == pytest.approx(boxes["two halves/r3/weights/0"].x0)
