"""The records of semantics/calls.py agree with torch: its functions, its signatures and its data."""

import inspect
import re
import subprocess
import sys
import types

import pytest
import repository
import torch
import torch.distributed as dist
from hand_made import works_on_gloo
from torch.distributed import distributed_c10d as c10d

from collectives import launch
from collectives.course import files
from collectives.recording import record
from collectives.semantics.calls import BY_NAME, CALLS, LESSONS, POINT_TO_POINT, Flow, Layout
from collectives.semantics.forms import FORMS

WITHOUT_A_RECORD = {
    # They ask this process something, or change a setting of it; no other rank takes part.
    *("get_backend", "get_backend_config", "get_default_backend_for_device", "get_debug_level"),
    *("get_rank", "get_group_rank", "get_global_rank", "get_world_size", "get_node_local_rank"),
    *("get_pg_count", "get_process_group_ranks", "is_available", "is_backend_available"),
    *("get_backend_impl", "set_timeout"),  # since torch 2.14
    *("is_initialized", "is_gloo_available", "is_mpi_available", "is_nccl_available"),
    *("is_ucc_available", "is_xccl_available", "is_torchelastic_launched", "supports_complex"),
    *("set_debug_level", "set_debug_level_from_env", "record_comm", "register_rendezvous_handler"),
    # They consist of calls that have a record, or are what init_process_group calls.
    *("batch_isend_irecv", "new_subgroups", "new_subgroups_by_enumeration", "breakpoint"),
    *("init_device_mesh", "rendezvous"),
}

HERE = [name for name in BY_NAME if hasattr(c10d, name)]  # an older torch lacks some names
COLLECTIVES = [name for name in HERE if BY_NAME[name].buffers and name not in POINT_TO_POINT]
ON_GLOO = [name for name in COLLECTIVES if works_on_gloo(BY_NAME[name].name)]


def parameters(name):
    return list(inspect.signature(getattr(c10d, name)).parameters)


def test_every_public_function_has_a_record_or_needs_none():
    kinds = (types.FunctionType, types.BuiltinFunctionType)
    public = {name for name, value in vars(dist).items() if type(value) in kinds and name[0] != "_"}
    here = {name for name in WITHOUT_A_RECORD if hasattr(dist, name)}
    assert public - set(BY_NAME) == here


def test_a_name_belongs_to_one_record():
    assert len(BY_NAME) == sum(len(spec.names) for spec in CALLS.values())


def faults(names, rule):
    """What a rule finds wrong, by name: of each pair that it yields, both must be equal."""
    found = [(name, *pair) for name in names for pair in rule(name, BY_NAME[name])]
    return [fault for fault in found if fault[1] != fault[2]]


def buffers(name, spec):
    found = [buffer.parameter for buffer in spec.buffers]
    yield found, [word for word in parameters(name) if word in found]
    tensors = r"^(tensors?|\w*_list|\w*_lists|input\w*|output\w*|gather_tensor|obj)$"
    sizes = {"output_split_sizes", "input_split_sizes", "p2p_op_list"}
    yield {*found}, {word for word in parameters(name) if re.match(tensors, word)} - sizes


def sides(name, spec):
    one_sided = {Flow.SEND: (1, 0), Flow.RECEIVE: (0, 1), Flow.GROUP: (0, 0)}
    gives, gets = (sum(getattr(one, side) for one in spec.buffers) for side in ("gives", "gets"))
    yield (gives, gets), one_sided.get(spec.flow, (1, 1) if spec.buffers else (0, 0))
    yield spec.in_place, len(spec.buffers) == 1 and spec.flow not in one_sided


def peer(name, spec):
    words = {"src", "dst", "group_src", "group_dst"} & set(parameters(name))
    yield words, {spec.peer, f"group_{spec.peer}"} if spec.peer else set()
    fitting = {Flow.SEND: "dst", Flow.TO_ROOT: "dst", Flow.RECEIVE: "src", Flow.FROM_ROOT: "src"}
    yield spec.peer, fitting.get(spec.flow)


def default_root(name, spec):
    function = inspect.unwrap(getattr(c10d, spec.name))  # an older name calls it
    default = inspect.signature(function).parameters[spec.peer].default if spec.peer else None
    if spec.peer and re.search(rf"^ +{spec.peer} = 0$", inspect.getsource(function), re.MULTILINE):
        default = 0
    yield spec.default_root, default


def reduction(name, spec):
    yield spec.reduces, "op" in parameters(name)


def work(name, spec):
    returns = inspect.signature(getattr(c10d, name)).return_annotation
    yield spec.always_async, "Work" in str(returns) and "async_op" not in parameters(name)


