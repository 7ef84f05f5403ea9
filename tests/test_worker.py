"""What Slurm's variables say of a worker. test_clusters.py starts real steps."""

import importlib.util
import os

import pytest

from collectives.launcher.worker import launcher_worker

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
    assert worker(SLURM_STEP_TASKS_PER_NODE="7", SLURM_NODEID="0").store_address[0] == "127.0.0.1"


def test_steps_that_may_run_at_the_same_time_meet_at_different_ports(worker):
    steps = [worker(SLURM_JOB_ID=str(job), SLURM_STEP_ID="0").store_address for job in range(99)]
    assert len(set(steps)) == 99


def test_an_address_of_ones_own_counts_more(worker):
    assert worker(MASTER_ADDR="gpu11", MASTER_PORT="29500").store_address == ("gpu11", 29500)


def test_one_task_and_a_batch_script_are_no_world(worker):
    """As under srun --pty bash: a program that one types there starts ranks of its own."""
    assert worker(SLURM_STEP_NUM_TASKS="1") is None
    assert worker(SLURM_STEP_ID=None, SLURM_STEP_NUM_TASKS=None) is None


@pytest.mark.parametrize("has_mpi", [True, False])
def test_a_step_with_mpi_uses_it_where_it_is_installed(worker, monkeypatch, has_mpi):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: has_mpi or None)
    found = worker(**PMI)
    assert found.launcher == ("srun --mpi" if has_mpi else "srun")
    assert found.backend == ("mpi" if has_mpi else None)
    assert found.uses_mpi is has_mpi
    assert found.local_world_size == 2


def test_mpiexec_in_a_step_knows_better_who_shares_a_machine(worker):
    found = worker(**PMI, MPI_LOCALNRANKS="7", MPI_LOCALRANKID="5")
    assert (found.launcher, found.local_rank, found.local_world_size) == ("mpiexec", 5, 7)
