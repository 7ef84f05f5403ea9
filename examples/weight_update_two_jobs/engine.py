"""Work with the weights that another job (trainer.py) sends. The commands are in trainer.py."""

import torch
import torch.distributed as dist
from joint import Joint, fingerprint, network, parser, start


def answer(model, device):
    """Stands for your inference. Here: on how many of 64 inputs is the first output the largest?"""
    model.eval()
    with torch.no_grad():
        inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        return (model(inputs.to(device)).argmax(1) == 0).sum()


def main(options):
    device = start()  # and the world of this job
    model = network(options.width).to(device)
    joint = Joint(options, 1 + dist.get_rank(), dist.get_world_size())
    joint.join(model)
    for version in range(1, options.updates + 1):
        joint.receive(model, version)
        total = answer(model, device)
        dist.all_reduce(total)  # the own world still works
        text = f"version {version} is {fingerprint(model)}, all engines count {total.item()}"
        print(f"{joint.name}: {text}\n", end="", flush=True)
    joint.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parser.parse_args())