def bus_factor(name, spec):
    yield spec.bus_factor is not None, bool(spec.buffers) and not spec.objects


@pytest.mark.parametrize(
    "rule",
    [buffers, sides, peer, default_root, reduction, work, bus_factor],
    ids=lambda f: f.__name__,
)
def test_every_record_agrees_with_the_signature_of_torch(rule):
    assert faults(HERE, rule) == []


def test_the_recorder_wraps_all_calls_with_a_record_and_what_makes_a_batch_of_them():
    before = dict(vars(c10d))
    with record.recording():
        wrapped = {name for name, value in vars(c10d).items() if before[name] is not value}
        assert {name for name in wrapped if hasattr(dist, name)} == {
            name for name in wrapped if getattr(dist, name) is getattr(c10d, name)
        }
    assert wrapped == {*HERE, "batch_isend_irecv"}


# What the data says: every rank gives its own data, in one run for each rank that gives others.
SIZE, ROOT = 3, 1


def content(spec, buffer, value):
    """What a rank passes in a buffer, with this value in it."""

    def one(length=2):
        return {"value": value} if spec.objects else torch.full((length,), float(value))

    if buffer.layout is Layout.ONE:
        # scatter_object_list returns its one object in a list.
        return [one()] if buffer.parameter == "scatter_object_output_list" else one()
    if buffer.layout is Layout.CUT:
        return one(2 * SIZE)
    if buffer.parameter == "output_tensor_lists":
        return [[one(), one()] for _ in range(SIZE)]
    return [one() for _ in range(SIZE if buffer.layout is Layout.LIST else 2)]


def make_call(name, rank, value):
    """Make the call by its record alone; return what it left where it gets."""
    spec = BY_NAME[name]
    given = {}
    for buffer in spec.buffers:
        if buffer.layout is Layout.LIST and spec.peer and rank != ROOT:
            continue  # only the root passes it
        given[buffer.parameter] = content(spec, buffer, value if buffer.gives else -1)
    words = {spec.peer: ROOT} if spec.peer else {}
    if isinstance(getattr(dist, name)(**given, **words), dist.Work):
        raise AssertionError(f"{name} returned a Work")
    return str(given.get(spec.gets))


def all_collectives(rank, world_size, device):
    """By name, what each run left where this rank gets. In run g, rank g gives other data."""
    found = {
        name: [make_call(name, rank, 5 if run == rank else 1) for run in range(SIZE + 1)]
        for name in ON_GLOO
    }
    dist.barrier()
    return found


def data(name, measured):
    """Who was seen to give data to each rank, and who gives it by the record."""
    spec = BY_NAME[name]
    givers = {ROOT} if spec.flow is Flow.FROM_ROOT else set(range(SIZE))
    for taker in {ROOT} if spec.flow is Flow.TO_ROOT else set(range(SIZE)):
        runs, others = measured[taker][name], set(range(SIZE)) - {taker}
        plain = runs[SIZE]  # in the last run nobody gives other data
        yield {giver for giver in others if runs[giver] != plain}, givers & others


def test_data_goes_from_those_who_give_to_those_who_get():
    measured = launch(all_collectives, SIZE, backend="gloo", timeout=120)
    assert faults(ON_GLOO, lambda name, spec: data(name, measured)) == []


def test_every_lesson_is_there_and_first_teaches_the_call_that_it_is_named_after():
    for lesson in LESSONS:
        assert files.find(lesson).is_file()
        first = next(spec.name for spec in CALLS.values() if spec.lesson == lesson)
        assert first == lesson or lesson.startswith(f"{first}_")


def test_the_matrix_tries_every_call_that_a_lesson_teaches_as_its_record_says():
    for name, spec in CALLS.items():
        assert (name in FORMS) == (spec.lesson is not None)
        if name in FORMS:
            assert (FORMS[name].collective, FORMS[name].reduces) == (spec.lesson, spec.reduces)
            assert (FORMS[name].dtypes == "none") == (spec.objects or not spec.buffers)


def test_the_records_are_there_without_torch():
    code = "import sys, collectives.semantics.calls; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.slow
def test_an_open_message_holds_its_tensor_until_its_work_is_dropped(monkeypatch):
    monkeypatch.syspath_prepend(repository.ROOT / "benchmarks")
    from lesson_costs import open_messages

    for held in launch(open_messages, 2, args=(2,), backend="gloo", device="cpu", timeout=100):
        assert held == pytest.approx([128, 128, 0], abs=20)
