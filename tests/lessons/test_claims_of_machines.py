"""What the lessons on machines and `failover` claim, about two sentences of each, and for each the
smallest edit that makes it false: the lesson notices every one.
"""

import shutil
from pathlib import Path

import pytest
from forked_lab import ForkedLab
from lesson_source import Source
from machines import needs_a_lab, needs_slurm
from planted import Planted

from collectives import LaunchError, Mismatch, launch
from collectives.course import files
from collectives.course.wrong import plant


def edit(lesson: str, step: str, old: str, new: str, says: str, file: str = "") -> Planted:
    """In the lesson or in a file beside it. `says` is part of what this step says of it."""
    path = files.find(lesson)
    return Planted(path.with_name(file) if file else path, old, new, says, step, path)


MACHINES = {
    "the flat ring leaves the machine four times in round-robin": edit(
        "machines/cables",
        "cables",
        "else node + 2 * local\n    dist.init_process_group(\n"
        '        "gloo", store=dist.PrefixStore(order, store), rank=rank, world_size=8\n    )\n'
        '    machines = [[0, 1, 2, 3], [4, 5, 6, 7]] if order == "blocks" else [[0, 2, 4, 6], [1, 3, 5, 7]]\n',
        "else 4 * node + local\n    dist.init_process_group(\n"
        '        "gloo", store=dist.PrefixStore(order, store), rank=rank, world_size=8\n    )\n'
        "    machines = [[0, 1, 2, 3], [4, 5, 6, 7]]\n",
        "[bytes on the cable",
    ),
    # No row takes the rate away: on a busy machine the data is as slow without it.
    "the data does not go through the store": edit(
        "machines/rendezvous",
        "rendezvous",
        'print(len(store.list_keys()), "keys',
        'store.set(f"data {rank}", bytes(2**20))\nprint(len(store.list_keys()), "keys',
        "[node0's store",
    ),
    "one process holds the store, and all others read it over the network": edit(
        "machines/rendezvous",
        "rendezvous",
        'store = dist.TCPStore("node0", 29500, world_size=2, is_master=me == "node0")',
        'store = dist.FileStore("/run/shared/store", 2)',
        "[node0's store",
    ),
    "gloo takes the address that the machine's own name resolves to": edit(
        "machines/interfaces",
        "interfaces",
        "(echo 127.0.1.1 $(hostname); cat /etc/hosts)",
        "cat /etc/hosts",
        "(not set) works",
    ),
    "the ranks meet at the store, and gloo does not connect": edit(
        "machines/interfaces",
        "interfaces",
        'os.environ["MASTER_PORT"] = str(port)',
        'os.environ["MASTER_PORT"] = str(port if interface else port + int(os.environ["RANK"]))',
        "status 1",
    ),
    "one machine is enough": edit(
        "machines/elastic", "elastic", "--nnodes 1:2 --nproc", "--nnodes 2 --nproc", "die/"
    ),
    "the training continues from its checkpoint": edit(
        "machines/elastic",
        "elastic",
        'if (folder / "checkpoint.pt").exists():',
        "if False:",
        "die/",
        "elastic_train.py",
    ),
    "new_group cannot join two jobs, and the second group does": edit(
        "machines/two_jobs",
        "two_jobs",
        "group.broadcast([weights], options).wait()",
        "dist.broadcast(weights, src=0)",
        "[1 + 1 ranks",
    ),
    "torchrun under srun starts one rank on each machine": edit(
        "machines/slurm",
        "torchrun_under_srun",
        "srun torchrun --nnodes 2 --nproc-per-node 1",
        "srun -N 1 -n 1 torchrun --nnodes 1 --nproc-per-node 2",
        "[sbatch",
    ),
    "the script begins again, from its checkpoint": edit(
        "machines/slurm",
        "queued_again",
        "step=$(cat /run/shared/step || echo 0)",
        "step=0",
        "[how often step 1",
    ),
    "the shell runs its trap when the ranks have ended": edit(
        "machines/slurm",
        "who_is_warned",
        "srun python /run/shared/rank.py\n",
        "srun python /run/shared/rank.py &\nwait; wait\n",
        "[signals",
    ),
    "a file says how many ranks each machine gets": edit(
        "machines/mpi", "mpi", "node0:3\nnode1:1\n", "node0:2\nnode1:2\n", "[blocks"
    ),
    "-ppn 1 deals one rank to each machine, and starts over": edit(
        "machines/mpi", "round_robin", "-ppn 1 -n", "-ppn 2 -n", "[round-robin"
    ),
    "the pair without the slow machine is as fast as before": edit(
        "machines/slow_machine",
        "slow_machine",
        'if os.uname().nodename == "node2":\n',
        'subprocess.run("tc qdisc replace dev eth0 root tbf rate 50mbit burst 128k latency 1s"'
        '.split(), check=True)\nif os.uname().nodename == "node2":\n',
        "[times as long",
    ),
}
VERSIONS = {  # in a ForkedLab, because these programs only meet at a store
    "a receive that is posted writes as soon as the trainer sends": edit(
        "machines/versions",
        "versions",
        'receive(layers if way == "in place" else spares)',
        'receive(spares if way == "spares" else layers)',
        "[2 ranks",
    ),
    "a version is new when all of its weights have come": edit(
        "machines/versions",
        "versions",
        "    for one in works:\n        one.wait()  # raises the error, if there is one\n",
        "",
        "[2 ranks",
    ),
    "swap between two answers": edit(
        "machines/versions",
        "versions",
        'if way == "layer by layer":',
        'if way != "stop":',
        "spares, engine 1: 11112222=16",
    ),
    "the grace period must be longer than the limit of a call": edit(
        "machines/versions", "an_engine_dies", "time.sleep(2 * LIMIT)", "time.sleep(0.5)", "[killed"
    ),
    "only when all has come to each member does the trainer commit": edit(
        "machines/versions",
        "an_engine_dies",
        '    store.wait([f"came/{one}" for one in members])\n',
        "",
        "[killed",
    ),
    "the group of the second attempt needs a new prefix": edit(
        "machines/versions",
        "an_engine_dies",
        'update(group_of("update 1, attempt 2", members))',
        # Who comes first reads what the others have left there in the first attempt.
        'time.sleep(0.3 * rank)\nupdate(group_of("update 1", members))',
        "[killed",
    ),
    "a rank that died is no member": edit(
        "machines/versions", "an_engine_dies", 'if store.check([f"alive/{one}"])', "", "[killed"
    ),
}
FAILOVER = {
    "a step that is made again gives the same bits": edit(
        "training/failover",
        "killed_in_a_step",
        "    losses = []\n    for step, batch in",
        "    for one in model.parameters() if done else ():\n        one.data *= 1 + 2**-50\n"
        "    losses = []\n    for step, batch in",
        "torchrun ended with 1",
    ),
    "wherever a rank is killed, the newest checkpoint is complete": edit(
        "training/failover",
        "killed_while_it_saves",
        '    draft = Path(folder, "draft")\n',
        '    draft = Path(folder, f"step-{step:04}.pt")\n',
        "[steps of each start",
        "checkpoint.py",
    ),
    "after a signal all save": edit(
        "training/failover",
        "failover",
        "if folder and (stop or step % 5 == 0):",
        "if folder and step % 5 == 0:",
        "[steps before and after",
    ),
}

