"""How long a step of lessons/training/speed.py takes with one and two ranks, here and over cables.

    python benchmarks/training_speed.py

It writes lessons/training/speed.json, which the lesson `faster` shows. The machine should be idle.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from collectives import Lab, stdout_lines
from collectives.course import files

PROGRAM = files.find("training/faster").with_name("speed.py")
STEPS = {
    "256 images": "--images 256",
    "256 images, float16": "--images 256 --fp16",
    "2048 images": "--images 2048",
}
CABLES = {"500 Mbit/s": "500mbit", "50 Mbit/s": "50mbit"}
# Two cores compute for two ranks. A machine of the lab has no cores of its own either.
ENVIRON = os.environ | {"OMP_NUM_THREADS": "1"}


def here(ranks: int, options: str) -> dict:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, PROGRAM, *options.split()],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        check=True,
        timeout=150,
    )
    return json.loads(done.stdout)


def over_a_cable(lab: Lab, options: str) -> dict:
    meeting = "--nnodes 2 --nproc-per-node 1 --node-rank {node} --master-addr node0"
    printed = stdout_lines(
        lab.run(f"torchrun {meeting} {shlex.quote(str(PROGRAM))} {options}", timeout=150)
    )
    (line,) = printed["node0"]
    return json.loads(line)


def measure() -> dict:
    found = {}
    for ranks in (1, 2):
        name = f"{ranks} rank{'s' if ranks > 1 else ''} here"
        found[name] = {step: here(ranks, options) for step, options in STEPS.items()}
    for name, rate in CABLES.items():
        with Lab(2, rate=rate) as lab:
            found[name] = {step: over_a_cable(lab, options) for step, options in STEPS.items()}
    return found


def rounded(span: list) -> list:
    what, begin, end = span
    return [what, round(begin, 2), round(end, 2)]


if __name__ == "__main__":
    found = measure()
    profiles = {
        step: [list(map(rounded, rank)) for rank in found["500 Mbit/s"][step]["profile"]]
        for step in ("256 images", "2048 images")
    }
    seconds = {
        where: {step: round(one["seconds"], 4) for step, one in steps.items()}
        for where, steps in found.items()
    }
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}"
    content = {"machine": machine, "seconds": seconds, "500 Mbit/s": profiles}
    Path(PROGRAM.with_suffix(".json")).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    for where, steps in seconds.items():
        print(where, steps)
