"""Hints: risky use within one rank is reported with its line; correct use is not."""

import linecache
import time

import pytest
import torch
import torch.distributed as dist
from diagnosing import diagnose, script

from collectives import launch
from collectives.backends import claims
from collectives.course import chapters, files
from collectives.diagnosis.rules.hints import hints
from collectives.recording.call import Call, RiskyCall, TensorKind
from collectives.recording.ending import Ending


def hinted(steps, ranks=2):
    """Run steps one after the other and return the hints for all ranks."""

    def each(rank, world_size, device):
        for step in steps:
            step(rank, world_size, device)
            # subtle: no barrier. gloo's barrier waits for the work started before it, and raises
            # the error of a work that has failed, if the thread that ran it still holds it.
            dist.all_reduce(torch.zeros(1))

    risky = launch(each, ranks, backend="gloo", record="calls").risky_calls
    return hints(risky, Ending.OK, claims.wrong_with_gaps)


def ones():
    return torch.ones(4)


def sent_and_changed(rank, world_size, device):
    x = ones()
    if rank == 0:
        work = dist.isend(x, dst=1)  # risky
        x.zero_()
        work.wait()
    else:
        dist.recv(x, src=0)


def reduced_and_changed_through_a_view(rank, world_size, device):
    x = ones()
    work = dist.all_reduce(x, async_op=True)  # risky
    x[1:3].add_(1)
    work.wait()


def changed_in_a_list(rank, world_size, device):
    given = [ones() for _ in range(world_size)]
    work = dist.reduce_scatter(ones(), given, async_op=True)  # risky
    given[1].add_(1)
    work.wait()


def received_without_a_wait(rank, world_size, device):
    if rank == 0:
        work = dist.irecv(ones(), src=1)  # risky
    else:
        dist.send(ones(), dst=0)
    dist.barrier()
    if rank == 0:
        # subtle: gloo gives up a message whose Work is gone before it has arrived, and with it the
        # barrier.
        del work


def broadcast_without_a_wait(rank, world_size, device):
    dist.broadcast(ones(), src=1, async_op=True)  # risky
    dist.barrier()


def looked_at_too_early(rank, world_size, device):
    if rank == 0:
        work = dist.irecv(ones(), src=1)  # risky
        work.is_completed()
    dist.barrier()
    if rank == 1:
        dist.send(ones(), dst=0)
    dist.barrier()


def column(rank, world_size, device):
    dist.all_reduce(torch.ones(4, 2)[:, 0])  # risky


def repeated(rank, world_size, device):
    for _ in range(3):
        dist.broadcast(torch.ones(1).expand(4), src=0)  # risky


CHANGED = "changed the tensor of {} before its wait()"
NEVER, GAPS = "never waited for {}", "gave {} a tensor with gaps"
# Each risky step: the ranks that get the hint, its text, and the call that it names.
RISKY = {
    sent_and_changed: ([0], CHANGED, "isend(float32[4], dst=1, tag=0)"),
    reduced_and_changed_through_a_view: ([0, 1], CHANGED, "all_reduce(SUM, float32[4])"),
    changed_in_a_list: ([0, 1], CHANGED, "reduce_scatter(SUM, float32[4], 2 x float32[4])"),
    received_without_a_wait: ([0], NEVER, "irecv(float32[4], src=1, tag=0)"),
    broadcast_without_a_wait: ([0], NEVER, "broadcast(float32[4], src=1)"),
    looked_at_too_early: ([0], NEVER, "irecv(float32[4], src=1, tag=0)"),
    column: ([0, 1], GAPS, "all_reduce(SUM, float32[4])"),
    repeated: ([0, 1], GAPS, "broadcast(float32[4], src=0)"),
}


def test_risky_use_is_reported_once_with_its_ranks_and_its_line():
    found = hinted(RISKY)
    for step, (ranks, text, call) in RISKY.items():
        own = [hint for hint in found if hint.call.function == step.__name__]
        assert [hint.call.rank for hint in own] == ranks
        assert {hint.risk for hint in own} == {text.format(call)}
    for hint in found:
        assert hint.call.file == __file__
        assert linecache.getline(hint.call.file, hint.call.line).endswith("# risky\n"), hint


def waited_then_changed(rank, world_size, device):
    x = ones()
    dist.all_reduce(x, async_op=True).wait()
    x.zero_()


def changed_when_it_was_done(rank, world_size, device):
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    x.zero_()
    work.wait()


def changed_when_its_future_was_done(rank, world_size, device):
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    work.get_future().wait()
    x.zero_()


def changed_beside_it(rank, world_size, device):
    mine, other = torch.ones(2, 4)
    work = dist.all_reduce(mine, async_op=True)
    other.zero_()
    work.wait()


def left_an_output_that_torch_fills(rank, world_size, device):
    pieces = [ones() for _ in range(world_size)]
    work = dist.all_gather(pieces, ones(), async_op=True)
    time.sleep(0.3)  # by now they have arrived
    work.wait()


