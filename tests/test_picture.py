"""The figure: readable without colour, described in words, and the same bytes every time."""

import itertools
import os
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.colors import to_hex
from rich.console import Console

from collectives.pictures import picture
from collectives.pictures.colours import DARK, LIGHT, PALETTE, contrast, ink, tint
from collectives.pictures.origin import STATES

SUM = [torch.tensor([10**rank, 2 * 10**rank]) for rank in range(4)]
# Every state occurs in one of these.
PICTURES = {
    "broadcast": {"before": SUM, "after": [SUM[1]] * 4, "root": 1},
    "all_reduce": {"before": SUM, "after": [sum(SUM)] * 4, "op": "SUM"},
    "all_gather": {"before": SUM, "after": [SUM] * 4},
    "wrong": {
        "before": SUM[:2],
        "after": [torch.tensor([1, 1, -1]), [torch.tensor([20]), "x", {}]],
    },
    "repeated": {"before": [torch.ones(2)] * 3, "after": [torch.ones(2)] * 3},
    "without one rank": {"before": SUM, "after": [sum(SUM[1:])] * 4, "op": "SUM"},
    "eight": {
        "before": [torch.tensor([rank])[None] for rank in range(8)],
        "after": [torch.arange(8)] * 8,
    },
    "long": {"before": [torch.arange(100)] * 2, "after": [None] * 2},
}


def boxes(figure):
    return {patch.get_gid(): patch for patch in figure.axes[0].patches if patch.get_gid()}


def texts_in(figure, gid):
    box = boxes(figure)[gid].get_bbox()
    return [text for text in figure.axes[0].texts if box.contains(*text.get_position())]


def printed(**arguments):
    console = Console(width=80, file=open(os.devnull, "w"), record=True, color_system=None)  # noqa: SIM115
    console.print(picture.text(**arguments))
    return console.export_text()


def test_every_state_occurs_in_these_tests():
    legends = " ".join(
        text.get_text()
        for arguments in PICTURES.values()
        for text in picture.draw(**arguments).axes[0].texts
    )
    assert [state for state in STATES if f"{state}: {STATES[state][1]}" not in legends] == []


@pytest.mark.parametrize("name", PICTURES)
def test_text_can_be_read_on_what_lies_behind_it(name):
    figure = picture.draw(**PICTURES[name])
    grounds = [to_hex(figure.get_facecolor())]
    for text in figure.axes[0].texts:
        behind = [
            patch
            for patch in figure.axes[0].patches
            if patch.contains_point(figure.axes[0].transData.transform(text.get_position()))
        ]
        ground = to_hex(behind[-1].get_facecolor()) if behind else grounds[0]
        assert contrast(to_hex(text.get_color()), ground) >= 4.5, text
        assert not (behind and behind[-1].get_hatch()), f"{text} stands on a pattern"


def test_colours_of_ranks_differ_and_are_read_in_light_and_dark_ink():
    assert len(set(PALETTE)) == 8
    assert all(contrast(ink(colour), colour) >= 4.5 for colour in PALETTE)
    assert all(contrast(DARK, tint(colour)) >= 4.5 for colour in PALETTE)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(DARK, LIGHT) > 18


