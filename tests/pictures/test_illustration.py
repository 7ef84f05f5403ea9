"""What is drawn of a run: the calls that it is about, and its grid of groups."""

from dataclasses import replace

import pytest
import torch
from drawn import GRID, reductions
from figures import words
from hand_made import program

from collectives.pictures import illustration, mesh
from collectives.pictures.page import take_caption
from collectives.recording.call import Call


def collective(seq, before, after, name="all_reduce", **fields) -> list[Call]:
    """One collective of all ranks; `fields` are the same for all of them, or lists by rank."""
    members = [tuple(range(len(before)))] * len(before)
    fields = {"op": "SUM", "line": 10, "members": members} | fields
    return [
        Call(
            name,
            rank=rank,
            number=seq,
            seq=seq,
            left=1,
            before={"tensor": before[rank]},
            after={"tensor": after[rank]},
            **{key: one[rank] if isinstance(one, list) else one for key, one in fields.items()},
        )
        for rank in range(len(before))
    ]


def test_several_calls_are_shown_and_counted():
    calls = collective(0, [[1], [2]], [[2], [2]], op="MAX") + collective(1, [[1], [2]], [[3], [3]])
    written = words(*illustration.draw(calls, "softmax"))
    assert {"call 1 of 2", "(MAX)", "call 2 of 2", "(SUM)"} <= set(written)


def test_the_calls_of_worlds_of_one_rank_are_no_call_of_all():
    calls = collective(0, [[1], [2]], [[3], [3]])
    alone = collective(0, [[3], [3]], [[3], [3]], members=[(0,), (1,)])
    assert [*illustration.data(calls + alone)] == [*illustration.data(calls)]
    assert illustration.data(alone) == []


def test_one_call_is_not_counted():
    written = words(*illustration.draw(collective(0, [[1], [2]], [[3], [3]]), "total"))
    assert "all_reduce(SUM)" in written
    assert not any("call" in word for word in written)


def test_of_many_calls_one_of_each_kind_is_shown_and_no_call_is_left_out_in_silence():
    lines = [10, 10, 10, 10, 20, 10]
    calls = [
        call
        for seq, line in enumerate(lines)
        for call in collective(seq, [[1], [2]], [[3], [3]], line=line)
    ]
    (figure,) = illustration.draw(calls, "loop")
    shown = [word for word in words(figure) if word.startswith("call ")]
    assert shown == ["call 1 of 6", "call 5 of 6"]
    assert take_caption(figure)[1].endswith("Calls 2-4, 6 are like call 1.")


def test_the_colours_of_a_call_are_carried_over_to_the_next_one():
    calls = collective(0, [[1], [2]], [[3], [3]])
    calls += collective(1, [[3], [3]], [[3], [3]], name="broadcast", op=None, peer=1)
    _, second = illustration.data(calls)
    rows = (*second.origins.before, *second.origins.after)
    assert {cell.ranks for row in rows for cell in row} == {(0, 1)}


def test_ranks_that_meet_in_different_lines_are_told():
    calls = collective(0, [[1], [100], [1]], [[102]] * 3, line=[127, 130, 127])
    told = " ".join(words(*illustration.draw(calls, "order")))
    assert "ranks 0,2 in line 127, rank 1 in line 130" in told


def test_ranks_that_ask_for_different_reductions_are_told_and_what_came_of_it():
    calls = collective(0, [[1], [2]], [[3], [4]], op=["MAX", "SUM"])
    (figure,) = illustration.draw(calls, "ops")
    assert "rank 0 for MAX, rank 1 for SUM" in " ".join(words(figure))
    assert "rank 0 has 3 reduced from rank 0 and rank 1" in figure.get_label()
    assert "rank 1 has 4, undefined" in figure.get_label()


@pytest.mark.parametrize(
    ("ranks", "pictures"),
    [
        (["init_process_group barrier destroy_process_group"] * 2, 0),
        (["init_process_group barrier destroy_process_group", "init_process_group barrier..."], 1),
        (["all_gather_object barrier"] * 2, 0),
        (["barrier"] * 2, 0),
        (["barrier barrier"] * 2, 1),
        (["barrier " * 40] * 2, 1),
        (["barrier " * 41] * 2, 0),
        # A message without a tag, unless it is lost.
        (["send:1", "recv:0"], 0),
        (["send:1", "recv:0!"], 1),
        (["send:1#7", "recv:0#7"], 1),
    ],
)
def test_what_shows_nothing_and_what_cannot_be_drawn_has_no_picture(ranks, pictures):
    assert len(illustration.draw(program(*ranks), "step")) == pictures


def test_a_step_that_breaks_off_is_shown_by_order_unless_that_is_luck():
    calls = [*collective(0, [[1], [2]], [[3], [3]]), *program("barrier!")]
    calls = [*calls[:2], replace(calls[2], name="all_reduce", number=1, seq=1)]
    assert "all_reduce\nfailed" in words(*illustration.draw(calls, "lost"))
    assert "before" in words(*illustration.draw(calls, "lost", died={0: ""}))


