"""From stacks that py-spy wrote to where a rank stands, who is a rank, and its number. Without processes."""

import json
import re

import pytest

from collectives.diagnosis.attach import family, movement, numbers, stacks
from collectives.diagnosis.attach.place import place, stands

TORCH = "/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"


def frames(text):
    """Frames as py-spy prints them, innermost first; arguments stand in brackets at the end."""
    found = []
    for line in text.strip().splitlines():
        match = re.fullmatch(r"\s*(.+) \((\S+?)(?::(\d+))?\)(?: \[(.*)\])?", line)
        function, file, number, given = match.groups()
        file = re.sub("^torch/", f"{TORCH}/", file)
        file = re.sub("^lib/", "/venv/lib/python3.11/", file)
        variables = dict(one.split("=", 1) for one in given.split(", ")) if given else {}
        found.append(
            stacks.StackFrame(file, int(number or 0), function, variables, {}, ".py" not in file)
        )
    return tuple(found)


def thread(text, number=1, name="MainThread"):
    return stacks.ThreadStack(number, name, frames(text))


ALL_REDUCE = """
    c10d::Work::wait (libtorch_cpu.so)
    all_reduce (torch/distributed/distributed_c10d.py:3252) [tensor=<Tensor at 0x7f>, async_op=False]
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    step (/job/train.py:9)
    <module> (/job/train.py:13)
"""
RECV = """
    recv (torch/distributed/distributed_c10d.py:2799) [tensor=<Tensor at 0x7f>, src=0, group=None, tag=7]
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    exchange (/job/train.py:20)
"""
WAIT = """
    pthread_cond_wait (libc.so.6)
    c10d::Work::wait (libtorch_cpu.so)
    pybind11::cpp_function::dispatcher (libtorch_python.so)
    <module> (/job/train.py:49)
"""
BACKWARD = """
    c10d::Reducer::finalize_backward (libtorch_cpu.so)
    torch::autograd::Engine::execute (libtorch_cpu.so)
    _engine_run_backward (torch/autograd/graph.py:979)
    Tensor.backward (torch/_tensor.py:623)
    train (/job/train.py:12)
"""
PLAIN_BACKWARD = """
    at::native::mm (libtorch_cpu.so)
    _engine_run_backward (torch/autograd/graph.py:979)
    Tensor.backward (torch/_tensor.py:623)
    train (/job/train.py:12)
"""
FORWARD = """
    c10d::broadcast_coalesced (libtorch_cpu.so)
    DistributedDataParallel._distributed_broadcast_coalesced (torch/nn/parallel/distributed.py:2363)
    DistributedDataParallel._sync_buffers (torch/nn/parallel/distributed.py:2425)
    Module._wrapped_call_impl (torch/nn/modules/module.py:1778)
    <module> (/job/train.py:42)
"""
FSDP = """
    all_gather_single (torch/distributed/distributed_c10d.py:4394)
    DefaultAllGather.__call__ (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:119)
    Module._wrapped_call_impl (torch/nn/modules/module.py:1778)
    sample (/job/train.py:23)
    <module> (/job/train.py:31)
"""
PIPE = """
    c10d::ProcessGroupGloo::SendWork::wait (libtorch_cpu.so)
    _wait_batch_p2p (torch/distributed/pipelining/schedules.py:683)
    <module> (/job/train.py:14)
"""
LOADER = """
    poll (libc.so.6)
    select_poll_poll_impl (selectmodule.c:655)
    wait (lib/multiprocessing/connection.py:947)
    _MultiProcessingDataLoaderIter._get_data (torch/utils/data/dataloader.py:1464)
    _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)
    main (/job/train.py:21)
"""
IMPORT = """
    _find_and_load (<frozen:1176)
    <module> (torch/utils/data/dataloader.py:12)
    <module> (/job/train.py:1)
"""
MPI = """
    MPI_Barrier (libmpi.so.12)
    <module> (/job/train.py:10)
"""
GPU = """
    cuStreamSynchronize (libcuda.so.1)
    at::native::item (libtorch_cpu.so)
    step (/job/train.py:10)
"""
SLEEP = """
    clock_nanosleep (libc.so.6)
    load (/job/train.py:4)
"""
OBJECTS = """
    all_gather (torch/distributed/distributed_c10d.py:3900)
    all_gather_object (torch/distributed/distributed_c10d.py:3222)
    <module> (/job/train.py:30)
"""


@pytest.mark.parametrize(
    ("text", "call", "inside", "line"),
    [
        (ALL_REDUCE, "all_reduce()", True, 9),
        (RECV, "recv(src=0, tag=7)", True, 20),
        (OBJECTS, "all_gather_object()", True, 30),
        (WAIT, "wait() for a call", True, 49),
        (BACKWARD, "backward: DDP waits for the sum of its gradients", True, 12),
        (PLAIN_BACKWARD, "backward (C++)", False, 12),
        (FORWARD, "DDP's forward broadcasts its buffers", True, 42),
        (FSDP, "all_gather_single() of FSDP2", True, 23),
        (PIPE, "wait() for an isend (pipelining)", True, 14),
        (LOADER, "waits for its DataLoader", False, 21),
        (MPI, "MPI_Barrier()", True, 10),
        (GPU, "waits for the GPU", True, 10),
        (SLEEP, "outside torch.distributed", False, 4),
    ],
    ids=lambda value: str(value).split("(")[0].strip()[:30],
)
def test_a_stack_says_the_call_and_the_line_of_the_program(text, call, inside, line):
    found = place(frames(text))
    assert (found.call, found.inside, found.line, found.file) == (
        call,
        inside,
        line,
        "/job/train.py",
    )


