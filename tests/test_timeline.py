"""The drawn timeline shows the order that the program enforces, and no other."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hand_made import program

pytest.importorskip(
    "matplotlib", reason="pictures need matplotlib: pip install 'collectives[pictures]'"
)

from collectives.pictures import picture, timeline
from collectives.recording.call import Call

RING = [
    "isend:1 irecv:2 wait:1 wait:0",
    "isend:2 irecv:0 wait:1 wait:0",
    "isend:0 irecv:1 wait:1 wait:0",
]


def shapes(figure, pattern: str) -> dict:
    """The shapes whose gid is like that."""
    shapes = [*figure.axes[0].patches, *figure.axes[0].lines]
    return {
        shape.get_gid(): shape for shape in shapes if re.fullmatch(pattern, shape.get_gid() or "")
    }


def bars(figure) -> dict[str, tuple[int, int]]:
    """The step at which each bar begins, and that at which it ends."""
    found = shapes(figure, r"r\d+/c\d+")
    return {
        gid: (
            round(bar.get_x() / timeline.STEP),
            round((bar.get_x() + bar.get_width()) / timeline.STEP),
        )
        for gid, bar in found.items()
    }


def arrows(figure) -> dict:
    return shapes(figure, r"r\d+/c\d+-r\d+/c\d+")


def fences(figure) -> dict:
    return shapes(figure, r"\w+/\w+/\d+")


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_every_call_is_a_bar_in_its_ranks_lane_at_its_step():
    figure = timeline.draw(program("send:1", "recv:0 send:2", "recv:1"), title="chain")
    assert bars(figure) == {"r0/c0": (0, 1), "r1/c0": (0, 1), "r1/c1": (1, 2), "r2/c0": (0, 2)}
    middles = {
        gid: bar.get_y() + bar.get_height() / 2 for gid, bar in shapes(figure, r"r\d+/c\d+").items()
    }
    names = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts}
    assert all(middles[gid] == pytest.approx(names[f"rank {gid[1]}"]) for gid in middles)


def test_a_message_is_an_arrow_from_its_send_to_the_call_that_ends_with_it():
    figure = timeline.draw(program(*RING))
    assert set(arrows(figure)) == {"r0/c0-r1/c2", "r1/c0-r2/c2", "r2/c0-r0/c2"}
    boxes = shapes(figure, r"r\d+/c\d+")
    for gid, arrow in arrows(figure).items():
        (x0, y0), (x1, y1) = arrow._posA_posB
        for (x, y), box in zip(((x0, y0), (x1, y1)), map(boxes.get, gid.split("-")), strict=True):
            assert box.get_x() < x < box.get_x() + box.get_width()
            assert y == pytest.approx(box.get_y()) or y == pytest.approx(
                box.get_y() + box.get_height()
            )


def test_another_match_moves_the_arrow():
    def drawn(first, second):
        return set(
            arrows(timeline.draw(program("isend:1#1 isend:1#2", f"recv:0#{first} recv:0#{second}")))
        )

    assert drawn(1, 2) == {"r0/c0-r1/c0", "r0/c1-r1/c1"}
    assert drawn(2, 1) == {"r0/c1-r1/c0", "r0/c0-r1/c1"}


def test_a_barrier_is_drawn_as_a_line_at_the_last_one_to_come():
    figure = timeline.draw(program("barrier", "new_group new_group barrier"))
    assert bars(figure) == {"r0/c0": (0, 3), "r1/c0": (0, 1), "r1/c1": (1, 2), "r1/c2": (2, 3)}
    assert arrows(figure) == {}
    (dots,) = fences(figure).values()
    assert len(dots.get_xdata()) == 2
    assert dots.get_xdata()[0] == pytest.approx(2 * timeline.STEP, abs=0.1)


@pytest.mark.parametrize("name", ["new_group", "barrier!", "destroy_process_group"])
def test_without_a_barrier_ranks_are_not_drawn_as_ordered(name):
    figure = timeline.draw(program(name, f"new_group new_group {name}"))
    assert bars(figure)["r0/c0"] == (0, 1)
    assert fences(figure) == {} == arrows(figure)


def test_a_broadcast_is_drawn_from_its_root_and_a_reduce_to_its_root():
    figure = timeline.draw(program(*["broadcast:1 reduce:1"] * 3))
    assert set(arrows(figure)) == {"r1/c0-r0/c0", "r1/c0-r2/c0", "r0/c1-r1/c1", "r2/c1-r1/c1"}
    assert fences(figure) == {}


def test_lines_of_two_groups_at_one_step_lie_side_by_side():
    calls = [
        Call(**{**vars(call), "group": f"group {call.rank % 2}"})
        for call in program(*["barrier"] * 4)
    ]
    dots = [
        shape
        for shape in timeline.draw(calls).axes[0].lines
        if "barrier" in (shape.get_gid() or "")
    ]
    assert [len(one.get_xdata()) for one in dots] == [2, 2]
    assert dots[0].get_xdata()[0] != dots[1].get_xdata()[0]


def test_from_any_source_the_file_is_the_same_whoever_came_first():
    runs = [
        program(f"recv:any{a} recv:any{b} recv:any{c} barrier", *["send:0 barrier"] * 3)
        for a, b, c in itertools.permutations((1, 2, 3))
    ]
    figures = [timeline.draw(calls, title="any") for calls in runs]
    assert len({picture.svg(figure) for figure in figures}) == 1
    assert {arrow.get_linestyle() for arrow in arrows(figures[0]).values()} == {"--"}
    assert "Dashed" in " ".join(texts(figures[0]))


def test_what_failed_and_what_was_never_left_is_marked():
    figure = timeline.draw(program("send:1!", "recv:0..."))
    boxes = shapes(figure, r"r\d+/c\d+")
    assert {box.get_linestyle() for box in boxes.values()} == {"--"}
    assert arrows(figure) == {}
    assert {"send\nto 1\nfailed", "recv\nfrom 0\nnot left"} <= set(texts(figure))


def test_the_words_in_a_bar_name_the_other_side_the_tag_and_the_group():
    figure = timeline.draw(program("isend:1#7 barrier wait:0", "recv:0#7 barrier"))
    assert {"isend\nto 1, tag 7", "recv\nfrom 0, tag 7", "barrier", "wait\nfor isend"} <= set(
        texts(figure)
    )


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([], "No calls were recorded"),
        (program(*["barrier"] * 9), "9 ranks are too many"),
        (program("barrier " * 41), "41 steps are too many"),
    ],
    ids=["no calls", "9 ranks", "41 steps"],
)
def test_what_cannot_be_drawn_is_said(calls, told):
    figure = timeline.draw(calls)
    assert told in " ".join(texts(figure)).replace("\n", " ")
    assert bars(figure) == {}


def test_the_svg_is_the_same_every_time_and_holds_text_gids_and_a_description():
    first, second = (picture.svg(timeline.draw(program(*RING), title="ring")) for _ in range(2))
    assert first == second
    root = ElementTree.fromstring(first)
    ids = {element.get("id") for element in root.iter()}
    assert {"r0/c0", "r2/c3", "r0/c0-r1/c2"} <= ids
    assert "isend" in ElementTree.tostring(root, "unicode", "text").split()
    assert root.get("role") == "img"
    assert (
        "Rank 0: isend to 1, then irecv from 2, then wait for irecv, then wait for isend."
        in root.get("aria-label")
    )
    assert b"date" not in first.lower()