def untraceable(**fields) -> list[Call]:
    """A collective whose values all ranks have, so that nobody can say whose they are."""
    everyone = [[7, 7]] * 3  # one is missing
    calls = collective(0, [[7]] * 3, everyone, name="all_gather", op=None, **fields)
    return [replace(call, after={"tensor_list": call.after["tensor"]}) for call in calls]


def test_values_that_all_ranks_have_are_no_picture():
    calls = collective(0, [[7], [7], [7]], [[7], [7], [8]], name="broadcast", op=None, peer=0)
    assert illustration.data(calls) is not None
    assert illustration.draw(untraceable(), "same") == []


def test_such_a_collective_is_shown_by_order_if_the_ranks_go_on_meanwhile():
    calls = untraceable(is_async=True)
    waits = {"number": 1, "name": "wait", "of": 0, "awaited": "all_gather", "is_async": False}
    calls += [replace(call, **waits) for call in calls]
    written = " ".join(words(*illustration.draw(calls, "go_on")))
    assert "all_gather" in written
    assert "no rank has the result before the last one has called" in written


def test_a_named_group_of_a_grid_bears_its_name():
    calls = [
        replace(call, group_name="tp" if len(call.members) == 3 else "dp")
        for call in reductions(*GRID)
    ]
    (figure,) = illustration.draw(calls, "grid")
    assert "Row 3, 4, 5: tp: all_reduce. Column 0, 3: dp: all_reduce." in figure.get_label()


@pytest.mark.parametrize(
    "groups",
    [[(0, 1), (2, 3)], [(0, 1), (2, 3), (0, 2)], [(0, 1), (1, 2), (0, 2)], [(0, 1, 2, 3)]],
    ids=["rows only", "a column is missing", "overlapping", "one group"],
)
def test_other_groups_are_no_grid(groups):
    assert mesh.grid(reductions(*groups)) is None


def test_the_data_of_one_group_is_shown_and_who_is_not_in_it():
    zeros = [torch.zeros(2)] * 2
    calls = collective(0, zeros, zeros, name="broadcast", op=None, peer=2, group="pair")
    calls = [replace(call, rank=call.rank + 1, members=(1, 2)) for call in calls]
    calls += program(*["new_group"] * 3)
    (figure,) = illustration.draw(calls, "pair", roles=["guest", "copy", "root"])
    assert {"not in the group", "guest", "copy"} <= {*words(figure)}
    assert "Before, rank 0 has no buffer" in figure.get_label()
    assert "After, rank 1 has 0, 0 received from rank 2" in figure.get_label()


PROGRAM = """
def step(rank, device):
    out = torch.nn.functional.pad(x, (0, 1), value=-7)
    dist.gather(x, pieces if rank == 0 else None, dst=0)
    dist.all_gather_single(
        output_tensor=out,
        input_tensor=x.view(-1),
    )
    # proof
    dist.all_reduce(x)

def other():
    dist.all_reduce(self.loss, op=SUM)
    dist.all_reduce(x)
"""


def in_the_program(tmp_path, name, line) -> Call:
    (tmp_path / "program.py").write_text(PROGRAM)
    return Call(name, rank=0, number=0, file=str(tmp_path / "program.py"), line=line)


@pytest.mark.parametrize(
    ("name", "line", "parameter", "expected"),
    [
        ("gather", 4, "tensor", "x"),
        ("gather", 4, "gather_list", "pieces"),
        ("all_gather_single", 5, "output_tensor", "out"),
        ("all_gather_single", 7, "input_tensor", "x.view(-1)"),
        ("all_reduce", 13, "tensor", "self.loss"),
        ("all_reduce", 4, "tensor", ""),
    ],
)
def test_buffers_have_the_names_of_the_program(tmp_path, name, line, parameter, expected):
    assert illustration.buffer_name(in_the_program(tmp_path, name, line), parameter) == expected


@pytest.mark.parametrize(("line", "value"), [(2, None), (5, -7)])
def test_what_a_program_fills_a_buffer_up_with(tmp_path, line, value):
    assert illustration.padding(in_the_program(tmp_path, "all_gather_single", line), "out") == value


def test_the_picture_has_these_names(tmp_path):
    calls = collective(0, [[1], [2]], [[3], [3]], file=str(tmp_path / "program.py"), line=13)
    in_the_program(tmp_path, "all_reduce", 13)
    assert {"self.loss before", "self.loss after"} <= set(words(*illustration.draw(calls, "sum")))
    # Rank 0 passes x there: no name fits both ranks.
    calls[0] = replace(calls[0], line=14)
    assert {"before", "after"} <= set(words(*illustration.draw(calls, "sum")))


def test_a_call_of_the_proof_is_not_drawn_unless_it_went_wrong(tmp_path):
    lines = [4, 5, 10, 13]
    calls = [in_the_program(tmp_path, "all_reduce", line) for line in lines]
    assert [illustration.is_for_the_proof(call) for call in calls] == [False, False, True, False]
    file = str(tmp_path / "program.py")
    calls = collective(0, [[1], [2]], [[3], [3]], file=file, line=10)
    assert illustration.draw(calls, "proof") == []
    assert len(illustration.draw([replace(call, error="lost") for call in calls], "proof")) == 1
