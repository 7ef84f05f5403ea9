"""What docs/clusters.md says works as it stands there, on two machines of a lab."""

import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from doors import CALLS, EVERY, all_expected, defined
from machines import needs_a_lab, needs_slurm, serving
from our_backends import needs_mpi
from repository import ROOT
from typer.testing import CliRunner

from collectives import Lab
from collectives.cli import app
from collectives.course import chapters, files
from collectives.lab import slurm

PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(language, title):
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def lab():
    with Lab(2) as made:
        if slurm.missing() is None:
            slurm.start(made)
        # As in a shell whose virtual environment is active.
        made.environ["PATH"] = f"{Path(sys.executable).parent}:{made.environ['PATH']}"
        made.environ["TMPDIR"] = "/run/shared"  # the lesson on barriers needs one for all machines
        made.save("every.py", EVERY)
        yield made


def run(lab, command, on=None):
    """What the machines say, once all have ended; if they do not, why."""
    told = []
    try:
        return lab.run(
            ["sh", "-c", command], on=on, timeout=400, on_line=lambda *line: told.append(line)
        )
    except TimeoutError as error:
        state = "sinfo -lR; squeue -l; scontrol show nodes; tail -n 30 /run/shared/slurm*.log"
        (queue,) = lab.run(["sh", "-c", state], on=["login"])
        pytest.fail(f"{error}\n{told[-20:]}\n{queue.stdout}{queue.stderr}")


# The ways to start ranks. Each runs other lessons in the place of the one on the page.


def in_place(command, lessons):
    words = " ".join(map(str, ["/run/shared/every.py", *lessons]))
    return command.replace("lessons/all_reduce.py", words).replace(
        "node-rank 0", "node-rank {node}"
    )


def torchrun(lab, lessons):
    (command,) = blocks("sh", "torchrun, one machine after the other")
    return run(lab, in_place(command, lessons))


def torchrun_and_a_store(lab, lessons):
    title = "torchrun, with the rendezvous on a third machine"
    (store,), (command,) = blocks("python", title), blocks("sh", title)
    store = store.replace("signal.pause()", "print('listens', flush=True)\nsignal.pause()")
    with serving(lab, "login", store, [sys.executable, "-c"]):
        return run(lab, in_place(command, lessons))


def sbatch(number, srun, lab, lessons):
    script = blocks("sh", "Slurm")[number].replace("srun ", f"{srun} ")
    lab.save("job.sh", in_place(script, lessons))
    # sbatch --wait looks for the end of the job after half a minute.
    wait = "while squeue -h -j $job | grep -q .; do sleep 0.1; done"
    submit = f"cd /run/shared; job=$(sbatch --parsable -o out -e errors job.sh); {wait}"
    has_ended_well = "scontrol show job $job | grep -q JobState=COMPLETED"
    return run(lab, f"{submit}; cat out; cat errors >&2; {has_ended_well}", on=["login"])


def mpiexec(lab, lessons):
    (table,), (command,) = blocks("text", "mpiexec"), blocks("sh", "mpiexec")
    lab.save("hosts", table)
    command = command.replace("-f hosts", "-f /run/shared/hosts")
    return run(lab, in_place(command, lessons), on=["login"])


# What the lessons on the calls do not have: other ways of grouping ranks, of sending, and of saving.
OTHERS = [
    *(f"training/{name}" for name in ("sampler", "checkpoint", "with_accelerate")),
    *(f"model_parallel/{name}" for name in ("zero", "saving", "hybrid", "sequence_parallel")),
    *(f"model_parallel/{name}" for name in ("vocabulary", "pipeline", "mesh")),
    *(f"algorithms/{name}" for name in ("hierarchical", "backend_in_python")),
]
FEW = ["start", "all_reduce", "barrier"]
PMI2 = "srun --mpi=pmi2 --kill-on-bad-exit=1 --time=5"
LAUNCHERS = {
    "torchrun": (torchrun, [*CALLS, *OTHERS], []),
    "torchrun_and_a_store": (torchrun_and_a_store, FEW, []),
    "mpiexec": (mpiexec, CALLS, [needs_mpi]),
    "srun": (partial(sbatch, 0, "srun"), FEW, [needs_slurm]),
    "srun_pmi2": (partial(sbatch, 0, PMI2), FEW, [needs_slurm, needs_mpi]),
    "torchrun_in_srun": (partial(sbatch, 1, "srun"), FEW, [needs_slurm]),
}

# subtle: on a busy machine Slurm 22.05's server of PMI-2 takes a part of a request for a whole one,
# and the ranks never meet. They have not come to anything of ours then.
LOST_REQUEST = "mpi/pmi2: invalid client request"


