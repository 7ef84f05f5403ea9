"""`collectives cluster` names the machines that cannot reach each other; else it runs everything."""

import sys
from pathlib import Path

import pytest
from test_clusters import blocks, section
from test_lab_worlds import LAUNCHERS, NEEDS_SLURM
from typer.testing import CliRunner

from collectives import Lab
from collectives.cli import app
from collectives.lab import available, slurm

needs_a_lab = pytest.mark.skipif(available.missing() is not None, reason=str(available.missing()))
CLUSTER = [sys.executable, "-m", "collectives", "cluster"]
# What node1 does with new connections from node0; the port of the store is another machine's.
CLOSED = (
    "table inet pair { chain input { type filter hook input priority 0;\n"
    "ip saddr 10.13.0.1 tcp dport 30000-65535 tcp flags & (syn | ack) == syn drop\n}\n}"
)


@pytest.fixture(scope="module")
def lab():
    with Lab(2) as made:
        if slurm.missing() is None:
            slurm.start(made)
        made.environ["TMPDIR"] = "/run/shared"
        made.environ["OMP_NUM_THREADS"] = "1"
        yield made


@needs_a_lab
@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun_static", pytest.param("srun", marks=NEEDS_SLURM)])
def test_a_pair_of_machines_that_cannot_connect_is_named(lab, name):
    launcher, on_login = LAUNCHERS[name]
    lab.run(["nft", CLOSED], on=[1])
    done = lab.run([*launcher, *CLUSTER], on=["login"] if on_login else None, timeout=100)
    lab.run(["nft", "delete table inet pair"], on=[1])
    said = [line for one in done for line in one.stderr.splitlines() if " cannot reach " in line]
    assert ["\n".join(said) + "\n"] == blocks("text", section("A new cluster"))
    assert "open all TCP ports between these machines" in done[0].stderr
    assert all(one.returncode == 1 for one in done)
    assert not any("proved" in one.stdout for one in done)


@needs_a_lab
@pytest.mark.slow
def test_a_machine_without_the_interface_is_named(lab):
    launcher, _ = LAUNCHERS["torchrun_static"]
    choice = 'test {node} = 0 || export GLOO_SOCKET_IFNAME=eth9; exec "$@"'
    done = lab.run(["sh", "-c", choice, "sh", *launcher, *CLUSTER], timeout=100)
    text = (
        "node1 has no address: GLOO_SOCKET_IFNAME=eth9: no interface of this machine has that name"
    )
    assert text in done[0].stderr


@needs_a_lab
@pytest.mark.slow
def test_where_all_machines_reach_each_other_everything_runs(lab):
    (command,) = blocks("sh", section("A new cluster"))
    command = command.replace("--node-rank 0", "--node-rank {node}")
    # As it stands there, in half of the time: test_lab_worlds.py has 4 ranks.
    command = command.replace("--nproc-per-node 2", "--nproc-per-node 1")
    path = f"PATH={Path(sys.executable).parent}:{lab.environ['PATH']}"
    done = lab.run(["env", path, "sh", "-c", command], timeout=500)
    assert done[0].returncode == 0, done[0].stderr[-5000:]
    assert done[0].stdout.startswith("All machines reach each other.\n")
    assert "all_reduce: proved on all 2 ranks" in done[0].stdout
    assert "monitored_barrier" in done[0].stdout, done[0].stdout[-3000:]


def test_without_a_launcher_it_says_how_to_start_it():
    done = CliRunner().invoke(app, ["cluster"])
    assert (done.exit_code, done.stderr) == (
        2,
        "collectives cluster: start it with torchrun, srun or mpiexec: see docs/clusters.md.\n",
    )
