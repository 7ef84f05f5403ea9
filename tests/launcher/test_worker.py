"""What its environment says of a worker, and how workers meet. Real steps: test_clusters.py."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
import torch.distributed as dist

from collectives.launcher import reach
from collectives.launcher.worker import Worker, launcher_store, launcher_worker
from collectives.process_groups.mpi import installation
from collectives.recording import launchers

# Rank 5 of srun -N 3 -n 7 on this cluster.
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,2(x2)",
    "SLURM_STEP_NODELIST": "gpu[08-09,11],other",
}
PMI = {"PMI_RANK": "5", "PMI_SIZE": "7"}


@pytest.fixture
def worker(monkeypatch):
    def of(**variables):
        for name in os.environ:
            if name.startswith(("SLURM_", "PMI_", "MPI_", "MASTER_", "TORCHELASTIC_")):
                monkeypatch.delenv(name)
        for name, value in (STEP | variables).items():
            if value is not None:
                monkeypatch.setenv(name, value)
        return launcher_worker()

    return of


def test_a_task_of_srun_is_a_rank(worker):
    found = worker()
    assert (found.launcher, found.rank, found.world_size) == ("srun", 5, 7)
    assert (found.local_rank, found.local_world_size, found.on_one_machine) == (0, 2, False)
    assert found.backend is None
    ranks = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert found.environment == ranks


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[08-09,11],other", "gpu08"),
        ("node7", "node7"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]n", "rack1n"),
        ("n-01.example.org,n-02", "n-01.example.org"),
    ],
)
def test_the_ranks_of_a_step_meet_on_its_first_machine(worker, hosts, first):
    assert worker(SLURM_STEP_NODELIST=hosts).store_address == (first, 15_000 + 7 * 12 + 1)


def test_a_step_on_one_machine_meets_on_loopback(worker):
    alone = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    alone["SLURM_PROCID"] = "1"
    assert worker(**alone).store_address[0] == "127.0.0.1"


def test_steps_that_may_run_at_the_same_time_meet_at_different_ports(worker):
    jobs = range(8_000_000, 8_000_200)
    ports = {worker(SLURM_JOB_ID=str(job), SLURM_STEP_ID="0").store_address[1] for job in jobs}
    assert len(ports) == 200
    # Linux gives those from 32768 to whoever asks for any port.
    assert ports < set(range(15_000, 30_000))


def test_one_task_and_a_batch_script_are_no_world(worker):
    """As under srun --pty bash: a program that one types there starts ranks of its own."""
    assert worker(SLURM_STEP_NUM_TASKS="1") is None
    assert worker(SLURM_STEP_ID=None, SLURM_STEP_NUM_TASKS=None) is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": None}, "SLURM_STEP_ID=1 is set, but SLURM_STEP_NUM_TASKS is not"),
        ({"SLURM_PROCID": None}, "SLURM_STEP_ID=1 is set, but SLURM_PROCID is not"),
        ({"SLURM_PROCID": "7"}, "SLURM_PROCID=7 is not a whole number from 0 to 6"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID=3 is not a whole number from 0 to 2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE=x holds no number"),
        (PMI | {"PMI_SIZE": None, "SLURM_STEP_ID": None}, "PMI_RANK=5 is set, but PMI_SIZE is not"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "TORCHELASTIC_RUN_ID=x.* is set, but WORLD_SIZE is not"),
        (
            {"TORCHELASTIC_RUN_ID": "x", "RANK": "a", "WORLD_SIZE": "2"},
            "RANK=a is not a whole number from 0 to 1",
        ),
        (
            {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "b"},
            "WORLD_SIZE=b is not a whole number from 1",
        ),
    ],
    ids=lambda value: value.partition(" is")[0] if isinstance(value, str) else "",
)
def test_a_variable_that_is_missing_or_tells_no_number_is_named(worker, variables, said):
    with pytest.raises(ValueError, match=said):
        worker(**variables)


@pytest.mark.parametrize(
    ("parents", "is_rank"),
    [
        ([("slurmstepd", {})], True),
        ([("python3", {})], True),  # a launcher that is written in Python, as torchrun
        ([("sh", STEP), ("slurmstepd", {})], True),
        ([("python3", STEP), ("slurmstepd", {})], False),
        ([("sh", STEP), ("python3", STEP), ("slurmstepd", {})], False),
        ([("of another user", None)], True),
    ],
)
def test_a_worker_behind_a_shell_is_one_and_what_a_worker_starts_is_none(
    worker, monkeypatch, parents, is_rank
):
    def parent(name, variables):
        def environ():
            if variables is None:
                raise psutil.AccessDenied
            return variables

        return SimpleNamespace(name=lambda: name, environ=environ)

    found = [parent(*one) for one in parents]
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(parents=lambda: found))
    assert (worker() is not None) is is_rank


@pytest.mark.parametrize("has_mpi", [True, False])
def test_a_step_with_mpi_uses_it_where_it_can_be_loaded(worker, monkeypatch, has_mpi):
    monkeypatch.setattr(installation, "fault", lambda: None if has_mpi else "no libmpi")
    found = worker(**PMI)
    assert found.launcher == ("srun --mpi" if has_mpi else "srun")
    assert found.backend == ("mpi" if has_mpi else None)
    assert found.uses_mpi is has_mpi
    assert found.local_world_size == 2


def test_mpiexec_in_a_step_knows_better_who_shares_a_machine(worker):
    found = worker(**PMI, MPI_LOCALNRANKS="7", MPI_LOCALRANKID="5")
    assert (found.launcher, found.local_rank, found.local_world_size) == ("mpiexec", 5, 7)
    alone = worker(**PMI, SLURM_STEP_ID=None)
    assert (alone.launcher, alone.local_rank, alone.on_one_machine) == ("mpiexec", 5, True)
    assert alone.environment == {}  # MPI's own variables are enough


# The store of a step, and whether machines reach each other.


def test_a_step_whose_store_cannot_be_opened_says_what_to_choose(worker, monkeypatch):
    monkeypatch.setattr("collectives.launcher.worker._launcher_store", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port, words in (0, "no other machine reaches"), (taken.getsockname()[1], "in use"):
            rank = worker(SLURM_PROCID="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            with pytest.raises(ValueError, match=f"{words}.*export MASTER_ADDR and MASTER_PORT"):
                launcher_store(rank, 5.0)


def unreachable(monkeypatch):
    """What the ranks of two machines are told. The first machine has two ranks."""
    shared = dist.HashStore()
    monkeypatch.setattr(reach, "launcher_store", lambda *_: shared)
    workers = [Worker("torchrun", rank, 3, local, 2) for rank, local in enumerate((0, 1, 0))]
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(reach.unreachable, workers))


def test_all_ranks_are_told_which_machines_cannot_connect(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert unreachable(monkeypatch) == [[]] * 3
    monkeypatch.setattr(socket, "create_connection", Mock(side_effect=OSError(113, "No route")))
    me = socket.gethostname()
    assert unreachable(monkeypatch) == [[f"{me} cannot reach {me}: 127.0.0.1: No route"] * 2] * 3
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    told = f"{me} has no address: GLOO_SOCKET_IFNAME=eth9: no interface of this machine"
    for first, second in unreachable(monkeypatch):
        assert first.startswith(told)
        assert second == first


def test_a_rank_that_does_not_join_is_named(monkeypatch):
    monkeypatch.setattr(reach, "_JOINED_BY", 0.1)
    shared = dist.HashStore()
    monkeypatch.setattr(reach, "launcher_store", lambda *_: shared)
    with pytest.raises(ValueError, match=r"rank 1 did not join within 0\.1 s"):
        reach.unreachable(Worker("torchrun", 0, 2, 0, 1))


def test_a_process_of_a_step_of_slurm_starts_no_fork_server_beside_torch():
    """Each rank of srun would start one."""
    assert launchers.is_started_by_launcher({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
    assert not launchers.is_started_by_launcher({"SLURM_JOB_ID": "7"})  # a batch script
