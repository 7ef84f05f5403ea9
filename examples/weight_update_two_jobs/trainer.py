"""Train a model, and send its weights to the engines of another job (engine.py) after each step.

    torchrun --standalone --nproc-per-node 2 trainer.py
    torchrun --standalone --nproc-per-node 2 engine.py

Start the jobs in any order, with any number of ranks, in two terminals. They need torch and the
three files of this folder. On two machines, tell the engines where the trainer is:

    torchrun --standalone --nproc-per-node 2 trainer.py
    torchrun --standalone --nproc-per-node 2 engine.py --host MACHINE_OF_THE_TRAINER

With Slurm, in a batch script that asks for two machines:

    export TRAINER=$(scontrol show hostnames | head -n 1)
    srun -N 1 -n 1 -w $TRAINER torchrun --standalone --nproc-per-node 2 trainer.py &
    srun -N 1 -n 1 -x $TRAINER torchrun --standalone --nproc-per-node 2 engine.py --host $TRAINER &
    wait

Only rank 0 of this job is in the group that joins the jobs, and its weights are sent. A job that
ends early says why, above torchrun's report.
"""

import torch
import torch.distributed as dist
from joint import Joint, fingerprint, network, parser, start


def train_step(model, step, device):
    """Stands for your training: the ranks of this job average the gradients of their samples."""
    torch.manual_seed(1000 * step + dist.get_rank())
    model.zero_grad()
    model(torch.randn(8, 64).to(device)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data -= 0.1 / dist.get_world_size() * parameter.grad


def main(options):
    device = start()  # and the world of this job
    torch.manual_seed(0)
    model = network(options.width).to(device)
    joint = Joint(options, rank=0) if dist.get_rank() == 0 else None
    if joint:
        joint.join(model)
    for version in range(1, options.updates + 1):
        train_step(model, version, device)
        if joint:
            joint.send(model, version)
            print(f"trainer: version {version} is {fingerprint(model)}", flush=True)
    if joint:
        joint.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parser.parse_args())
