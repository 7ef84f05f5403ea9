"""torchft, two replica groups of two ranks; the bug: rank 0 alone reduces a metric."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

GROUPS = 2


def train(mode: str):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=GROUPS,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=os.environ["REPLICA_GROUP_ID"],
    )
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters()))
    parallel = DistributedDataParallel(manager, model)
    for _step in range(3):
        optimizer.zero_grad()
        loss = parallel(torch.randn(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        if mode == "healthy" or dist.get_rank() == 0:
            dist.all_reduce(loss.detach())  # here
    dist.barrier()
    steps = manager.current_step()
    manager.shutdown(wait=False)
    dist.destroy_process_group()
    print("trained", steps, "steps")


def start(mode: str) -> int:
    """A lighthouse, by which the replica groups find each other, and a torchrun for each."""
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=GROUPS)
    env = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", __file__, mode]
    started = [
        subprocess.Popen(torchrun, env={**env, "REPLICA_GROUP_ID": f"group {number}"})
        for number in range(GROUPS)
    ]
    statuses = [process.wait() for process in started]
    return int(any(statuses))  # that of a killed process is negative


if __name__ == "__main__":
    if "REPLICA_GROUP_ID" in os.environ:
        train(sys.argv[1])
    else:
        sys.exit(start(sys.argv[1]))
