"""Train a network on several ranks with DistributedDataParallel. Start your own program from this.

    torchrun --nproc-per-node 2 --max-restarts 3 train_ddp.py

On two machines, node0 and node1, type this on both, on node1 with --node-rank 1:

    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 \
        --nproc-per-node 2 --max-restarts 3 train_ddp.py --checkpoint /shared/checkpoint.pt

With Slurm: sbatch sbatch/train_ddp.sh. With mpiexec, set MASTER_ADDR=node0 MASTER_PORT=29500. If a
rank is killed, torchrun starts all ranks again; if SIGTERM stops them, type the command again. Both
times they continue from the checkpoint, on a disk that all machines see. With --rdzv-backend c10d,
restarts need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, but also work before all ranks have met.
"""

import argparse
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, which it would keep
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

LAUNCHERS = [  # each calls the rank, the number of ranks, and the rank on its machine differently
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun
]


def digits(train, dtype):
    """1,797 images of digits, of which 1,536 are to train. Put your own dataset here."""
    images, labels = load_digits(return_X_y=True)
    part = slice(1536) if train else slice(1536, None)
    return TensorDataset(torch.tensor(images[part] / 16, dtype=dtype), torch.tensor(labels[part]))


def read_variables():
    """The rank, the number of ranks, and the rank on this machine, as the launcher says."""
    store = "MASTER_ADDR", "MASTER_PORT"
    absent = [[one for one in (*names, *store) if one not in os.environ] for names in LAUNCHERS]
    fewest, names = min(zip(absent, LAUNCHERS, strict=True), key=lambda pair: len(pair[0]))
    if fewest:
        sys.exit(f"not set: {', '.join(fewest)}. See the commands above, in {__file__}")
    return [int(os.environ[name]) for name in names]


def start():
    """Meet the other ranks. Each takes a GPU of its machine; if one has none, all take the CPU."""
    rank, n, local_rank = read_variables()
    store, *_ = next(rendezvous("env://", rank, n))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # subtle: torchrun keeps its store when it starts killed ranks again, with their addresses
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    store.set(f"GPU of {rank}", str(local_rank < torch.cuda.device_count()))
    on_gpus = all(store.get(f"GPU of {one}") == b"True" for one in range(n))
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=n)
    return device, rank, n


def leave(sentence, status=1):
    """End on all ranks, which agree on the reason."""
    dist.barrier()
    dist.destroy_process_group()
    print(sentence, file=sys.stderr)
    sys.exit(status)


def save(file, step, last, **parts):
    """Rank 0 writes all parts, and the file gets its name when all of it is on the disk."""
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        with (draft := Path(f"{file}.draft")).open("wb") as written:
            torch.save({"step": step, "last": last} | state, written)
            os.fsync(written.fileno())
        draft.replace(file)


def load(file, last, **parts):
    """Every rank reads the file, and all continue from its step. Without a file that is 0."""
    step, found = 0, "no file"
    if file.exists():
        state = torch.load(file, map_location="cpu")
        step, found = state["step"], f"step {state['step']}"
        try:
            for name, part in parts.items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError):
            found += " of another model"
        if state["last"] != last:
            found += " of another --batch or --epochs"
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (found, f"{os.uname().nodename}:{file.absolute()}"))
    if {one for one, _ in rows} not in ({"no file"}, {f"step {step}"}):
        rows = [f"rank {rank} found {one} in {path}" for rank, (one, path) in enumerate(rows)]
        leave("\n".join(["--checkpoint must be one file for all ranks, of this training:", *rows]))
    return step


def train_step(model, optimizer, batches, device, options):
    """One step on the next few batches of this rank: their loss, and the norm of all gradients."""
    optimizer.zero_grad()
    total = torch.zeros((), device=device)
    for left in reversed(range(options.accumulation)):
        images, labels = (part.to(device, non_blocking=True) for part in next(batches))
        with model.no_sync() if left else nullcontext():  # one reduction, with the last batch
            with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
                loss = cross_entropy(model(images), labels) / options.accumulation
            loss.backward()
        total += loss.detach()  # and not loss.item(), which waits for the GPU
    norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    optimizer.step()
    return total, norm


