"""The drawn timeline shows what the program orders, and nothing else (read from the figure)."""

import itertools
import re
from dataclasses import replace

import pytest
from drawn import RING
from figures import to_hex, way
from hand_made import program

from collectives.pictures import illustration, lanes, picture, timeline
from collectives.pictures.colours import LIGHT


def shapes(figure, pattern: str) -> dict:
    """The shapes whose gid is like that."""
    shapes = [*figure.axes[0].patches, *figure.axes[0].lines]
    return {
        shape.get_gid(): shape for shape in shapes if re.fullmatch(pattern, shape.get_gid() or "")
    }


def bars(figure) -> dict[str, tuple[int, int]]:
    """The step at which each bar begins, and that at which it ends; all in the first row."""
    found = shapes(figure, r"r\d+/c\d+")
    return {
        gid: (
            round((bar.get_x() - lanes.LEFT) / lanes.STEP),
            round((bar.get_x() + bar.get_width() - lanes.LEFT) / lanes.STEP),
        )
        for gid, bar in found.items()
        if hasattr(bar, "get_width")
    }


def ticks(figure) -> list[str]:
    return [
        gid
        for gid, shape in shapes(figure, r"r\d+/c\d+").items()
        if not hasattr(shape, "get_width")
    ]


def ends(arrow) -> tuple:
    """The first and the last point of an arrow."""
    points = way(arrow).vertices.tolist()
    return points[0], points[-1]


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
        (x0, y0), (x1, y1) = ends(arrow)
        for (x, y), box in zip(((x0, y0), (x1, y1)), map(boxes.get, gid.split("-")), strict=True):
            assert box.get_x() < x < box.get_x() + box.get_width()
            assert y == pytest.approx(box.get_y()) or y == pytest.approx(
                box.get_y() + box.get_height()
            )


def test_a_barrier_is_drawn_as_a_line_at_the_last_one_to_come():
    figure = timeline.draw(program("barrier", "isend:0 isend:0 barrier"))
    assert bars(figure) == {"r0/c0": (0, 3), "r1/c0": (0, 1), "r1/c1": (1, 2), "r1/c2": (2, 3)}
    assert arrows(figure) == {}
    (dots,) = fences(figure).values()
    assert len(dots.get_xdata()) == 2
    assert dots.get_xdata()[0] == pytest.approx(lanes.LEFT + 2 * lanes.STEP, abs=0.2)


@pytest.mark.parametrize("name", ["new_group", "barrier!", "destroy_process_group"])
def test_without_a_barrier_ranks_are_not_drawn_as_ordered(name):
    figure = timeline.draw(program(f"{name} isend:1", f"isend:0 isend:0 {name}"))
    assert "r0/c0" in ticks(figure) or bars(figure)["r0/c0"] == (0, 1)
    assert fences(figure) == {} == arrows(figure)


def test_a_broadcast_is_drawn_from_its_root_and_a_reduce_to_its_root():
    figure = timeline.draw(program(*["broadcast:1 reduce:1"] * 3))
    assert set(arrows(figure)) == {"r1/c0-r0/c0", "r1/c0-r2/c0", "r0/c1-r1/c1", "r2/c1-r1/c1"}
    assert fences(figure) == {}


def test_from_any_source_the_file_is_the_same_whoever_came_first():
    runs = [
        program(f"recv:any{a} recv:any{b} recv:any{c} barrier", *["send:0 barrier"] * 3)
        for a, b, c in itertools.permutations((1, 2, 3))
    ]
    figures = [timeline.draw(calls, title="any") for calls in runs]
    assert len({picture.svg(figure) for figure in figures}) == 1
    assert {arrow.get_linestyle() for arrow in arrows(figures[0]).values()} == {"--"}
    assert "Dashed" in " ".join(texts(figures[0]))


def test_receives_from_any_source_in_a_row_are_one_bar_in_which_all_their_messages_end():
    calls = program(
        "recv:any2 recv:any1 barrier recv:any1", "send:0 barrier send:0", "send:0 barrier"
    )
    figure = timeline.draw(calls)
    found = bars(figure)
    assert found["r0/c0"] == (0, 2)
    assert {"r0/c1"} == {gid for gid in (f"r0/c{at}" for at in range(4)) if gid not in found}
    assert set(arrows(figure)) == {"r1/c0-r0/c1", "r2/c0-r0/c1", "r1/c2-r0/c3"}
    assert "recv\nfrom any\n2 times" in texts(figure)