def sent_without_a_wait(rank, world_size, device):
    work = dist.isend(ones(), dst=1) if rank == 0 else dist.recv(ones(), src=0)
    works = [work, dist.barrier(async_op=True)]  # gloo forgets a message whose Work is gone
    dist.barrier()
    del works


def gave_without_a_wait(rank, world_size, device):
    pieces = [ones() for _ in range(world_size)]
    works = [
        dist.broadcast(ones(), src=0, async_op=True),
        dist.reduce(ones(), dst=1, async_op=True),
        dist.gather(ones(), pieces if rank == 1 else None, dst=1, async_op=True),
    ]
    for work in works if rank == 1 else []:
        work.wait()
    dist.barrier()


def without_gaps(rank, world_size, device):
    matrix = torch.ones(4, 4)
    for tensor in (matrix.t(), matrix[1:], matrix[:, :1].contiguous(), torch.ones(0, 3).t()):
        dist.all_reduce(tensor)
    dist.all_reduce(torch.eye(4).to_sparse())
    dist.all_gather([torch.ones(2) for _ in range(world_size)], torch.ones(2))


def without_counts(rank, world_size, device):
    with torch.inference_mode():
        x = ones()
        work = dist.all_reduce(x, async_op=True)
        work.wait()


RIGHT = (waited_then_changed, changed_when_it_was_done, changed_when_its_future_was_done)
RIGHT += (changed_beside_it, left_an_output_that_torch_fills, sent_without_a_wait)
RIGHT += (gave_without_a_wait, without_gaps, without_counts)


def test_correct_use_gives_no_hint():
    assert hinted(RIGHT) == ()


@pytest.mark.skipif(
    claims.holds("<=2.11", torch.__version__), reason="there gloo has no all_to_all of lists"
)
def test_the_lessons_on_the_calls_give_no_hint():
    names = chapters.read()["calls"].names
    steps = [step for name in names for step in files.load(files.find(name)).STEPS]
    assert hinted(steps, ranks=4) == ()


def noticed(kind, name="all_reduce", **fields):
    where = {"members": (0, 1), "file": "train.py", "line": 12}
    call = Call(name, rank=0, tensors=(TensorKind("float32", (4,)),), **where, **fields)
    return RiskyCall(kind, call, ("train.py", 14, "step") if kind == "changed" else None)


def test_a_program_that_failed_gets_no_hint_about_a_missing_wait():
    both = [noticed("changed", device="cpu"), noticed("unawaited", device="cpu")]
    assert [hint.risk.split()[0] for hint in hints(both, Ending.OK, claims.wrong_with_gaps)] == [
        "changed",
        "never",
    ]
    assert [
        hint.risk.split()[0] for hint in hints(both, Ending.RAISED, claims.wrong_with_gaps)
    ] == ["changed"]


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "isend", "scatter", "irecv"])
@pytest.mark.parametrize("peer", [0, 1])
def test_a_missing_wait_is_worth_a_hint_only_where_the_call_brings_this_rank_something(name, peer):
    takes = {"broadcast": peer == 1, "reduce": peer == 0, "gather": peer == 0, "isend": False}
    found = hints(
        [noticed("unawaited", name, peer=peer, device="cpu")], Ending.OK, claims.wrong_with_gaps
    )
    assert bool(found) == takes.get(name, True)


def test_on_nccl_a_missing_wait_is_worth_a_hint_and_a_tensor_with_gaps_an_error():
    """Only wait() makes what follows on the GPU come after the call, which has a stream of its own."""
    risky = [noticed(kind, device="cuda", backend="nccl") for kind in ("unawaited", "gaps")]
    (hint,) = hints(risky, Ending.OK, claims.wrong_with_gaps)
    assert hint.risk.startswith("never waited for all_reduce")


PROGRAM = """
    import torch, torch.distributed as dist, torch.multiprocessing as mp

    def body(rank, store):
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        x.zero_()
        work.wait()
        kept.append(dist.all_reduce(x, async_op=True))
        dist.barrier()
        dist.all_reduce(torch.ones(2, 2)[:, 0])

    kept = []
    if __name__ == "__main__":
        import sys, tempfile
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(body, (folder + "/store",), nprocs=2, start_method="fork")
"""


def test_the_command_prints_hints_and_still_reports_ok(tmp_path):
    told, done = diagnose(tmp_path, *script(tmp_path, PROGRAM))
    assert (done.returncode, told["verdict"], told["guilty"]) == (0, "ok", [])
    places = [(hint["rank"], hint["line"], hint["call"], hint["args"]) for hint in told["hints"]]
    assert places == [
        (rank, line, "all_reduce", "SUM, float32[2]") for rank in (0, 1) for line in (7, 10, 12)
    ]
    found = {(hint["file"], hint["function"]) for hint in told["hints"]}
    assert found == {(str(tmp_path / "script.py"), "body")}
    first, *rest = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
    assert len(rest) == 2
    assert first.startswith("hint: ranks 0,1 changed the tensor of all_reduce(SUM, float32[2])")
    assert "script.py:9 in body" in first
