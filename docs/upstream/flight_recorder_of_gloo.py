"""torchfrtrace cannot read what the Flight Recorder writes on gloo.

Expected: a report on the one all_reduce. Got: KeyError, as a dump of gloo names no members.

torchrun: 1
bug: 2.13.0, 2.14.1
shows: KeyError: ('0', 0)
thread: none found
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/dump_0", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    trace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    subprocess.run([*trace, "--prefix", "dump_", folder], check=True)
