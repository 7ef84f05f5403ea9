"""Train a transformer on a mesh of ranks, data x tensor. Start your own program from this.

    torchrun --nproc-per-node 4 --max-restarts 3 train_sharded.py --tensor 2

On two machines, node0 and node1, type this on both, on node1 with --node-rank 1:

    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 \
        --nproc-per-node 2 --max-restarts 3 train_sharded.py --tensor 2 --checkpoint /shared/run

With Slurm: sbatch/train_sharded.sh. With mpiexec, set MASTER_ADDR=node0 MASTER_PORT=29500.
If a rank is killed, torchrun starts all ranks again; if SIGTERM stops them, type the command again,
with any number of ranks. Both times they continue from the newest checkpoint, on a disk that all
machines see. With a model of your own, first compare the losses of --tensor 1 and --tensor 2, both
with --double, because a wrong plan gives no error. This makes one file of a checkpoint:

    python -m torch.distributed.checkpoint.format_utils dcp_to_torch run/step-000200 model.pt
"""

import argparse
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import parallel
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS = 32, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.query_norm, self.key_norm = (nn.RMSNorm(WIDTH // HEADS) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = (part(self.norm1(x)) for part in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)) for part in parts)  # this rank's heads
        q, k, v = (part.transpose(1, 2) for part in (self.query_norm(q), self.key_norm(k), v))
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


# By columns a rank gets whole heads, which one layer for q, k and v would not give; then by rows.
# What is not here must see what all ranks see. Norms of heads do not: their gradients are added up.
BY_HEADS = parallel.SequenceParallel(sequence_dim=2, use_local_output=True)
PLAN = dict.fromkeys(("query", "key", "value", "up"), parallel.ColwiseParallel())
PLAN |= dict.fromkeys(("out", "down"), parallel.RowwiseParallel())
PLAN |= dict.fromkeys(("query_norm", "key_norm"), BY_HEADS)


class Model(nn.Module):  # put your own model here
    def __init__(self):
        super().__init__()
        self.line, self.place = nn.Linear(8, WIDTH), nn.Embedding(8, WIDTH)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 10)

    def forward(self, images):
        return self.head(self.blocks(self.line(images) + self.place.weight).mean(1))


def variable(*names):  # torchrun, Open MPI, MPICH and Slurm have a name each for one number
    found = [os.environ[name] for name in names if name in os.environ]
    return int(found[0]) if found else sys.exit(f"{names[0]} is not set: see {__file__}")


def start(rank, n, tensor):
    """Meet the other ranks. Each takes a GPU of its machine; if one has none, all take the CPU."""
    local = variable("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    store, *_ = next(dist.rendezvous("env://", rank, n))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # subtle: torchrun keeps its store when it starts killed ranks again, with their addresses
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    store.set(f"GPU of {rank}", str(local < torch.cuda.device_count()))
    on_gpus = all(store.get(f"GPU of {one}") == b"True" for one in range(n))
    kind, backend = ("cuda", "nccl") if on_gpus else ("cpu", "gloo")
    if on_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group(backend, store=store, rank=rank, world_size=n)
    return init_device_mesh(kind, (n // tensor, tensor), mesh_dim_names=("data", "tensor"))


def by_mesh(model):  # lists of parameters, because few functions accept those of two meshes in one
    meshes = dict.fromkeys(one.device_mesh for one in model.parameters())
    return [[one for one in model.parameters() if one.device_mesh == mesh] for mesh in meshes]


def batches(mesh, step, options):
    """This rank's micro-batches from a step on. A tensor group has the same ones."""
    images, labels = load_digits(return_X_y=True)  # put your own data here
    dtype = torch.float64 if options.double else torch.float32
    images, labels = torch.tensor(images / 16, dtype=dtype).view(-1, 8, 8), torch.tensor(labels)
    assert options.batch <= len(labels), f"--batch is more than {len(labels)} samples"
    while True:
        epoch, done = divmod(step, len(labels) // options.batch)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        mine = order[done * options.batch :][: options.batch]
        mine = mine[mesh.get_local_rank("data") :: mesh["data"].size()]
        for part in mine.chunk(options.accumulation):
            yield images[part].to(mesh.device_type), labels[part].to(mesh.device_type)
        step += 1


def train_step(model, optimizer, batches, options):
    """One step on the next few batches of this rank: their loss, and the norm of all gradients."""
    total = 0.0
    for left in reversed(range(options.accumulation)):
        images, labels = next(batches)
        model.set_requires_gradient_sync(left == 0)  # one reduction, with the last batch
        loss = cross_entropy(model(images).to(images.dtype), labels) / options.accumulation
        loss.backward()
        total += loss.detach()  # and not loss.item(), which waits for the GPU
    norms = [get_total_norm(one.grad for one in part).full_tensor() for part in by_mesh(model)]
    norm = torch.stack(norms).norm()
    for part in by_mesh(model):
        clip_grads_with_norm_(part, options.clip, norm)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def load(folder, made_by, *parts):
    """All ranks read the newest checkpoint and continue from its step. Without one that is 0."""
    whole = sorted(folder.glob("step-*/.metadata"))  # it is written last
    newest, found = [one.parent for one in whole[-1:]], [None] * dist.get_world_size()
    dist.all_gather_object(found, newest)
    if any(one != newest for one in found):
        dist.destroy_process_group()
        sys.exit(f"--checkpoint must be one folder for all ranks, but they find {found}")
    for one in newest:
        dcp.load(saved := {"made_by": ""}, checkpoint_id=one)
        if saved["made_by"] != made_by:
            dist.destroy_process_group()
            sys.exit(f"{one} is of another model, or of another --batch or --steps")
        model, optimizer = get_state_dict(*parts)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=one)
        set_state_dict(*parts, model_state_dict=model, optim_state_dict=optimizer)
    return int(newest[0].name[5:]) if newest else 0


def main(options):
    stops = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    rank = variable("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    n = variable("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    if n % options.tensor or HEADS % options.tensor:
        sys.exit(f"--tensor {options.tensor} must divide {n} ranks and {HEADS} heads")
    data = n // options.tensor
    if options.batch % (data * options.accumulation):
        sys.exit(f"--batch {options.batch} is no multiple of {data} ranks * --accumulation")
    mesh = start(rank, n, options.tensor)
    mesh._flatten("all")  # or two all_reduce, and a warning, for the norm of what is cut twice
    torch.manual_seed(0)
    model = Model().to(mesh.device_type, torch.float64 if options.double else torch.float32)
    made_by = f"{model}, --batch {options.batch} --steps {options.steps}"
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharding = {"mesh": mesh["data"], "mp_policy": bf16 if options.bf16 else MixedPrecisionPolicy()}
    for block in model.blocks:
        parallel.parallelize_module(block, mesh["tensor"], PLAN)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # keeps its input
        fully_shard(block, **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.AdamW([{"params": part} for part in by_mesh(model)])
    step = load(options.checkpoint, made_by, model, optimizer)
    say = partial(print, flush=True) if rank == 0 else lambda line: None
    say(f"{data} x {options.tensor} ranks ({mesh.device_type}), from step {step}")
    mine, stopped, wait = batches(mesh, step, options), False, lambda: None
    calls_of_saving = dist.new_group(backend="gloo")  # a thread makes them, between our own calls
    while step < options.steps and not stopped:
        torch.manual_seed(step * n + mesh.get_local_rank("data"))  # no random state must be saved
        for part in optimizer.param_groups:
            part["lr"] = 0.01 * (1 - step / options.steps)
        loss, norm = train_step(model, optimizer, mine, options)
        step += 1
        if step % options.log_every == 0:  # else nobody waits for a GPU
            told = torch.stack([loss / n, torch.full_like(loss, len(stops))])
            dist.all_reduce(told)
            loss, stopped = told.tolist()
            say(f"step {step}: loss {loss:.3f}, gradient {norm:.3f}")
        if stopped or step % options.save_every == 0 or step == options.steps:
            wait()  # until the one before is saved
            states = zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)
            whole = dict(states) | {"made_by": made_by}
            name = options.checkpoint / f"step-{step:06}"
            wait = dcp.async_save(whole, checkpoint_id=name, process_group=calls_of_saving).result
    wait()
    dist.destroy_process_group()
    if stopped:
        print(f"stopped after step {step}: type the same command again", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor", type=int, default=1, help="ranks that cut each block")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together in a step")
    parser.add_argument("--accumulation", type=int, default=2, help="batches of a rank in a step")
    parser.add_argument("--clip", type=float, default=1.0, help="the gradient's largest norm")
    parser.add_argument("--double", action="store_true", help="with float64")
    parser.add_argument("--bf16", action="store_true", help="computes in bfloat16")
    parser.add_argument("--log-every", type=int, default=10, help="steps; then asks for SIGTERM")
    parser.add_argument("--save-every", type=int, default=10, help="steps; old ones stay")
    parser.add_argument("--checkpoint", type=Path, default="run", help="a folder for all ranks")
    main(parser.parse_args())
