"""Groups that are rows and columns are drawn as the grid that they are (read from the figure)."""

import pytest
from figures import texts, too_small

from collectives.pictures import illustration, mesh, picture
from collectives.recording.call import Call


def reductions(*groups: tuple[int, ...]) -> list[Call]:
    """An all_reduce of every member, group after group."""
    return [
        Call(rank, number, "all_reduce", f"group {group}", group, seq=0, left=1, op="SUM")
        for number, group in enumerate(groups)
        for rank in group
    ]


GRID = [(0, 1, 2), (3, 4, 5), (0, 3), (1, 4), (2, 5)]


def outlines(figure) -> dict:
    found = {patch.get_gid() or "": patch for patch in figure.axes[0].patches}
    return {gid.removeprefix("group/"): one for gid, one in found.items() if gid[:6] == "group/"}


def test_each_group_is_an_outline_around_its_ranks_and_no_others():
    figure = illustration.illustrate("grid", reductions(*GRID))
    figure.draw_without_rendering()
    names = [text for text in texts(figure) if text.get_text().startswith("rank ")]
    assert len(names) == 6
    assert sorted(outlines(figure)) == sorted("-".join(map(str, group)) for group in GRID)
    for gid, outline in outlines(figure).items():
        box = outline.get_window_extent()
        middles = {text.get_text()[5:]: text.get_window_extent() for text in names}
        inside = [
            rank for rank, at in middles.items() if box.containsx(at.x0) and box.containsy(at.y0)
        ]
        assert sorted(inside) == gid.split("-")


def test_the_words_name_groups_and_calls():
    figure = mesh.draw(reductions(*GRID, (0, 3)), title="grid")
    assert "Row 3, 4, 5: all_reduce. Column 0, 3: all_reduce, 2 times." in figure.get_label()
    assert too_small(figure) == []
    assert picture.svg(figure) == picture.svg(mesh.draw(reductions(*GRID, (0, 3)), title="grid"))


@pytest.mark.parametrize(
    "groups",
    [[(0, 1), (2, 3)], [(0, 1), (2, 3), (0, 2)], [(0, 1), (1, 2), (0, 2)], [(0, 1, 2, 3)], []],
    ids=["rows only", "a column is missing", "overlapping", "one group", "none"],
)
def test_other_groups_are_no_grid(groups):
    assert mesh.grid(reductions(*groups)) is None
