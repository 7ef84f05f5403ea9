"""However a call is recorded, and by however many that want it: there is one wrapper around it."""

import json
import os
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from diagnosing import ENVIRON, diagnose, script
from repository import SUPPORT
from torch.distributed import distributed_c10d as c10d

from collectives import LaunchError, launch
from collectives.recording import record
from collectives.recording.call import TensorKind
from collectives.semantics.calls import BY_NAME

PROGRAM = """
    import json
    from collectives import launch
    from test_one_recorder import depths

    if __name__ == "__main__":
        print(json.dumps(launch(depths, 2, record="tensors")))
"""


def functions():
    """All that is wrapped, by name."""
    found = {name: getattr(c10d, name) for name in BY_NAME if hasattr(c10d, name)}
    found |= {f"dist.{name}": getattr(dist, name) for name in found if hasattr(dist, name)}
    return found | {"wait": c10d.Work.wait}


def depths(rank=0, world_size=1, device=None):
    """By name: how many functions stand around that of torch, its own decorators included."""
    found = {}
    for name, function in functions().items():
        found[name] = 0
        while function := getattr(function, "__wrapped__", None):
            found[name] += 1
    return found


def added(found):
    """How many wrappers were added to each function, and to how many functions."""
    bare = depths()
    assert set(found) == set(bare)
    return Counter(found[name] - bare[name] for name in bare)


@pytest.mark.parametrize(
    ("diagnose", "record", "expected"),
    [(False, None, 0), (None, None, 1), (False, "tensors", 1), (True, "calls", 1)],
)
def test_a_launch_wraps_each_call_once(diagnose, record, expected):
    for found in launch(depths, 2, backend="gloo", diagnose=diagnose, record=record):
        assert set(added(found)) == {expected}


@pytest.mark.slow
def test_a_program_under_diagnosis_wraps_each_call_once(tmp_path, monkeypatch):
    here = os.path.dirname(__file__)
    monkeypatch.setitem(ENVIRON, "PYTHONPATH", os.pathsep.join([here, str(SUPPORT)]))
    _, done = diagnose(tmp_path, *script(tmp_path, PROGRAM), timeout=300)
    for found in json.loads(done.stdout):
        assert set(added(found)) == {1}


def refused_barrier():
    with pytest.raises(ValueError, match="process group"):
        dist.barrier()


def test_a_recording_inside_a_recording_adds_no_wrapper_and_leaves_torch_as_it_was():
    before = functions()
    with record.recording() as outer:
        once = depths()
        with record.recording() as inner:
            assert depths() == once
            refused_barrier()
        assert depths() == once
        refused_barrier()
    assert functions() == before
    assert [len(calls) for calls in (inner, outer)] == [1, 2]


def begun_then_recorded(rank, world_size, device):
    x = torch.ones(1)
    work = dist.all_reduce(x, async_op=True)
    with record.recording(tensors=True) as calls:
        work.wait()
        second = dist.all_reduce(x, async_op=True)
    second.wait()
    return [call.name for call in calls]


def test_a_recording_holds_no_wait_for_a_call_that_it_has_not_seen():
    assert launch(begun_then_recorded, 2, backend="gloo") == [["all_reduce"]] * 2


def dies(rank, world_size, device):
    dist.all_reduce(torch.ones(2))
    if rank == 1:
        os._exit(3)
    dist.barrier()


def test_an_error_tells_what_the_ranks_called_before_one_died():
    with pytest.raises(LaunchError) as caught:
        launch(dies, 2, backend="gloo", record="calls")
    calls = [(call.rank, call.number, call.name) for call in caught.value.calls]
    assert calls == [(0, 0, "all_reduce"), (0, 1, "barrier"), (1, 0, "all_reduce")]
    assert caught.value.calls[0].tensors == (TensorKind("float32", (2,)),)


def raises_when_the_other_has_left(rank, world_size, device):
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    if rank == 1:
        time.sleep(0.3)
        raise ValueError("too late")


def test_an_error_tells_nothing_of_the_calls_that_the_launcher_makes_around_the_function():
    with pytest.raises(LaunchError, match="too late") as caught:
        launch(raises_when_the_other_has_left, 2, diagnose=False, record="calls")
    calls = [(call.rank, call.number, call.name, call.of) for call in caught.value.calls]
    assert calls == [
        (rank, *call) for rank in (0, 1) for call in ((0, "all_reduce", None), (1, "wait", 0))
    ]


def sinks(rank, world_size, device):
    return [type(sink).__name__ for sink in c10d.all_reduce.recorder.sinks]


def test_each_call_is_noted_once_for_the_diagnosis_and_once_more_for_the_results():
    assert launch(sinks, 1, backend="gloo", record="tensors") == [["Log", "Memory"]]


def test_without_a_record_there_is_none():
    with pytest.raises(LaunchError) as caught:
        launch(dies, 2, backend="gloo")
    assert caught.value.calls == []
    assert not hasattr(launch(depths, 1, backend="gloo"), "calls")
