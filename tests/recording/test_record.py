"""Each call is noted with what it asks for, and noting it changes nothing."""

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
from hand_made import works_on_gloo
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

from collectives import launch, span
from collectives.course import files
from collectives.recording import record
from collectives.recording.call import TensorKind


def floats(*lengths):
    return {"tensors": tuple(TensorKind("float32", (length,)) for length in lengths)}


def x():
    return torch.ones(4)


def many():
    return [torch.zeros(4) for _ in range(3)]


# A call on 3 ranks -> fields of its record on rank 1. The "wait" for a Work is left out.
CASES = {
    "all_reduce": (lambda: dist.all_reduce(x(), op=dist.ReduceOp.MAX), {"op": "MAX"} | floats(4)),
    "all_reduce-by-position": (lambda: dist.all_reduce(x(), dist.ReduceOp.MIN), {"op": "MIN"}),
    "all_reduce-default": (lambda: dist.all_reduce(x()), {"op": "SUM", "is_async": False}),
    "all_reduce-async": (lambda: dist.all_reduce(x(), async_op=True).wait(), {"is_async": True}),
    "broadcast": (lambda: dist.broadcast(x(), src=2), {"peer": 2, "op": None} | floats(4)),
    "broadcast-group_src": (lambda: dist.broadcast(x(), group_src=1), {"peer": 1}),
    "reduce": (lambda: dist.reduce(x(), 2), {"peer": 2, "op": "SUM"}),
    "gather": (
        lambda: dist.gather(x(), many() if dist.get_rank() == 0 else None),
        {"peer": 0} | floats(4),
    ),
    "scatter": (
        lambda: dist.scatter(x(), many() if dist.get_rank() == 1 else None, src=1),
        floats(4, 4, 4, 4),
    ),
    "all_gather": (lambda: dist.all_gather(many(), x()), {"peer": None} | floats(4, 4, 4, 4)),
    "all_gather_single": (lambda: dist.all_gather_single(torch.empty(12), x()), floats(12, 4)),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(x(), many()),
        {"op": "SUM"} | floats(4, 4, 4, 4),
    ),
    "reduce_scatter_single": (
        lambda: dist.reduce_scatter_single(x(), torch.ones(12)),
        floats(4, 12),
    ),
    "reduce_scatter_single-by-keyword": (
        lambda: dist.reduce_scatter_single(input=torch.ones(12), output=x()),
        floats(4, 12),
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.ones(3), [1, 1, 1], [1, 1, 1]),
        {"splits": ((1, 1, 1), (1, 1, 1))},
    ),
    "all_to_all_single-even": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.ones(3)),
        {"splits": (None, None)},
    ),
    "all_gather_object": (lambda: dist.all_gather_object([None] * 3, "a"), {"tensors": ()}),
    "gather_object": (
        lambda: dist.gather_object(1, [None] * 3 if dist.get_rank() == 2 else None, dst=2),
        {"peer": 2},
    ),
    "broadcast_object_list": (
        lambda: dist.broadcast_object_list([1, 2], src=0),
        {"peer": 0, "tensors": (TensorKind("object", (2,)),)},
    ),
    "broadcast_object_list-default": (lambda: dist.broadcast_object_list([1]), {"peer": 0}),
    "scatter_object_list": (lambda: dist.scatter_object_list([None], [1, 2, 3]), {"peer": 0}),
    "barrier": (lambda: dist.barrier(), {"tensors": (), "members": (0, 1, 2)}),
    "monitored_barrier": (lambda: dist.monitored_barrier(), {}),
    "new_group": (lambda: dist.new_group([2, 0]), {"ranks": ((0, 2),), "seq": 0}),
    "new_group-all": (lambda: dist.new_group(), {"ranks": ((0, 1, 2),)}),
}


if works_on_gloo("all_to_all"):
    CASES["all_to_all"] = (lambda: dist.all_to_all(many(), many()), floats(*[4] * 6))


def recorded(step, ranks, record="calls"):
    """The calls of each rank."""
    calls = launch(step, ranks, backend="gloo", record=record).calls
    return [[call for call in calls if call.rank == rank] for rank in range(ranks)]