# What no proof notices, and the lesson says so.
SAID = {
    "machines/elastic": "This proves neither the shares nor the rounding",
}


def planted(fault: Planted, folder: Path) -> Path:
    """The lesson in a copy of its folder with the fault: its programs are started from there.

    A training that a fault keeps from going on is waited for no longer than a minute.
    """
    copy = shutil.copytree(fault.file.parent, folder / "copy")
    if (job := copy / "elastic_job.py").exists():
        job.write_text(plant(job.read_text("utf-8"), "limit=150", "limit=60"), "utf-8")
    (copy / fault.file.name).write_text(fault.text, "utf-8")
    return copy / fault.lesson.name


@pytest.mark.slow
@needs_a_lab
@needs_slurm
@pytest.mark.parametrize("claim", MACHINES)
def test_an_edit_that_makes_a_claim_on_machines_false_is_noticed(claim, tmp_path):
    fault = MACHINES[claim]
    lesson = files.load(planted(fault, tmp_path))
    with pytest.raises((Mismatch, RuntimeError, TimeoutError)) as error:
        vars(lesson)[fault.function]()
    assert fault.says in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["versions", "an_engine_dies"])
def test_a_forked_lab_is_as_good_as_machines(step):
    lesson = files.load(files.find("machines/versions"))
    vars(lesson).update(Lab=ForkedLab, open_store=ForkedLab.open_store)
    vars(lesson)[step]()


@pytest.mark.slow
@pytest.mark.parametrize("claim", VERSIONS)
def test_an_edit_that_makes_a_claim_on_versions_false_is_noticed(claim, tmp_path):
    fault = VERSIONS[claim]
    lesson = files.load(planted(fault, tmp_path))
    vars(lesson).update(Lab=ForkedLab, open_store=ForkedLab.open_store)
    with pytest.raises(Mismatch) as error:
        vars(lesson)[fault.function]()
    assert fault.says in str(error.value)


def run_step(rank, world_size, device, path, step):
    vars(files.load(path))[step](rank, world_size, device)


@pytest.mark.slow
@pytest.mark.parametrize("claim", FAILOVER)
def test_an_edit_that_makes_a_claim_of_failover_false_is_noticed(claim, tmp_path):
    fault = FAILOVER[claim]
    arguments = planted(fault, tmp_path), fault.function
    with pytest.raises(LaunchError) as error:
        launch(run_step, 2, args=arguments, backend="gloo", device="cpu", timeout=160.0)
    assert fault.says in str(error.value)


def test_what_no_proof_notices_is_said():
    for lesson, sentence in SAID.items():
        assert sentence in " ".join(Source(lesson).text.replace("\n#", "\n").split())
