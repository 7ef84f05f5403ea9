"""The commands at the top of the small examples, and the scripts for Slurm, as one types them."""

import ast
import re
import shutil
import subprocess

import pytest
from machines import needs_a_lab, needs_slurm
from our_backends import needs_mpi

from collectives import Lab
from collectives.course import chapters
from collectives.lab import slurm

EXAMPLES = chapters.folder().parent / "examples"


def commands(name):
    """The lines of code in the docstring of an example."""
    text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text("utf-8")))
    return re.findall(r"^    (\w.*)$", re.sub(r" \\\n +", " ", text), re.MULTILINE)


def type_in(lab, folder, command):
    """What it prints: on both machines if it numbers them, on `login` if one types it once."""
    numbered = re.search(r"--(node-rank|machine) 0", command)
    nodes = lab.nodes if numbered else ["login" if re.match("srun|mpiexec", command) else 0]
    line = f"cd {folder} && export MASTER_ADDR=node0 MASTER_PORT=29500 && exec "
    begun = []
    for node in nodes:
        words = re.sub(r"--(node-rank|machine) 0", rf"--\1 {node}", command)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(lab.start(node, ["sh", "-c", line + words], **streams))
    ended = [one.communicate(timeout=150) for one in begun]
    assert [one.returncode for one in begun] == [0] * len(begun), ended
    return "".join(stdout for stdout, _ in ended).splitlines()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_has_no_line_of_this_package_and_begins_with_its_commands(file):
    text = file.read_text("utf-8")
    assert not re.search(r"^ *(import|from) collectives", text, re.MULTILINE)
    assert any(file.name in command for command in commands(file.name))
    assert len(text.splitlines()) <= (
        50 if file.stem in ("hello", "spawn", "probe_backend") else 225
    )


PROGRAMS = [path for path in EXAMPLES.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
PROGRAMS.remove(EXAMPLES / "route")  # its first four use the CPU, and all of them one machine
PROGRAMS.remove(EXAMPLES / "blog")  # a script with one fault each, and cured, for one machine


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_for_several_machines_takes_their_gpus(program):
    """Each file, or all files of a folder. Its backend is chosen, or named in its command."""
    files = [program] if program.is_file() else program.glob("*.py")
    text = "\n".join(file.read_text("utf-8") for file in files)
    is_for_a_cluster = re.search("node0|on two machines|slurm", text, re.IGNORECASE)
    assert is_for_a_cluster or program.stem == "first_training"
    assert "cuda" in text
    assert not re.search(r"init_process_group\(\s*['\"]\w+['\"][,)]", text)


def test_the_scripts_for_slurm_have_one_shape():
    ddp, sharded = (EXAMPLES / "sbatch" / f"train_{name}.sh" for name in ("ddp", "sharded"))
    same = ddp.read_text("utf-8").replace("train_ddp", "train_sharded")
    same = same.replace("--checkpoint checkpoint.pt", "--tensor 2 --checkpoint run")
    assert same == sharded.read_text("utf-8")


@needs_a_lab
@needs_slurm
@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", ["hello.py", "spawn.py", "probe_backend.py"])
def test_every_command_of_a_small_example_works(name, tmp_path):
    shutil.copy(EXAMPLES / name, tmp_path)
    first, *others = commands(name)
    assert [command.split()[0] for command in others][-2:] == ["srun", "mpiexec"]
    with Lab(2) as lab:
        slurm.start(lab)
        for command in (first, *others):
            printed = [line for line in type_in(lab, tmp_path, command) if line]
            if name == "probe_backend.py":
                assert [line.split()[1:] for line in printed] == [["works"]] * 14
            else:
                n, nodes = (2, 1) if command == first else (4, 2)
                rows = [re.match(rf"rank (\d) of {n}, on (\w+).*: (\d+)$", row) for row in printed]
                found = {row[1]: (row[2], row[3]) for row in rows}
                per_node = n // nodes
                assert found == {
                    str(rank): (f"node{rank // per_node}", "1" * n) for rank in range(n)
                }


@needs_a_lab
@needs_slurm
@pytest.mark.slow
def test_train_sharded_runs_as_a_job_of_slurm(tmp_path):
    shutil.copy(EXAMPLES / "train_sharded.py", tmp_path)
    shutil.copytree(EXAMPLES / "sbatch", tmp_path / "sbatch")
    with Lab(2) as lab:
        slurm.start(lab)
        options = "--ntasks-per-node 1 --cpus-per-task 1"
        sbatch = f"sbatch --wait --parsable {options} sbatch/train_sharded.sh --steps 10"
        (done,) = lab.run(["sh", "-c", f"cd {tmp_path} && {sbatch}"], on=["login"], timeout=150)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / f"job-{done.stdout.strip()}-rank-0.txt").read_text("utf-8")
    assert log.startswith("1 x 2 ranks (cpu), from step 0\nstep 10: loss")