def line_of(function):
    return function.__code__.co_filename, function.__code__.co_firstlineno


def all_cases(rank, world_size, device):
    noted = {}
    for case, (function, _) in CASES.items():
        with record.recording() as noted[case]:
            function()
    dist.barrier()  # or a rank might leave while another still connects to it in the new groups
    return noted


@pytest.fixture(scope="module")
def noted():
    return launch(all_cases, 3, backend="gloo", diagnose=False)[1]


@pytest.mark.parametrize("case", CASES)
def test_each_call_is_noted_once_with_all_that_it_asks_for(case, noted):
    function, expected = CASES[case]
    (call,) = [call for call in noted[case] if call.name != "wait"]
    usual = {"rank": 1, "number": 0, "group": "WORLD", "seq": 0, "error": None}
    expected = {"name": case.partition("-")[0]} | usual | expected
    assert {field: getattr(call, field) for field in expected} == expected
    assert (call.file, call.line) == line_of(function)
    assert call.entered < call.left


def one_line(rank, world_size, device):
    wide, turned = torch.ones(2, 4), torch.ones(4, 2).t()
    given = [(x(), 0), (x(), 1), (x(), 1), (wide, 1), (turned, 1), (x().int(), 1)]
    groups = [None, dist.new_group([1, 0])]
    for (tensor, src), group in itertools.product(given, groups):
        dist.broadcast(tensor, src, group)
    for tensor in (x(), torch.eye(2).to_sparse()):
        dist.all_reduce(tensor)


def test_one_line_that_asks_for_something_else_each_time_is_noted_as_it_asked():
    for _, *calls in recorded(one_line, 2):
        found = [(*call.tensors, call.peer, call.group != "WORLD", call.seq) for call in calls]
        four, wide = TensorKind("float32", (4,)), TensorKind("float32", (2, 4))
        usual = [(four, 0), (four, 1), (four, 1), (wide, 1), (wide, 1)]
        usual = enumerate([*usual, (TensorKind("int32", (4,)), 1)])
        expected = [(kind, src, own, seq) for seq, (kind, src) in usual for own in (False, True)]
        square = TensorKind("float32", (2, 2))
        assert found == [*expected, (four, None, False, 6), (square, None, False, 7)]


def test_groups_of_one_name_in_one_world_after_another_are_kept_apart(tmp_path):
    def step(rank, world_size, device):
        for members in ([0, 1], [2, 1]):
            dist.all_reduce(x())  # now all ranks are connected, and none of them misses the others
            dist.destroy_process_group()
            store = (tmp_path / str(members)).as_uri()
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
            dist.barrier(dist.new_group(members))
            dist.barrier()

    calls = recorded(step, 3)[1]
    barriers = [(call.members, call.seq) for call in calls if call.name == "barrier"]
    assert barriers == [((0, 1), 0), ((0, 1, 2), 1), ((1, 2), 0), ((0, 1, 2), 3)]


def exchange(rank, world_size, device):
    group = dist.new_group([0, 2])
    received = torch.empty(1)
    if rank == 0:
        dist.send(torch.tensor([7.0]), 2, group=group, tag=5)
    if rank == 1:
        dist.send(torch.tensor([8.0]), 2)
    if rank == 2:
        dist.irecv(received, src=0, group=group, tag=5).wait()
        dist.irecv(received).wait()
    dist.barrier(group)
    return received


def test_messages_name_their_peer_tag_group_and_true_source():
    zero, one, two = recorded(exchange, 3)
    subgroup = zero[1].group
    assert [call.name for call in zero] == ["new_group", "send", "barrier"]
    # The barrier of a group without rank 1 is none of its calls.
    assert [call.name for call in one] == ["new_group", "send"]
    assert [call.name for call in two] == ["new_group", "irecv", "wait", "irecv", "wait", "barrier"]
    assert subgroup != "WORLD"
    for call, peer in ((zero[1], 2), (two[1], 0)):
        found = call.group, call.members, call.peer, call.tag, call.seq
        assert found == (subgroup, (0, 2), peer, 5, None)
    assert (two[2].of, two[2].awaited, two[4].of) == (1, "irecv", 3)
    assert (two[3].peer, two[3].source, two[1].source) == (None, 1, 0)
    assert (zero[2].seq, zero[2].group) == (0, subgroup)