def test_work_of_the_ranks_own_is_a_white_bar_with_its_name_and_makes_a_timeline():
    calls = program("isend:1 span:multiply wait:0", "irecv:0 wait:0")
    (figure,) = illustration.draw(calls, "overlap")
    assert bars(figure)["r0/c1"] == (1, 2)
    assert to_hex(shapes(figure, "r0/c1")["r0/c1"].get_facecolor()) == LIGHT
    assert "multiply" in texts(figure)
    assert "White: the rank's own work." in " ".join(texts(figure))
    calls = [call for call in calls if call.name != "span"]
    assert "White" not in " ".join(texts(timeline.draw(calls)))


def test_arrows_of_a_call_with_a_root_are_said_to_be_no_way():
    told = [
        " ".join(texts(timeline.draw(program(*[name] * 3)))) for name in ("broadcast:1", "barrier")
    ]
    assert ["not the way" in one for one in told] == [True, False]


def test_what_failed_and_what_was_never_left_is_marked():
    figure = timeline.draw(program("send:1!", "recv:0..."))
    boxes = shapes(figure, r"r\d+/c\d+")
    assert {box.get_linestyle() for box in boxes.values()} == {"--"}
    assert arrows(figure) == {}
    assert {"send\nto 1\nfailed", "recv\nfrom 0\nnever returned"} <= set(texts(figure))
    (figure,) = illustration.draw(program("send:1", "recv:0..."), "", died={1: "died (SIGABRT)"})
    assert "recv\nfrom 0\ndied (SIGABRT)" in texts(figure)


def test_calls_that_only_make_or_end_groups_are_ticks_which_take_no_step():
    calls = program("new_group new_group barrier destroy_process_group", "barrier")
    figure = timeline.draw(calls)
    assert ticks(figure) == ["r0/c0", "r0/c1", "r0/c3"]
    assert bars(figure) == {"r0/c2": (0, 1), "r1/c0": (0, 1)}
    assert "Grey ticks: destroy_process_group, new_group." in " ".join(texts(figure))
    assert "then new_group, then barrier" in figure.get_label()


@pytest.mark.parametrize("words", ["new_group... barrier", "new_group! barrier", "new_group"])
def test_such_a_call_is_a_bar_if_it_went_wrong_or_nothing_else_was_called(words):
    figure = timeline.draw(program(words))
    assert "r0/c0" in bars(figure)
    assert ticks(figure) == []


def test_a_long_run_goes_on_in_further_rows():
    figure = timeline.draw(program("isend:1 " * 14, "barrier..."), title="long")
    starts = {gid: bar.get_y() for gid, bar in shapes(figure, r"r0/c\d+").items()}
    rows = sorted(set(starts.values()))
    assert [list(starts.values()).count(row) for row in rows] == [5, 5, 4]
    assert {"r1/c0", "r1/c0/row1", "r1/c0/row2"} == shapes(figure, r"r1/c0.*").keys() - {"words"}
    assert [text for text in texts(figure) if text.startswith("rank 0")] == ["rank 0"] * 3
    assert figure.get_figwidth() * 96 <= 850


def test_an_arrow_into_another_row_ends_in_the_bar_that_it_is_for():
    figure = timeline.draw(program("send:1", "isend:0 " * 9 + "recv:0"))
    (arrow,) = shapes(figure, r"r0/c0-r1/c9").values()
    bar = shapes(figure, r"r1/c9")["r1/c9"]
    _, (x, y) = ends(arrow)
    assert bar.get_x() < x < bar.get_x() + bar.get_width()
    assert y == pytest.approx(bar.get_y())


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


def test_collectives_that_ranks_start_in_two_orders_are_joined_crosswise():
    calls = [
        replace(call, name="all_reduce", group=group, seq=0, is_async=True)
        for call, group in zip(program("barrier barrier", "barrier barrier"), "abba", strict=True)
    ]
    waits = [
        replace(call, name="wait", of=call.number, number=call.number + 2, is_async=False)
        for call in calls
    ]
    columns = {
        gid: [round((x - lanes.LEFT) // lanes.STEP) for x in line.get_xdata()]
        for gid, line in fences(timeline.draw([*calls, *waits])).items()
    }
    assert columns == {"all_reduce/a/0": [0, 1], "all_reduce/b/0": [1, 0]}