def test_an_import_of_the_data_loader_does_not_wait_for_one():
    found = place(frames(IMPORT.replace("<frozen:1176", "lib/importlib.py:1176")))
    assert not found.loads
    assert not found.inside


def test_the_way_holds_the_lines_of_the_program_alone():
    assert [line for _, line, _ in place(frames(FSDP)).way] == [23, 31]


def test_plain_variables_are_kept_and_secrets_are_not():
    text = (
        'step (/job/train.py:9) [i=3, k="odd", x=<Tensor at 0x7f>, api_token="abc", long="'
        + "x" * 40
        + '"]'
    )
    assert place(frames(text)).variables == {"i": "3", "k": '"odd"'}


def test_a_thread_that_communicates_says_where_its_rank_stands():
    join = thread("Thread.join (lib/threading.py:1119)\nmain (/job/train.py:34)")
    beside = thread(ALL_REDUCE, 2, "Thread-1")
    chosen, here, others = stands([join, beside], 1)
    assert (chosen, here.line, others) == (beside, 9, [join])


def test_a_main_thread_inside_a_call_comes_first():
    main, beside = thread(RECV), thread(ALL_REDUCE, 2, "Thread-1")
    chosen, _, others = stands([beside, main], 1)
    assert (chosen, others) == (main, [beside])


def test_frames_that_a_fork_has_from_its_parent_are_left_out():
    names = [
        ("work", "/job/train.py"),
        ("BaseProcess._bootstrap", "/lib/python3.11/multiprocessing/process.py"),
    ]
    names += [
        ("Popen._launch", "/lib/python3.11/multiprocessing/popen_fork.py"),
        ("main", "/job/parent.py"),
    ]
    dump = [{"frames": [{"name": name, "filename": file, "line": 1} for name, file in names]}]
    (found,) = stacks.parse(json.dumps(dump))
    assert [one.function for one in found.frames] == ["work", "BaseProcess._bootstrap"]


# --- who stood still ------------------------------------------------------------------------------

PLAIN = ALL_REDUCE.replace("    c10d::Work::wait (libtorch_cpu.so)\n", "")


@pytest.mark.parametrize(
    ("first", "second", "slept", "used", "state"),
    [
        (PLAIN, ALL_REDUCE, 0, 0.0, "waits"),
        (PLAIN, ALL_REDUCE, 900, 0.5, "runs"),  # at one line of a loop, again and again
        (PLAIN, RECV, 0, 0.0, "moves"),
        (SLEEP.replace("load", "other"), SLEEP, 0, 0.0, "moves"),
        (MPI, MPI, 0, 2.0, "waits"),  # MPI keeps the processor busy while it waits
        (SLEEP, SLEEP, 0, 2.0, "runs"),
        (LOADER, LOADER.replace(":947", ":951"), 2, 0.0, "waits"),  # looks up every five seconds
        (LOADER, LOADER, 40, 0.1, "runs"),
    ],
)
def test_what_neither_moved_nor_woke_waits(first, second, slept, used, state):
    looks, activities = (
        [[thread(first)], [thread(second)]],
        ({1: (5, 1.0)}, {1: (5 + slept, 1.0 + used)}),
    )
    assert movement.state(1, looks, activities, 2.0) == state


# --- who is a rank ---------------------------------------------------------------------------------

AGENT = (
    "run (torch/distributed/elastic/agent/server/api.py:745)\n<module> (/venv/bin/torchrun.py:8)"
)
JOIN = "Popen.wait (lib/subprocess.py:1260)\n<module> (/job/train.py:40)"
SPAWN_JOIN = (
    "start_processes (torch/multiprocessing/spawn.py:300) [nprocs=3]\n<module> (/job/train.py:40)"
)
WORKER = "<lambda> (/job/data.py:4)\n_worker_loop (torch/utils/data/_utils/worker.py:349)"
WORKER_CALLS = RECV + "    _worker_loop (torch/utils/data/_utils/worker.py:349)\n"
SPAWNED = "work (/job/train.py:7)\n_wrap (torch/multiprocessing/spawn.py:87) [i={}]"


def member(pid, parent, text="", environ=None, command=("python", "train.py"), **flags):
    """A Python process that has loaded torch, unless the flags say otherwise."""
    flags = {"is_python": True, "has_torch": True, "communicates": False, **flags}
    one = family.Member(pid, parent, list(command), environ or {}, **flags)
    one.threads = [thread(text, pid)] if text else []
    return one


def shell(pid, parent, environ=None):
    return member(pid, parent, environ=environ, is_python=False, has_torch=False, command=("sh",))