def test_a_batch_is_noted_message_by_message():
    def step(rank, world_size, device):
        ops = [dist.P2POp(call, x(), 1 - rank, tag=3) for call in (dist.isend, dist.irecv)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    for rank, calls in enumerate(recorded(step, 2)):
        found = [(call.name, call.of) for call in calls]
        assert found == [("isend", None), ("irecv", None), ("wait", 0), ("wait", 1)]
        assert {(call.peer, call.tag) for call in calls} == {(1 - rank, 3)}


def test_copies_hold_what_lay_there_before_and_after():
    def step(rank, world_size, device):
        y = torch.tensor([float(rank)])
        dist.all_reduce(y)
        pieces = [torch.full((1,), -1.0) for _ in range(2)]
        work = dist.all_gather(pieces, torch.tensor([10.0 + rank]), async_op=True)
        work.wait()
        y.zero_()

    for rank, (reduced, gathered, _) in enumerate(recorded(step, 2, "tensors")):
        assert reduced.before == {"tensor": torch.tensor([float(rank)])}
        assert reduced.after == {"tensor": torch.tensor([1.0])}
        assert [piece.item() for piece in gathered.before["tensor_list"]] == [-1, -1]
        assert [piece.item() for piece in gathered.after["tensor_list"]] == [10, 11]


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def operators(rank, world_size, device):
    y, pieces = x(), many()
    with Seen() as seen:
        dist.all_reduce(y)
        dist.all_gather(pieces, y, async_op=True).wait()
        y.add_(1)
    return seen.operators


def test_a_dispatch_mode_of_a_program_sees_the_same_operators_with_a_recording_and_without():
    alone = launch(operators, 3, backend="gloo", device="cpu")
    for kept in ("calls", "tensors"):
        assert launch(operators, 3, backend="gloo", device="cpu", record=kept) == alone
    assert "c10d.allreduce_.default" in alone[0]


def test_a_refused_call_is_noted_with_its_error_and_not_counted():
    def step(rank, world_size, device):
        with pytest.raises(ValueError, match="both"):
            dist.broadcast(x(), src=0, group_src=0)
        dist.barrier()

    for refused, barrier in recorded(step, 2):
        assert refused.error.startswith("ValueError: ")
        assert (barrier.name, barrier.seq, barrier.error) == ("barrier", 0, None)


def test_calls_are_there_also_when_the_block_raises():
    def step(rank, world_size, device):
        with pytest.raises(ZeroDivisionError), record.recording() as calls:
            dist.all_reduce(x() / (1 // (world_size - 2)) if dist.barrier() is None else None)
        return [call.name for call in calls]

    assert launch(step, 2, backend="gloo") == [["barrier"], ["barrier"]]


def test_a_warning_still_blames_the_caller(monkeypatch):
    """A warning finds the line to blame by counting frames, so ours must not count."""

    def old_name(*args, **kwargs):
        warnings.warn("old name", FutureWarning, stacklevel=2)

    monkeypatch.setattr(c10d, "barrier", old_name)
    with record.recording() as calls, pytest.warns(FutureWarning) as caught:
        c10d.barrier()
    assert [(one.filename, one.lineno) for one in caught] == [(calls[0].file, calls[0].line)]
    assert calls[0].file == __file__


def test_a_rank_computes_while_its_messages_travel():
    """What the lesson isend_irecv says of its step `overlap`."""
    step = files.load(files.find("isend_irecv")).overlap
    for calls in recorded(step, 3, "tensors"):
        names = [call.awaited if call.name == "span" else call.name for call in calls]
        started = max(names.index(name) for name in {"isend", "irecv"} & set(names))
        assert started < names.index("two differences") < names.index("wait")
        assert names[-1] == "the first one"


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
