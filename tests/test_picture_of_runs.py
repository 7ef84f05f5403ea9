"""Pictures show what really happened: drawn from runs of right collectives and of wrong ones."""

import functools

import drawn
import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex
from wrong_collectives import WRONG

from collectives import launch, span
from collectives.pictures.colours import PALETTE


def call(rank, world_size, device, name, wrong=None):
    """In a rank: call a collective, or a wrong one in its place; return its input and output."""
    if wrong:
        replaced, make_wrong = wrong
        setattr(dist, replaced, make_wrong(getattr(dist, replaced)))
    x = torch.tensor([10**rank, 2 * 10**rank])
    pieces = [torch.tensor([10**rank * (2 * to + 3)]) for to in range(world_size)]
    root, before = world_size - 1, x.clone()
    if name == "broadcast":
        dist.broadcast(x, src=root)
        return before, x
    if name in ("SUM", "MAX"):
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        return before, x
    if name == "reduce":
        dist.reduce(x, dst=root)
        return before, x if rank == root else None  # what the others then hold is not defined
    if name == "all_gather":
        gathered = [torch.full_like(x, -1) for _ in range(world_size)]
        dist.all_gather(gathered, x)
        return before, gathered
    if name == "gather":
        gathered = [torch.full_like(x, -1) for _ in range(world_size)] if rank == root else None
        dist.gather(x, gathered, dst=root)
        return before, gathered
    one = torch.tensor([-1])
    if name == "scatter":
        dist.scatter(one, pieces if rank == root else None, src=root)
        return pieces if rank == root else None, one
    if name == "reduce_scatter":
        dist.reduce_scatter(one, pieces)
        return pieces, one
    outputs = [torch.full_like(piece, -1) for piece in pieces]
    dist.all_to_all(outputs, pieces)
    return pieces, outputs


# Which ranks' values each element of rank r of n must show afterwards.
FROM = {
    "broadcast": lambda r, n: [{n - 1}] * 2,
    "SUM": lambda r, n: [set(range(n))] * 2,
    "MAX": lambda r, n: [{n - 1}] * 2,
    "reduce": lambda r, n: [set(range(n))] * 2 if r == n - 1 else [],
    "all_gather": lambda r, n: [{source} for source in range(n) for _ in range(2)],
    "gather": lambda r, n: (
        [{source} for source in range(n) for _ in range(2)] if r == n - 1 else []
    ),
    "scatter": lambda r, n: [{n - 1}],
    "reduce_scatter": lambda r, n: [set(range(n))],
    "all_to_all": lambda r, n: [{source} for source in range(n)],
}
OPS = {"SUM": "SUM", "MAX": "MAX", "reduce": "SUM", "reduce_scatter": "SUM"}


def every_call(rank, world_size, device):
    return {name: call(rank, world_size, device, name) for name in FROM}


@functools.cache
def right(world_size):
    return launch(every_call, world_size, backend="gloo", device="cpu", timeout=60.0)


def draw(results, name):
    before, after = map(list, zip(*results, strict=True))
    in_place = name in ("broadcast", "SUM", "MAX", "reduce")
    return drawn.draw(name, before=before, after=after, op=OPS.get(name), in_place=in_place)


def draw_wrong(name, wrong):
    return draw(
        launch(call, 4, args=(name, WRONG[wrong]), backend="gloo", device="cpu", timeout=60.0), name
    )


def colours(figure, rank):
    """Of each element after the call, the ranks in whose colours its cell is drawn."""
    patches = {
        patch.get_gid(): to_hex(patch.get_facecolor())
        for patch in figure.axes[0].patches
        if patch.get_gid()
    }
    found = []
    while (gid := f"after/r{rank}/e{len(found)}") in patches:
        stripes = {colour for name, colour in patches.items() if name.startswith(gid + "/")} or {
            patches[gid]
        }
        found.append({PALETTE.index(colour) for colour in stripes & set(PALETTE)})
    return found