# Brettel, Vienot and Mollon's dichromats, as Vienot's matrices on linear RGB: red-blind and
# green-blind.
BLIND = {
    "red-blind": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "green-blind": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


@pytest.mark.parametrize("kind", BLIND)
def test_colours_of_ranks_differ_for_colour_blind_readers(kind):
    def seen(colour):
        linear = [(part / 255) ** 2.2 for part in bytes.fromhex(colour[1:])]
        return [
            max(0.0, sum(weight * part for weight, part in zip(row, linear, strict=True)))
            ** (1 / 2.2)
            for row in BLIND[kind]
        ]

    for one, other in itertools.combinations(PALETTE, 2):
        assert max(abs(a - b) for a, b in zip(seen(one), seen(other), strict=True)) > 0.08, (
            f"{one} {other}"
        )


@pytest.mark.parametrize("name", PICTURES)
def test_labels_name_the_same_ranks_as_the_colours(name):
    """State, value and ranks stand in every cell, and say the same as its colour."""
    figure = picture.draw(**PICTURES[name])
    cells = {gid: box for gid, box in boxes(figure).items() if gid.count("/") == 2}
    for gid, box in cells.items():
        state, _, label = (text.get_text() for text in texts_in(figure, gid))
        assert state in STATES
        fill = to_hex(box.get_facecolor())
        stripes = [
            to_hex(stripe.get_facecolor())
            for name, stripe in boxes(figure).items()
            if name.startswith(gid + "/")
        ]
        if state == "reduced":
            assert label == {4: "r0-3", 3: "r1-3"}[len(stripes)]
            assert stripes == list(PALETTE[4 - len(stripes) : 4])
        else:
            assert label == (
                f"r{PALETTE.index(fill)}" if fill in PALETTE else {"undefined": ""}.get(state, "r?")
            )
    assert bool(cells) == (name != "long")


def test_states_of_one_rank_look_different_without_colour():
    looks = {}
    for arguments in PICTURES.values():
        figure = picture.draw(**arguments)
        for gid, box in boxes(figure).items():
            if gid.count("/") == 2:
                look = box.get_linewidth(), str(box.get_linestyle()), box.get_hatch()
                looks.setdefault(texts_in(figure, gid)[0].get_text(), set()).add(look)
    assert looks.keys() == STATES.keys()
    plain = [
        state for state in STATES if state not in ("reduced", "overwritten")
    ]  # these have stripes, and a corner cut off
    assert len(set.union(*(looks[state] for state in plain))) == len(plain)


def test_the_root_is_marked():
    figure = picture.draw(**PICTURES["broadcast"])
    root = next(text for text in figure.axes[0].texts if text.get_text() == "root")
    rows = {rank: boxes(figure)[f"before/r{rank}/e0"].get_bbox() for rank in range(4)}
    assert [
        rank
        for rank, box in rows.items()
        if min(box.y0, box.y1) <= root.get_position()[1] <= max(box.y0, box.y1)
    ] == [1]


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_overlaps_and_everything_lies_on_the_page(name):
    figure = picture.draw(**PICTURES[name], title="a title")
    cells = [box.get_bbox() for gid, box in boxes(figure).items() if gid.count("/") == 2]
    for one, other in itertools.combinations(cells, 2):
        assert (
            min(one.x1, other.x1) - max(one.x0, other.x0) < 1e-9
            or min(one.y1, other.y1) - max(one.y0, other.y0) < 1e-9
        )
    figure.draw_without_rendering()
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        assert figure.bbox.x0 <= extent.x0, text
        assert extent.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= extent.y0, text
        assert extent.y1 <= figure.bbox.y1, text
    for gid in (gid for gid in boxes(figure) if gid.count("/") == 2):
        box = boxes(figure)[gid].get_window_extent()
        assert all(text.get_window_extent().width <= box.width for text in texts_in(figure, gid)), (
            gid
        )


@pytest.mark.parametrize("name", PICTURES)
def test_svg_is_small_text_with_a_description(name):
    figure = picture.draw(**PICTURES[name], title='a "title" <1>')
    code = picture.svg(figure)
    assert len(code) < 40_000 or name == "eight"
    assert b"metadata" not in code, "there stands the date"
    top = ElementTree.fromstring(code)
    assert top.get("role") == "img"
    assert top.get("aria-label") == f'a "title" <1>. {picture.describe(**PICTURES[name])}'
    ids = [element.get("id") for element in top.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    written = {element.text for element in top.iter("{http://www.w3.org/2000/svg}text")}
    assert {text.get_text() for text in figure.axes[0].texts} - {""} == written


def test_the_description_tells_the_whole_story():
    assert picture.describe(
        [torch.tensor([1]), torch.tensor([2])],
        [torch.tensor([3]), torch.tensor([2])],
        op="SUM",
        root=0,
    ) == (
        "2 ranks. The reduction is SUM. The root is rank 0. Before, rank 0 has 1, to be overwritten. Before, rank 1 has 2. "
        "After, rank 0 has 3 reduced from rank 0 and rank 1. After, rank 1 has 2 untouched."
    )


DRAW = """
import hashlib, torch
from collectives.pictures import picture
before = [torch.tensor([10**rank, 7]) for rank in range(3)]
figure = picture.draw(before, [sum(before), None, ["a", torch.tensor([100, 9])]], op="SUM", title="t")
print(hashlib.sha256(picture.svg(figure)).hexdigest())
"""


def test_the_bytes_are_the_same_in_every_process():
    runs = [
        subprocess.run(
            [sys.executable, "-c", DRAW],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


def test_the_readers_settings_change_nothing_and_are_not_changed():
    plain = picture.svg(picture.draw(**PICTURES["wrong"]))
    with matplotlib.rc_context(
        {"axes.facecolor": "black", "text.color": "white", "hatch.color": "red"}
    ):
        settings = dict(matplotlib.rcParams)
        assert picture.svg(picture.draw(**PICTURES["wrong"])) == plain
        assert dict(matplotlib.rcParams) == settings


def test_pictures_are_saved_as_svg_and_png(tmp_path):
    figure = picture.draw(**PICTURES["all_reduce"])
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
    code = "import sys, collectives.pictures.picture; print({'torch', 'matplotlib.pyplot'} & sys.modules.keys())"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


@pytest.mark.parametrize("name", PICTURES)
def test_the_terminal_says_the_same_in_80_columns_without_colour(name):
    lines = printed(**PICTURES[name]).splitlines()
    assert all(line.isascii() and len(line) <= 80 for line in lines)
    figure = picture.draw(**PICTURES[name])
    words = " ".join(lines).split()
    for gid in (gid for gid in boxes(figure) if gid.count("/") == 2):
        state, value, label = (text.get_text() for text in texts_in(figure, gid))
        assert value + STATES[state][0] + label.replace("r?", "") in words


def test_the_terminal_has_the_colours_of_the_ranks():
    console = Console(width=80, color_system="truecolor", force_terminal=True, no_color=False)
    with console.capture() as captured:
        console.print(picture.text(**PICTURES["all_reduce"]))
    for colour in PALETTE[:4]:
        assert "48;2;" + ";".join(str(part) for part in bytes.fromhex(colour[1:])) in captured.get()


def test_too_much_is_said_in_the_figure_and_the_terminal():
    arguments = {"before": [torch.arange(100)] * 2, "after": [None] * 2}
    for words in (
        " ".join(text.get_text() for text in picture.draw(**arguments).axes[0].texts),
        printed(**arguments),
    ):
        assert "100 elements in one rank" in words
        assert "rank 1: [0, 1, 2, ... 97 more] -> no buffer" in words


def test_without_matplotlib_the_error_names_the_extra_and_the_terminal_still_has_its_picture():
    code = "import sys; sys.modules['matplotlib'] = None; import collectives.pictures.text; import collectives.pictures.picture"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "collectives/pictures/picture.py" in done.stderr.replace("\\", "/")
    assert "pictures need matplotlib" in done.stderr
    assert "pip install 'collectives[pictures]'" in done.stderr
