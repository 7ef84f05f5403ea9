"""Slurm on a lab: its own daemons, unchanged, with the least configuration that works there.

>>> with Lab(2) as lab:  # doctest: +SKIP
...     slurm.start(lab)
...     lab.run("srun -N 2 hostname", on=["login"])
"""

import shutil
import time

from collectives.backends.availability import Unavailable
from collectives.lab import available
from collectives.lab.lab import LIMIT, Lab, name

# There are neither cgroups nor systemd in a lab, and each machine claims more cores than there are.
# CR_CPU: jobs share out cores alone. By default each takes all memory of its machines, and the next
# one waits until the machines have cleaned up.
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/disk/munge
StateSaveLocation=/run/shared/slurmctld
SlurmdSpoolDir=/run/disk/slurmd
SlurmctldPidFile=/run/disk/slurmctld.pid
SlurmdPidFile=/run/disk/slurmd.pid
SlurmctldLogFile=/run/shared/slurmctld.log
SlurmdLogFile=/run/shared/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=5
NodeName=node[0-{last}] CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# munge proves to the daemons who sends a message. The key is the lab's own.
_CONTROLLER = """
mkdir /run/shared/slurmctld
head -c 64 /dev/urandom > /run/shared/munge.key
chmod 600 /run/shared/munge.key
{munged}
slurmctld -i
"""
_MUNGED = (
    "munged --force --key-file=/run/shared/munge.key --socket=/run/disk/munge "
    "--pid-file=/run/disk/munged.pid --log-file=/run/disk/munged.log --seed-file=/run/disk/seed"
)


def missing() -> str | None:
    """Why there can be no Slurm here; None if there can be one, where there can be a lab."""
    packages = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
    packages["munged"] = "munge"
    absent = [one for one in packages if not shutil.which(one, path=available.search_path())]
    if absent:
        wanted = " ".join(packages[one] for one in absent)
        return f"Slurm needs {', '.join(absent)}: apt install {wanted}."
    if available.user_flags() == ["-Ur"]:
        return "Slurm needs root, or uidmap and a range of users in /etc/subuid and /etc/subgid."
    return None


def start(lab: Lab) -> None:
    """Start the controller on `login` and a daemon on each machine; wait until all are idle.

    srun and sbatch then run on login. Raises Unavailable.
    """
    if reason := missing():
        raise Unavailable(reason)
    lab.environ["SLURM_CONF"] = "/run/shared/slurm.conf"
    configuration = _CONFIGURATION.format(last=len(lab.nodes) - 1)
    lab.save("slurm.conf", configuration)
    _sh(lab, "login", _CONTROLLER.format(munged=_MUNGED))
    for node in lab.nodes:
        start_node(lab, node)
    deadline = time.monotonic() + LIMIT
    while (states := _sh(lab, "login", "sinfo -h -o '%T %D'")) != f"idle {len(lab.nodes)}":
        if time.monotonic() > deadline:
            raise Unavailable(f"Slurm's nodes are not ready: {states}")
        time.sleep(0.05)


def start_node(lab: Lab, node: int) -> None:
    """Start Slurm on a machine that was off, or for the first time."""
    _sh(lab, node, f"{_MUNGED} && exec slurmd -N {name(node)}")


def _sh(lab: Lab, node: int | str, script: str) -> str:
    try:
        (done,) = lab.run(["sh", "-ec", script], on=[node], timeout=LIMIT)
    except TimeoutError as error:
        raise Unavailable(f"Slurm does not answer: {error}") from None
    if done.returncode != 0:
        raise Unavailable(f"Slurm does not start on {name(node)}: {done.stderr.strip()}")
    return done.stdout.strip()