@needs_a_lab
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks) for name, (_, _, marks) in LAUNCHERS.items()]
)
def test_lessons_are_proved_over_two_machines(lab, name):
    launcher, names, _ = LAUNCHERS[name]
    for _ in range(3):
        done = launcher(lab, map(files.find, names))
        if not any(LOST_REQUEST in one.stderr for one in done):
            break
    assert [one.returncode for one in done] == [0] * len(done), done[0].stderr
    # At its end UCX tells of the sends that a lesson gives up on purpose.
    lines = [line for line in done[0].stdout.splitlines() if " UCX  WARN " not in line]
    assert defined("\n".join([*lines, ""])) == defined(all_expected(names))
    assert [one.stdout for one in done[1:]] == [""] * (len(done) - 1)


# A new cluster.

CLUSTER = f"{sys.executable} -m collectives cluster"
# What node1 does with new connections from node0; the port of the store is another machine's.
CLOSED = (
    "table inet pair { chain input { type filter hook input priority 0;\n"
    "ip saddr 10.13.0.1 tcp dport 30000-65535 tcp flags & (syn | ack) == syn drop\n}\n}"
)


@pytest.fixture
def on_a_new_cluster():
    (command,) = blocks("sh", "A new cluster")
    return command.replace("node-rank 0", "node-rank {node}")


@needs_a_lab
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("srun", marks=needs_slurm)])
def test_a_pair_of_machines_that_cannot_connect_is_named(lab, on_a_new_cluster, launcher):
    lab.run(["nft", CLOSED], on=[1])
    if launcher == "srun":
        done = run(lab, f"srun -N2 --ntasks-per-node=2 {CLUSTER}", on=["login"])
    else:
        done = run(lab, on_a_new_cluster)
    lab.run(["nft", "delete table inet pair"], on=[1])
    said = [line for one in done for line in one.stderr.splitlines() if " cannot reach " in line]
    assert ["\n".join(said) + "\n"] == blocks("text", "A new cluster")
    assert "open all TCP ports between these machines" in done[0].stderr
    assert all(one.returncode == 1 for one in done)
    assert not any("proved" in one.stdout for one in done)


# `python -m collectives`, with a matrix of few cells.
FEW_CELLS = """
from collectives.cli import main
from collectives.matrix import selection

select = selection.select

def few(quick=False, **flags):
    found = select(quick=quick, **flags)
    return found[:8] if quick else found

if __name__ == "__main__":
    selection.select = few
    main()
"""


@needs_a_lab
@pytest.mark.slow
def test_where_all_machines_reach_each_other_the_lessons_and_the_matrix_run(
    lab, on_a_new_cluster, tmp_path, monkeypatch
):
    lessons = tmp_path / "lessons"
    lessons.mkdir()
    (lessons / "chapter.toml").write_text(
        'order = ["calls"]\n[calls]\ntitle = "Few"\nlessons = ["all_reduce", "new_group"]\n'
    )
    for name in ("all_reduce", "new_group"):
        shutil.copy(files.find(name), lessons)
    monkeypatch.setenv(chapters.CHECKOUT, str(tmp_path))
    lab.save("collectives_with_few_cells.py", FEW_CELLS)
    command = on_a_new_cluster.replace(
        "-m collectives", "/run/shared/collectives_with_few_cells.py"
    )
    done = run(lab, command)
    assert done[0].returncode == 0, done[0].stderr[-5000:]
    assert done[0].stdout.startswith("All machines reach each other.\n")
    assert "all_reduce: proved on all 4 ranks" in done[0].stdout
    assert "new_group: proved on all 4 ranks" in done[0].stdout
    assert "8 cells: all as claimed" in done[0].stdout


def test_without_a_launcher_it_says_how_to_start_it():
    done = CliRunner().invoke(app, ["cluster"])
    assert (done.exit_code, done.stderr) == (
        2,
        "collectives cluster: start it with torchrun, srun or mpiexec: see docs/clusters.md.\n",
    )


# The lab, and Kubernetes.


@needs_a_lab
def test_a_lab_prints_what_is_shown():
    (shown,) = blocks("text", "A lab of machines")
    first, *lines = shown.splitlines()
    done = CliRunner().invoke(app, first.removeprefix("$ collectives ").split())
    assert sorted(done.stdout.splitlines()) == lines


@needs_a_lab
def test_a_lab_in_python_prints_the_address_that_is_in_its_table():
    (program,) = blocks("python", "A lab of machines")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["10.13.0.2", "node1", "node0"], done.stderr


def test_every_option_and_every_control_of_a_lab_is_explained():
    text = section("A lab of machines")
    named = set(re.findall(r"^\| `(--[a-z]+)", text, re.MULTILINE))
    (command,) = (one for one in app.registered_commands if one.name == "lab")
    arguments = command.callback.__annotations__.keys() - {"machines", "command", "return"}
    assert named == {f"--{name}" for name in arguments}
    methods = {name for name in vars(Lab) if not name.startswith("_")}
    controls = set(re.findall(r"`(\w+)\(1", text))
    assert controls == methods - {"close", "start", "run", "kill", "save"}


def test_the_manifest_fits_the_schema_of_kubernetes():
    (manifest,) = blocks("yaml", "Kubernetes")
    documents = list(yaml.safe_load_all(manifest))
    assert [one["kind"] for one in documents] == ["Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
