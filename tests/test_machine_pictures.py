"""The pictures of the chapter on machines: what they say, and whether it can be read."""

from drawn import PANELS, SLOW, figures
from matplotlib.colors import to_hex

from collectives.pictures import cables
from collectives.pictures.colours import WRONG, contrast, tint


def patches(figure):
    return {one.get_gid(): one for one in figure.axes[0].patches if one.get_gid()}


def test_a_slow_pair_is_red_in_both_of_its_places():
    boxes = patches(figures()["pairs"])
    red = {gid for gid, box in boxes.items() if to_hex(box.get_facecolor()) == tint(WRONG)}
    slow = {f"pair/{a}-{b}" for pair in SLOW if SLOW[pair] for a, b in (pair, pair[::-1])}
    assert red == slow | {"all/0", "all/1", "all/2"}
    assert set(boxes) - red == {"pair/0-1", "pair/1-0"}
    assert contrast("#111111", tint(WRONG)) >= 4.5


def test_an_arrow_for_each_send_and_only_those_of_node0_leave_it_in_red():
    arrows = patches(figures()["cables"])
    assert set(arrows) == {f"{name}/r{a}-r{b}" for name, _, sends, _ in PANELS for a, b in sends}
    red = {gid for gid, one in arrows.items() if to_hex(one.get_edgecolor()) == cables._OUT}
    assert red == {"in blocks/r1-r2", "round-robin/r0-r1", "round-robin/r2-r3", "leaders/r0-r2"}
