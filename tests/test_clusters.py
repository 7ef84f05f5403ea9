"""The commands of docs/clusters.md work as they stand there, on two machines of a lab."""

import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from machines import serving
from test_lab_worlds import NEEDS_MPI, NEEDS_SLURM
from typer.testing import CliRunner

from collectives import Lab
from collectives.cli import app
from collectives.lab import available, slurm

PAGE = (Path(__file__).parent.parent / "docs" / "clusters.md").read_text(encoding="utf-8")
PROVED = "all_reduce: proved on all 4 ranks\n"

needs_a_lab = pytest.mark.skipif(available.missing() is not None, reason=str(available.missing()))


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(language, text):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def lab():
    with Lab(2) as made:
        if slurm.missing() is None:
            slurm.start(made)
        # As in a shell whose virtual environment is active.
        made.environ["PATH"] = f"{Path(sys.executable).parent}:{made.environ['PATH']}"
        yield made


def prints_a_lesson(done):
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout.startswith(PROVED)


@needs_a_lab
@pytest.mark.slow
def test_torchrun_one_machine_after_the_other(lab):
    (command,) = blocks("sh", section("torchrun, one machine after the other"))
    command = command.replace("--node-rank 0", "--node-rank {node}")
    prints_a_lesson(lab.run(["sh", "-c", command], timeout=100))


@needs_a_lab
@pytest.mark.slow
def test_torchrun_with_the_rendezvous_on_a_third_machine(lab):
    text = section("torchrun, with the rendezvous on a third machine")
    (store,), (command,) = blocks("python", text), blocks("sh", text)
    store = store.replace("signal.pause()", "print('listens', flush=True)\nsignal.pause()")
    with serving(lab, "login", store, [sys.executable, "-c"]):
        prints_a_lesson(lab.run(["sh", "-c", command], timeout=100))


@needs_a_lab
@NEEDS_SLURM
@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["srun", "torchrun"])
def test_a_job_of_slurm(lab, number):
    script = blocks("sh", section("Slurm"))[number]
    submit = (
        'printf %s "$0" > /run/shared/job.sh; sbatch --wait -o /run/shared/out /run/shared/job.sh'
    )
    lab.run(["sh", "-c", submit, script], on=["login"], timeout=100)
    (done,) = lab.run(["cat", "/run/shared/out"], on=["login"])
    assert PROVED in done.stdout


@needs_a_lab
@NEEDS_MPI
@pytest.mark.slow
def test_mpiexec_with_a_file_of_hosts(lab):
    (table,), (command,) = blocks("text", section("mpiexec")), blocks("sh", section("mpiexec"))
    command = (
        f'printf %s "$0" > /run/shared/hosts; {command.replace("-f hosts", "-f /run/shared/hosts")}'
    )
    prints_a_lesson(lab.run(["sh", "-c", command, table], on=["login"], timeout=100))


@needs_a_lab
def test_a_lab_prints_what_is_shown():
    (shown,) = blocks("text", section("A lab of machines"))
    first, *lines = shown.splitlines()
    done = CliRunner().invoke(app, first.removeprefix("$ collectives ").split())
    assert sorted(done.stdout.splitlines()) == lines


@needs_a_lab
def test_a_lab_in_python_prints_the_address_that_is_in_its_table():
    (program,) = blocks("python", section("A lab of machines"))
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
    (manifest,) = blocks("yaml", section("Kubernetes"))
    documents = list(yaml.safe_load_all(manifest))
    assert [one["kind"] for one in documents] == ["Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