def torchrun_rank(pid, parent, rank, text=ALL_REDUCE, port="1", **flags):
    environ = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "3"}
    environ |= {"WORLD_SIZE": "3", "MASTER_ADDR": "here", "MASTER_PORT": port}
    return member(pid, parent, text, environ, **{"communicates": True, **flags})


def found(*members, top=1):
    by_pid = {one.pid: one for one in members}
    jobs = family.jobs(family.ranks(by_pid, top), by_pid, top)
    named = [(job, numbers.numbers(job)) for job in jobs]
    return [
        (
            {number: pid for pid, number in sorted(known.items())},
            numbers.missing(job, known, members),
        )
        for job, known in named
    ]


def test_torchrun_and_the_helpers_of_a_rank_are_no_ranks():
    inherited = torchrun_rank(12, 11, 0).environ
    assert found(
        member(1, 0, AGENT),
        torchrun_rank(11, 1, 0, LOADER),
        member(12, 11, WORKER, inherited),
        member(13, 11, WORKER_CALLS, inherited),
        torchrun_rank(14, 1, 1),
        member(15, 14, SLEEP, torchrun_rank(14, 1, 1).environ),
    ) == [({0: 11, 1: 14}, {2})]


def test_a_wrapper_of_each_rank_is_no_rank():
    one, two = torchrun_rank(11, 10, 0), torchrun_rank(21, 20, 1, SLEEP, communicates=False)
    assert found(
        member(1, 0, AGENT),
        shell(10, 1, one.environ),
        one,
        member(20, 1, JOIN, two.environ, has_torch=False, command=("python", "wrap.py")),
        two,
    ) == [({0: 11, 1: 21}, {2})]


def test_a_rank_that_has_not_loaded_torch_is_known_by_its_environment():
    late = torchrun_rank(12, 1, 1, SLEEP, has_torch=False, communicates=False)
    assert found(member(1, 0, AGENT), torchrun_rank(11, 1, 0), late)[0][0] == {0: 11, 1: 12}


def test_spawned_ranks_have_the_number_that_spawn_gave_them_and_one_has_ended():
    children = [
        member(9 + rank, 1, SPAWNED.format(rank), command=("python", "-c", "spawn_main()"))
        for rank in (2, 0)
    ]
    tracker = member(8, 1, "main (lib/multiprocessing/resource_tracker.py:227)", has_torch=False)
    assert found(member(1, 0, SPAWN_JOIN), tracker, *children) == [({0: 9, 2: 11}, {1})]


def test_a_rank_that_starts_the_others_is_one():
    assert found(
        member(1, 0, ALL_REDUCE, communicates=True),
        member(2, 1, SLEEP, {"LOCAL_RANK": "1"}, has_torch=False),
    ) == [({0: 1, 1: 2}, set())]


def test_a_script_that_waits_for_ranks_of_its_own_kind_is_none():
    children = [member(2 + rank, 1, SLEEP, {"RANK": f"{rank}"}) for rank in range(2)]
    assert found(member(1, 0, JOIN), *children) == [({0: 2, 1: 3}, set())]


@pytest.mark.parametrize(
    "commands",
    [
        [("python", "train.py", "--rank", "1"), ("python", "train.py", "--rank", "0")],
        [("python", "train.py", "--rank=1"), ("python", "train.py", "--rank=0")],
        [("python", "train.py", "/tmp/x", "1"), ("python", "train.py", "/tmp/x", "0")],
    ],
    ids=["option", "option with =", "counted argument"],
)
def test_scripts_are_told_apart_by_their_command_lines(commands):
    ranks = [member(2 + i, 1, ALL_REDUCE, command=one) for i, one in enumerate(commands)]
    assert found(shell(1, 0), *ranks)[0][0] == {1: 2, 0: 3}


def test_forked_ranks_are_told_apart_by_an_argument_of_the_program():
    ranks = [member(2 + i, 1, f"work (/job/train.py:7) [r={r}, n=2]") for i, r in enumerate((1, 0))]
    assert found(member(1, 0, JOIN), *ranks)[0][0] == {1: 2, 0: 3}


def test_a_number_that_all_inherit_is_none():
    """As of SLURM_PROCID, in a batch script that starts its ranks by mp.spawn."""
    slurm = {"SLURM_PROCID": "0"}
    ranks = [member(2 + rank, 1, SPAWNED.format(rank), slurm) for rank in range(2)]
    assert found(member(1, 0, SPAWN_JOIN, slurm), *ranks)[0][0] == {0: 2, 1: 3}


def test_below_a_shell_each_job_is_apart_and_two_nodes_of_one_job_are_together():
    first, second = shell(1, 0), member(10, 1, AGENT)
    assert found(
        first,
        second,
        torchrun_rank(11, 10, 0),
        torchrun_rank(12, 10, 1),
        member(20, 1, AGENT),
        torchrun_rank(21, 20, 2),
        member(30, 1, AGENT),
        torchrun_rank(31, 30, 0, port="2"),
        torchrun_rank(32, 30, 1, port="2"),
    ) == [({0: 11, 1: 12, 2: 21}, set()), ({0: 31, 1: 32}, {2})]
