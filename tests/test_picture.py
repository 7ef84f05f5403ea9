"""The figure: cells have the colours of their ranks, letters can be read, bytes never change."""

import itertools
import os
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from figures import crossed, pixels, texts, too_small
from matplotlib.colors import to_hex
from rich.console import Console

from collectives.pictures import picture
from collectives.pictures.colours import (
    DARK,
    LIGHT,
    PAGE,
    PALETTE,
    contrast,
    edge,
    ink,
    tint,
)
from collectives.pictures.origin import STATES, trace

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
    console.print(picture.text(**arguments))
    return console.export_text()


def test_every_state_occurs_in_these_tests():
    assert {cell.state for name in PICTURES for cell in cells(name).values()} == STATES.keys()


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
    assert all(contrast(edge(colour), PAGE) >= 3 for colour in PALETTE)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(DARK, LIGHT) > 18


# Vienot's matrices on linear RGB for the dichromats of Brettel, Vienot and Mollon.
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
def test_a_cell_shows_its_value_on_the_colours_of_its_ranks(name):
    figure = picture.draw(**PICTURES[name])
    drawn = boxes(figure)
    for gid, cell in cells(name).items():
        assert [text.get_text() for text in texts_in(figure, gid)] == [cell.text]
        stripes = [
            to_hex(stripe.get_facecolor())
            for name, stripe in drawn.items()
            if name.startswith(gid + "/")
        ]
        if cell.state == "reduced":
            assert stripes == [PALETTE[rank] for rank in cell.ranks]
        else:
            fill = to_hex(drawn[gid].get_facecolor())
            assert [at for at, one in enumerate(PALETTE) if one == fill] == list(cell.ranks)
    assert bool(cells(name)) == (name != "long")


def test_a_sum_that_lacks_a_rank_says_so_in_letters_too():
    labels = [text.get_text() for text in texts(picture.draw(**PICTURES["without one rank"]))]
    assert labels.count("r1-3") == 8
    assert "r0-3" not in [text.get_text() for text in texts(picture.draw(**PICTURES["all_reduce"]))]


def test_what_is_odd_about_a_value_can_be_seen_without_colour():
    looks = {state: set() for state in STATES}
    for name in PICTURES:
        drawn = boxes(picture.draw(**PICTURES[name]))
        for gid, cell in cells(name).items():
            box = drawn[gid]
            looks[cell.state].add((box.get_linewidth(), str(box.get_linestyle()), box.get_hatch()))
    plain = looks["own"]
    assert looks["untouched"] == looks["overwritten"] == looks["reduced"] == plain  # has stripes
    odd = [looks[state] for state in ("received", "undefined", "unknown")]
    assert len(set.union(plain, *odd)) == 4


@pytest.mark.parametrize("name", PICTURES)
def test_letters_can_be_read_in_a_column_of_850_pixels(name):
    figure = picture.draw(**PICTURES[name])
    assert too_small(figure) == []
    values = [text for gid in cells(name) for text in texts_in(figure, gid)]
    assert [text.get_text() for text in values if pixels(text) < 16] == []


def test_too_small_letters_are_noticed():
    figure = picture.draw(**PICTURES["all_reduce"])
    figure.set_figwidth(3 * figure.get_figwidth())
    assert "before" in too_small(figure)


@pytest.mark.parametrize("name", PICTURES)
def test_no_arrow_goes_through_a_word(name):
    assert crossed(picture.draw(**PICTURES[name], title="all_reduce_with_a_long_name")) == []


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "all_gather", "eight"])
def test_the_page_ends_where_its_content_ends(name):
    figure = picture.draw(**PICTURES[name])
    figure.draw_without_rendering()
    shapes = [*texts(figure), *boxes(figure).values()]
    right = max(shape.get_window_extent().x1 for shape in shapes)
    assert figure.bbox.x1 - right < 0.3 * figure.dpi


@pytest.mark.parametrize(
    ("title", "arguments", "lines"),
    [
        ("all_reduce", {"op": "SUM"}, {"all_reduce(SUM)"}),
        ("reduce", {"op": "SUM", "root": 2}, {"reduce", "(SUM, dst=2)"}),
        ("broadcast", {"root": 1}, {"broadcast(src=1)"}),
        ("reduce_scatter_tensor", {"op": "AVG"}, {"reduce_scatter_", "tensor", "(AVG)"}),
    ],
)
def test_the_call_stands_on_the_arrow_from_before_to_after(title, arguments, lines):
    figure = picture.draw(SUM, SUM, title=title, **arguments)
    assert lines <= {text.get_text() for text in texts(figure)}
    arrow = boxes(figure)["arrow"].get_window_extent()
    before, after = (
        boxes(figure)[f"{panel}/r0/e{at}"] for panel, at in [("before", 1), ("after", 0)]
    )
    assert before.get_window_extent().x1 < arrow.x0 < arrow.x1 < after.get_window_extent().x0


def test_several_calls_stand_in_one_picture():
    calls = [
        picture.shown(SUM, [SUM[root]] * 4, title="broadcast", root=root, caption=f"call {root}")
        for root in range(3)
    ]
    figure = picture.draw_calls(calls)
    assert {"after/r3/e1", "call2/after/r3/e1", "call3/before/r0/e0"} <= boxes(figure).keys()
    assert "Call 2: broadcast. 4 ranks. The root is rank 2." in figure.get_label()
    assert (too_small(figure), crossed(figure)) == ([], [])
    assert b'id="call3/after/r0/e0"' in picture.svg(figure)


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
        "2 ranks. The reduction is SUM. The root is rank 0. "
        "Before, rank 0 has 1, to be overwritten. Before, rank 1 has 2. "
        "After, rank 0 has 3 reduced from rank 0 and rank 1. After, rank 1 has 2 untouched."
    )


DRAW = """
import hashlib, torch
from collectives.pictures import picture
before = [torch.tensor([10**rank, 7]) for rank in range(3)]
after = [sum(before), None, ["a", torch.tensor([100, 9])]]
figure = picture.draw(before, after, op="SUM", title="t")
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
    code = (
        "import sys, collectives.pictures.picture; "
        "print({'torch', 'matplotlib.pyplot'} & sys.modules.keys())"
    )
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
    words = " ".join(lines).split()
    for cell in cells(name).values():
        assert cell.text + STATES[cell.state][0] + cell.label.replace("r?", "") in words


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
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        "import collectives.pictures.text; import collectives.pictures.picture"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "collectives/pictures/picture.py" in done.stderr.replace("\\", "/")
    assert "pictures need matplotlib" in done.stderr
    assert "pip install 'collectives[pictures]'" in done.stderr