def values(figure, rank):
    """The words in each cell."""
    found = []
    cells = {patch.get_gid(): patch for patch in figure.axes[0].patches}
    while (gid := f"after/r{rank}/e{len(found)}") in cells:
        box = cells[gid].get_bbox()
        (text,) = (one for one in figure.axes[0].texts if box.contains(*one.get_position()))
        found.append(text.get_text())
    return found


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("name", FROM)
def test_cells_have_their_values_on_the_colours_of_the_ranks_that_these_came_from(name, world_size):
    results = [result[name] for result in right(world_size)]
    figure = draw(results, name)
    for rank, (_, after) in enumerate(results):
        held = [] if after is None else torch.cat([piece.reshape(-1) for piece in after]).tolist()
        assert values(figure, rank) == [str(value) for value in held]
        assert colours(figure, rank) == FROM[name](rank, world_size)


# What a wrong collective did, for rank r of 4.
SHOWN = {
    "all_gather that permutes": (
        "all_gather",
        lambda r: [{source} for source in (3, 0, 1, 2) for _ in range(2)],
    ),
    "gather that permutes": (
        "gather",
        lambda r: [{source} for source in (3, 0, 1, 2) for _ in range(2)] if r == 3 else [],
    ),
    "broadcast that does nothing": ("broadcast", lambda r: [{r}] * 2),
    "broadcast that ignores its root": ("broadcast", lambda r: [{0}] * 2),
    "all_reduce that does nothing": ("SUM", lambda r: [{r}] * 2),
    "all_reduce that loses the last rank": ("SUM", lambda r: [{0, 1, 2}] * 2),
    "reduce that loses the last rank": ("reduce", lambda r: [{0, 1, 2}] * 2 if r == 3 else []),
    "reduce_scatter that does not reduce": ("reduce_scatter", lambda r: [{r}]),
    "all_to_all that returns its input": ("all_to_all", lambda r: [{r}] * 4),
}


@pytest.mark.parametrize("wrong", SHOWN, ids=lambda wrong: wrong.replace(" ", "_"))
def test_a_wrong_collective_shows(wrong):
    name, expected = SHOWN[wrong]
    figure = draw_wrong(name, wrong)
    for rank in range(4):
        assert colours(figure, rank) == expected(rank)
    assert any(expected(rank) != FROM[name](rank, 4) for rank in range(4)), (
        "the right one would look the same"
    )
    lacks_a_rank = any(1 < len(sources) < 4 for rank in range(4) for sources in expected(rank))
    assert ("r0-2" in [text.get_text() for text in figure.axes[0].texts]) == lacks_a_rank


def test_a_scatter_that_permutes_shows_in_its_values():
    """Every piece comes from the root: the colours are right, only the numbers are not."""
    figure = draw_wrong("scatter", "scatter that permutes")
    assert [colours(figure, rank) for rank in range(4)] == [[{3}]] * 4
    assert [values(figure, rank) for rank in range(4)] == [["5000"], ["7000"], ["9000"], ["3000"]]


def test_a_sum_where_a_maximum_was_asked_for_is_undefined():
    figure = draw_wrong("MAX", "all_reduce that sums whatever is asked")
    hatched = [patch.get_gid() for patch in figure.axes[0].patches if patch.get_hatch() == "////"]
    assert [f"after/r{rank}/e0" in hatched for rank in range(4)] == [True] * 4
    assert "undefined" in figure.get_label()
    assert colours(figure, 0) == [set(), set()]


def own_work(rank, world_size, device):
    with span("add"):
        rank += 1
    dist.barrier()


def test_a_span_of_own_work_is_noted_where_pictures_are_made_and_nowhere_else():
    noted = {
        record: [
            (call.rank, call.name, call.awaited)
            for call in launch(own_work, 2, backend="gloo", device="cpu", record=record).calls or []
        ]
        for record in ("tensors", "calls")
    }
    calls = [(rank, *call) for rank in range(2) for call in (("span", "add"), ("barrier", None))]
    assert noted == {"tensors": calls, "calls": calls[1::2]}
    launch(own_work, 2, backend="gloo", device="cpu")
