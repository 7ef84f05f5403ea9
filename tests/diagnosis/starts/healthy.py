"""Correct programs of which one rank comes late: by LATE seconds. The first argument says how."""

import os
import subprocess
import sys
import time

HERE = [sys.executable, os.path.abspath(__file__)]
LATE = float(os.environ.get("LATE", "15"))


def be(rank, size=2):
    """Be a rank from here to the end."""
    import torch
    import torch.distributed as dist

    place = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=size)
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.destroy_process_group()
    print("rank", rank, "has", int(x[0]))


def late(rank, size=2):
    if rank == 1:
        time.sleep(LATE)
    be(rank, size)


def by_variable():
    """Its launcher gave it a number, whoever that was."""
    names = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK")
    late(int(next(os.environ[name] for name in names if name in os.environ)))


def after_torch():
    import torch.distributed  # noqa: F401

    by_variable()


def loads_data():
    """While a rank has not come, it and the other one have workers."""
    from torch.utils.data import DataLoader

    workers = DataLoader(list(range(8)), num_workers=2, persistent_workers=True)
    assert len(list(workers)) == 8
    by_variable()


def wraps():
    """A script that starts the rank as another process, as `conda run` does."""
    if os.environ["RANK"] == "1":
        time.sleep(LATE)
    subprocess.run([*HERE, "by_variable"], check=True, env=os.environ | {"LATE": "0"})


def executes():
    if os.environ["RANK"] == "1":
        time.sleep(LATE)
    os.environ["LATE"] = "0"
    os.execv(sys.executable, [*HERE, "by_variable"])


def starts_the_other():
    """As Lightning does: rank 0 starts rank 1, with a number."""
    if os.environ.get("LOCAL_RANK"):
        late(1)
        return
    other = subprocess.Popen([*HERE, *sys.argv[1:]], env=os.environ | {"LOCAL_RANK": "1"})
    be(0)
    assert other.wait() == 0


def starts_the_other_and_comes_late():
    """Rank 0, which holds the store, is the late one: the other sleeps between two attempts."""
    if os.environ.get("LOCAL_RANK"):
        be(1)
        return
    other = subprocess.Popen([*HERE, *sys.argv[1:]], env=os.environ | {"LOCAL_RANK": "1"})
    time.sleep(float(os.environ["LATE"]) * 2.5)  # then it may sleep longer than --hang-after
    be(0)
    assert other.wait() == 0


def by_argument():
    """Its number is one of its arguments."""
    if len(sys.argv) > 2:
        late(int(sys.argv[2]))
        return
    started = [subprocess.Popen([*HERE, "by_argument", str(rank)]) for rank in range(2)]
    assert [one.wait() for one in started] == [0, 0]


def without_our_variables():
    """The ranks do not load the recorder."""
    if "RANK" in os.environ:
        by_variable()
        return
    place = {"MASTER_PORT": os.environ["MASTER_PORT"], "LATE": str(LATE), "WORLD_SIZE": "2"}
    watched = os.environ | {"RANK": "0", "WORLD_SIZE": "2"}
    for environ in (watched, place | {"RANK": "1"}):
        subprocess.Popen([*HERE, "without_our_variables"], env=environ)
    os.wait(), os.wait()


def _processes(method, function, ranks):
    import multiprocessing

    context = multiprocessing.get_context(method)
    started = [context.Process(target=function, args=(rank,)) for rank in ranks]
    for one in started:
        one.start()
    return started


def _join(started):
    for one in started:
        one.join()
        assert one.exitcode == 0


def forks():
    _join(_processes("fork", late, range(2)))


def fork_server():
    _join(_processes("forkserver", late, range(2)))


def spawns():
    import torch.multiprocessing as mp

    mp.spawn(late, nprocs=2)


def _listen(queue):
    while queue.get():
        pass


def spawns_beside_a_logger():
    import multiprocessing

    queue = multiprocessing.Queue()
    logger = multiprocessing.Process(target=_listen, args=(queue,))
    logger.start()
    spawns()
    queue.put(None)
    _join([logger])


def _act(rank):
    time.sleep(LATE)
    be(1)


def a_learner_and_an_actor():
    started = [*_processes("spawn", be, [0]), *_processes("spawn", _act, [1])]
    _join(started)


def is_rank_0_itself():
    started = _processes("spawn", late, [1])
    be(0)
    _join(started)


def in_a_pool():
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(2) as pool:
        list(pool.map(late, range(2)))


def in_a_notebook():
    from accelerate import notebook_launcher

    notebook_launcher(_in_a_notebook, num_processes=2)


def _in_a_notebook():
    late(int(os.environ["RANK"]))


def with_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == 1:
        time.sleep(LATE)
    be(world.rank)
    world.Barrier()


def compiles():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x):
        return x * 2 + 1

    x = f(torch.ones(4))
    dist.all_reduce(x)
    dist.destroy_process_group()
    print("has", int(x[0]))


def _add(a, b):
    return a + b


def calls_the_other():
    import torch.distributed.rpc as rpc

    rank = int(os.environ["RANK"])
    time.sleep(LATE * rank)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        print(rpc.rpc_sync("worker1", _add, (1, 2)))
    rpc.shutdown()


def recovers():
    """torchrun starts it a second time."""
    import torch
    import torch.distributed as dist

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 1 and os.environ["RANK"] == "1":
        time.sleep(LATE)
    dist.init_process_group("gloo")
    if attempt == 0 and dist.get_rank() == 1:
        raise ValueError("a bad batch")  # the earlier failure
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    print("attempt", attempt)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
