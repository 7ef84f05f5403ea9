"""Train a model on some ranks of a job, and send its weights to the engines, which are the others.

    torchrun --nproc-per-node 4 weight_update.py --trainers 2

It needs torch, and nothing of this repository. On two machines, type on each of them, with 0 and 1
for NUMBER (whatever the order):

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank NUMBER --master-addr MACHINE_0
        --rdzv-conf timeout=60 weight_update.py --trainers 2

With Slurm, in a batch script that asks for two machines:

    export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29500 WORLD_SIZE=4
    srun --ntasks-per-node 2 sh -c 'RANK=$SLURM_PROCID exec python weight_update.py --trainers 2'

Each rank takes a GPU of its machine; if one has none, all take the CPU. The ranks wait for each
other for --limit seconds. torchrun itself waits for the other machine, and says "Wait timeout" or
"timed out" after the timeout in its command.
"""

import argparse
import datetime
import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rendezvous

BUCKET = 4 * 2**20  # bytes


def network(width):
    """Put your own model here. Trainers and engines build it."""
    return nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 10))


def as_bytes(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def fingerprint(model):
    """The same on two ranks only if their weights are equal to the last bit."""
    parts = (as_bytes(one).cpu().numpy().tobytes() for one in model.state_dict().values())
    weights = b"".join(parts)
    return hashlib.sha256(weights).hexdigest()[:12]


def start(limit):
    """Meet the other ranks. Each takes a GPU of its machine; if one has none, all take the CPU."""
    store, rank, n = next(rendezvous("env://", timeout=limit))
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    store.set(f"GPU of {rank}", str(local_rank < torch.cuda.device_count()))
    on_gpus = all(store.get(f"GPU of {one}") == b"True" for one in range(n))
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=n, timeout=limit)
    return device, rank, n


def train_step(model, step, trainers, device):
    """Stands for your training: the trainers average the gradients of their samples."""
    torch.manual_seed(1000 * step + dist.get_rank())
    model.zero_grad()
    model(torch.randn(8, 64).to(device)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=trainers)
        parameter.data -= 0.1 / dist.get_world_size(trainers) * parameter.grad


def in_buckets(tensors):
    """Parts of the list with at most BUCKET bytes each, but at least one tensor."""
    part, size = [], 0
    for tensor in tensors:
        if part and size + tensor.nbytes > BUCKET:
            yield part
            part, size = [], 0
        part.append(tensor)
        size += tensor.nbytes
    yield part


def compare(model, group):
    """Before the first byte travels: names, shapes and dtypes, in their order, by a hash."""
    tensors = model.state_dict().items()
    plan = [f"buckets of {BUCKET} bytes"]
    plan += [f"{name} {tuple(one.shape)} {one.dtype}" for name, one in tensors]
    found = [None] * dist.get_world_size(group)
    digest = hashlib.sha256("\n".join(plan).encode()).hexdigest()
    dist.all_gather_object(found, digest, group=group)
    if any(one != found[0] for one in found):
        plans = [None] * len(found)
        dist.all_gather_object(plans, plan, group=group)
        for number, other in enumerate(plans[1:]):
            pairs = zip([*plans[0], "no more"], [*other, "no more"], strict=False)
            for trainer, engine in pairs:
                if trainer != engine:
                    sys.exit(f"engine {number} has {engine}, and the trainer has {trainer}")


def update(model, group):
    """Rank 0 sends its weights, also those that are no parameters, as a BatchNorm has."""
    spares = []
    for bucket in in_buckets(model.state_dict().values()):
        spares.append(torch.cat([as_bytes(tensor) for tensor in bucket]))
        dist.broadcast(spares[-1], src=0, group=group)
    dist.barrier(group)  # no engine takes the new weights before all have them
    new = torch.cat(spares)
    for tensor in model.state_dict().values():
        part, new = new.tensor_split([tensor.nbytes])
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def main(options):
    limit = datetime.timedelta(seconds=options.limit)
    try:
        device, rank, n = start(limit)
    except dist.DistError as error:
        sys.exit(f"not all ranks have met after {limit}: do all of them run? ({error})")
    if not 0 < options.trainers < n:
        sys.exit(f"{n} ranks, {options.trainers} of them trainers: no engine or no trainer is left")
    trains = rank < options.trainers
    trainers = dist.new_group(list(range(options.trainers)))
    group = dist.new_group([0, *range(options.trainers, n)])  # every rank makes both groups
    name = f"trainer {rank}" if trains else f"engine {rank - options.trainers}"
    wide = options.width if trains else options.engine_width or options.width
    torch.manual_seed(0 if trains else rank)
    model = network(wide).to(device)
    try:
        if rank == 0 or not trains:
            compare(model, group)
        for version in range(1, options.updates + 1):
            if trains:
                train_step(model, version, trainers, device)
            if rank == 0 or not trains:
                update(model, group)
                print(f"{name}: version {version} is {fingerprint(model)}\n", end="", flush=True)
    except RuntimeError as error:
        sys.exit(f"{name}: a rank has died, or was silent for {limit} ({error})")
    finally:  # also before an exit: a thread of gloo that outlives Python aborts the process
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainers", type=int, default=1, help="ranks; the others are engines")
    parser.add_argument("--limit", type=float, default=60, help="seconds to wait for each other")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--engine-width", type=int, help="another one, to see it refused")
    main(parser.parse_args())
