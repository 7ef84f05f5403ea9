"""What a mistake damaged is drawn from what `check` said (read from the figure)."""

import pytest
from figures import pixels, texts, too_small

from collectives.pictures import damage, picture
from collectives.pictures.colours import WRONG


def red(figure) -> list[str]:
    """The cells that are marked as wrong."""
    return [patch.get_gid() for patch in figure.axes[0].patches if _is_red(patch)]


def _is_red(patch) -> bool:
    from matplotlib.colors import to_hex

    return bool(patch.get_gid()) and to_hex(patch.get_edgecolor()) == WRONG


def test_the_elements_that_differ_are_red():
    figure = damage.draw({0: "got [[2, 4], [3, 4]], should be [[2, 2], [6, 4]]"}, title="column")
    assert red(figure) == ["got/r0/e1", "got/r0/e2"]
    written = [text.get_text() for text in texts(figure)]
    assert [word for word in written if word.isdigit()] == list("24342264")


def test_only_the_ranks_that_noticed_are_drawn_and_words_say_the_same():
    found = {2: "got [50.0], should be [60.0]", 1: "got [1.0, 2.0], should be [60.0]"}
    figure = damage.draw(found, title="loss")
    assert red(figure) == ["got/r1/e0", "got/r1/e1", "got/r2/e0"]
    assert figure.get_label() == (
        "loss: what was damaged. Rank 1 got [1.0, 2.0], should be [60.0]. "
        "Rank 2 got [50.0], should be [60.0]."
    )
    assert too_small(figure) == []
    values = [text for text in texts(figure) if text.get_text() in ("50", "60")]
    assert len(values) == 3
    assert min(map(pixels, values)) >= 16
    assert picture.svg(figure) == picture.svg(damage.draw(found, title="loss"))


@pytest.mark.parametrize(
    "found",
    [{}, {0: "got [nan], should be [1.0]"}, {0: f"got {list(range(60))}, should be [1]"}],
    ids=["nothing", "no number", "too many"],
)
def test_what_cannot_be_drawn_has_no_picture(found):
    assert damage.draw(found) is None
