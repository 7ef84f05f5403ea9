"""A training on the machines of a lab that accidents happen to, for the lesson elastic."""

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from collectives import check

PROGRAM = Path(__file__).with_name("elastic_train.py")

# It is open until its lab ends.
STORE = """
import signal
import torch.distributed as dist

store = dist.TCPStore("0.0.0.0", 29400, is_master=True, wait_for_workers=False)
print("open", flush=True)
signal.pause()
"""

# The processes of a machine that trains, as its shell finds them.
WORKER, AGENT = "$(cat /run/disk/worker)", "$(cat /run/disk/agent)"


def sh(lab, node, command):
    (done,) = lab.run(["sh", "-c", command], on=[node])
    return done.stdout


def open_store(lab):
    """On `login`, at port 29400."""
    store = lab.start("login", ["python", "-c", STORE], stdout=subprocess.PIPE, text=True)
    check(store.stdout.readline(), "open\n", "TCPStore")
    store.stdout.close()


def make_ready(lab):
    """Open a store, and train once without an accident."""
    open_store(lab)
    sh(lab, "login", "mkdir /run/shared/undisturbed; touch /run/shared/undisturbed/hurry")
    alone = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
    sh(lab, 0, f"{alone} python {PROGRAM} /run/shared/undisturbed")


class Job:
    """A training on both machines, with agents that this command starts and a store on a host.

    `rows`: what happened in each accident. `times`: the same of all jobs, with the seconds.
    """

    times: ClassVar[list[dict]] = []

    def __init__(self, lab, name, command, store="login"):
        if "undisturbed" not in sh(lab, "login", "ls /run/shared"):
            make_ready(lab)
        self.lab, self.folder, self.rows = lab, f"/run/shared/{name}", []
        words = command.replace("$JOB", name).split()
        self.command = f"exec {' '.join(words)} {PROGRAM} {self.folder}"
        sh(lab, "login", f"mkdir {self.folder}")
        self.agents = [self.start_agent(node, store) for node in lab.nodes]

    def start_agent(self, node, store="login"):
        command = f"{self.command} 2> {self.folder}/node{node}.err".replace("$STORE", store)
        return self.lab.start(node, ["sh", "-c", command], stdout=subprocess.DEVNULL)

    def wait_for(self, condition, limit=150):
        """The log, when its last line meets the condition: ranks, begin, step, time."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            lines = sh(self.lab, "login", f"cat {self.folder}/log 2> /dev/null").splitlines()
            found = [[float(word) for word in line.split()] for line in lines]
            if found and condition(*found[-1]):
                return found
            time.sleep(0.1)
        raise TimeoutError(sh(self.lab, "login", f"tail {self.folder}/*"))

    def wait_until_at_work(self, ranks):
        return self.wait_for(lambda n, begin, step, _: n == ranks and step > begin + 15)[-1]

    def survive(self, accident, ranks, happens):
        """Let the accident happen to so many ranks, and wait until the training goes on."""
        before = self.wait_until_at_work(ranks)
        moment = time.time()
        happens()
        log = self.wait_for(lambda n, begin, *_: begin > before[1])
        last = [line for line in log if line[1] == before[1]][-1]
        again = log[log.index(last) + 1]
        check(last[2] - again[1] < 10, True, "made again: no more steps than since the checkpoint")
        seconds = {"last step": last[-1] - moment, "seconds": again[-1] - moment}
        # On stderr: what stdout holds is the same in every run.
        print(f"{accident}: the next step {seconds['seconds']:.1f} s later", file=sys.stderr)
        self._note(accident, ranks, int(again[0]), seconds)

    def _note(self, accident, ranks, after, seconds):
        row = {"accident": accident, "ranks before": ranks, "after": after}
        self.rows.append(row | {"parameters": "equal"})
        self.times.append(row | seconds)

    def finish(self, unnoticed=None):
        """Let the job end: with as many ranks as after its last accident, and with the parameters
        of the training without one. `unnoticed`: an accident that nobody has noticed by then.
        """
        sh(self.lab, "login", f"touch {self.folder}/hurry")
        ranks = int(self.wait_for(lambda n, begin, step, _: step == 1200)[-1][0])
        if unnoticed:
            self._note(unnoticed, 2, ranks, {})
        check(self.rows[-1]["after"], ranks, "ranks at the end")
        for agent in self.agents:
            self.lab.kill(agent)
        compare = f"cmp {self.folder}/checkpoint.pt /run/shared/undisturbed/checkpoint.pt"
        check(sh(self.lab, "login", f"{compare} && echo same"), "same\n", "the parameters")
        return self.rows