def validate(model, dataset, device, rank, n):
    """The mean loss and the accuracy. Each image counts once, whatever the number of ranks."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels in DataLoader(Subset(dataset, range(rank, len(dataset), n)), 256):
            output, labels = model(images.to(device)), labels.to(device)
            sums[0] += cross_entropy(output, labels, reduction="sum")
            sums[1] += (output.argmax(1) == labels).sum()
    dist.all_reduce(sums)
    model.train()
    return (sums / len(dataset)).tolist()


def is_stopped(stops, device):
    """Whether a signal has reached any rank: all ranks stop after the same step."""
    count = torch.tensor(len(stops), device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return count.item() > 0


def ignore_stops(worker):  # Slurm sends SIGTERM to these processes, too
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(options):
    stops, stopped = [], False
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    device, rank, n = start()
    dtype = torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    # With batch norm (train_accelerate.py --model conv has it), broadcast the buffers of rank 0
    # before you validate: DDP sends them before a forward pass, and each rank then changes its own.
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, held_out = digits(True, dtype), digits(False, dtype)
    size, rest = divmod(options.batch, n * options.accumulation)
    if rest or options.batch > len(data):
        leave(f"--batch must be a multiple of {n} ranks * --accumulation, at most {len(data)}")
    sampler = DistributedSampler(data, n, rank)
    loading = {"num_workers": options.workers, "pin_memory": options.pin}
    steps = len(data) // options.batch  # in an epoch
    last = options.epochs * steps
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, last)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step = load(options.checkpoint, last, **parts)
    say = print if rank == 0 else lambda line: None
    say(f"{n} ranks with batches of {size} ({device.type}), from step {step} of {last}")
    ddp = DistributedDataParallel(model)
    for epoch in range(step // steps, options.epochs):
        sampler.set_epoch(epoch)
        left = Subset(data, list(sampler)[step % steps * options.batch // n :])  # to be done
        batches = iter(DataLoader(left, size, worker_init_fn=ignore_stops, **loading))
        logged, since = step, time.perf_counter()
        while step < (epoch + 1) * steps:
            torch.manual_seed(step * n + rank)  # so no random state must be saved
            loss, norm = train_step(ddp, optimizer, batches, device, options)
            schedule.step()
            step += 1
            if step % options.log_every == 0 or step % steps == 0:  # else nobody waits for a GPU
                stopped = is_stopped(stops, device)
                dist.all_reduce(loss)
                seconds = (time.perf_counter() - since) / (step - logged)
                speed = f"{seconds:.4f} s, {options.batch / seconds:.0f} samples a second"
                say(f"step {step}: loss {loss / n:.3f}, gradient {norm:.3f}, {speed}")
                logged, since = step, time.perf_counter()
            if stopped or step % options.save_every == 0 or step == last:
                save(options.checkpoint, step, last, **parts)
            if stopped:
                del ddp  # see below
                leave(f"stopped after step {step}: type the same command again", os.EX_TEMPFAIL)
        held_out_loss, accuracy = validate(model, held_out, device, rank, n)
        say(f"epoch {epoch}: held out {held_out_loss:.3f}, {accuracy:.1%}")
    # subtle: DDP must go before the group. Else it ends the group while it holds Python's lock, and
    # may wait forever for a thread of gloo, which needs the lock to free a tensor.
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together in a step")
    parser.add_argument("--accumulation", type=int, default=2, help="batches of a rank in a step")
    parser.add_argument("--clip", type=float, default=float("inf"), help="largest gradient norm")
    parser.add_argument("--bf16", action="store_true", help="forward in bfloat16, by autocast")
    parser.add_argument("--workers", type=int, default=0, help="that load a rank's data")
    parser.add_argument("--pin", action="store_true", help="page-locked memory, for GPUs")
    parser.add_argument("--log-every", type=int, default=10, help="steps; then asks for SIGTERM")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt")
    parser.add_argument("--double", action="store_true", help="with float64")
    main(parser.parse_args())
