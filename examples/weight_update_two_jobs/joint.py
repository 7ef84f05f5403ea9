"""What trainer.py and engine.py share: the device, the model, and the group that joins the jobs.

Rank 0 of this group is rank 0 of the trainer's job, which also holds the store at which the jobs
meet. All other ranks are engines. Weights travel between the jobs through the memory of the CPU,
because two jobs may share a GPU, which NCCL refuses by default.
"""

import argparse
import contextlib
import datetime
import hashlib
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rendezvous

BUCKET = 4 * 2**20  # bytes

parser = argparse.ArgumentParser()
parser.add_argument("--host", default="127.0.0.1", help="the machine of the trainer's rank 0")
parser.add_argument("--port", type=int, default=29600, help="of the store, free on that machine")
parser.add_argument("--limit", type=float, default=60, help="seconds to wait for the other job")
parser.add_argument("--updates", type=int, default=3)
parser.add_argument("--width", type=int, default=256, help="of the model")


def start():
    """Make the world of this job. Each rank takes a GPU; if one has none, all take the CPU."""
    store, rank, n = next(rendezvous("env://"))
    local_rank = int(os.environ["LOCAL_RANK"])
    store.set(f"GPU of {rank}", str(local_rank < torch.cuda.device_count()))
    on_gpus = all(store.get(f"GPU of {one}") == b"True" for one in range(n))
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=n)
    return device


def network(width):
    """Put your own model here. Both jobs build it."""
    return nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 10))


def as_bytes(tensor):
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def fingerprint(model):
    """The same on two ranks only if their weights are equal to the last bit."""
    weights = b"".join(as_bytes(one).numpy().tobytes() for one in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:12]


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


class Joint:
    """A group of the trainer's rank 0 and all engines, whatever world each of them has."""

    def __init__(self, options, rank, engines=None):
        """The engines say how many they are, and the trainer reads it in the store."""
        self.rank, self.engines = rank, engines
        self.name = f"engine {rank - 1}" if rank else "trainer"
        self.where = f"{options.host}:{options.port}"
        self.limit = datetime.timedelta(seconds=options.limit)
        # subtle: where a silent program has the port, TCPStore waits longer than its timeout
        timer = threading.Timer(options.limit + 5, self.stop_connecting)
        timer.start()
        try:
            # subtle: not rendezvous("tcp://..."), which opens no store under torchrun
            self.store = dist.TCPStore(
                "0.0.0.0" if rank == 0 else options.host,
                options.port,
                is_master=rank == 0,
                timeout=self.limit,
                wait_for_workers=False,
            )
        except dist.DistError:
            if rank == 0:
                sys.exit(f"trainer: port {options.port} is taken: give another --port to both jobs")
            self.stop_connecting()
        finally:
            timer.cancel()

    def stop_connecting(self):
        why = f"no trainer at {self.where} after {self.limit}: does it run?"
        print(f"{self.name}: {why}", file=sys.stderr, flush=True)
        os._exit(1)  # also the thread that waits

    def join(self, model):
        """Meet all ranks at the store, compare what is to travel, and make the group."""
        if self.rank and self.store.add(f"here/{self.rank}", 1) > 1:
            sys.exit(f"{self.name}: another job of engines has already come to {self.where}")
        if self.rank == 1:
            self.store.set("engines", str(self.engines))
        self.wait_for({"engines": "no engine"})
        self.engines = int(self.store.get("engines"))
        self.compare(model)
        # subtle: not new_group, which knows the ranks of one world only
        prefix = dist.PrefixStore("weights", self.store)
        try:
            self.group = dist.ProcessGroupGloo(prefix, self.rank, 1 + self.engines, self.limit)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            self.stop(f"no connection to all ranks: is GLOO_SOCKET_IFNAME right? ({reason})")

    def compare(self, model):
        """Before the first byte travels: names, shapes and dtypes, in their order, by a hash."""
        tensors = model.state_dict().items()
        mine = [f"buckets of {BUCKET} bytes"]
        mine += [f"{name} {tuple(one.shape)} {one.dtype}" for name, one in tensors]
        plan = "\n".join(mine)
        if self.rank == 0:
            self.store.set("plan", plan)
        self.store.set(f"plan/{self.rank}", hashlib.sha256(plan.encode()).hexdigest())
        names = ["no trainer", *(f"no engine {number}" for number in range(self.engines))]
        self.wait_for({f"plan/{rank}": name for rank, name in enumerate(names)})
        hashes = [self.store.get(f"plan/{rank}") for rank in range(1 + self.engines)]
        if hashes[self.rank] != hashes[0]:
            its = self.store.get("plan").decode().split("\n")
            pairs = zip([*mine, "no more"], [*its, "no more"], strict=False)
            here, there = next((a, b) for a, b in pairs if a != b)
            self.stop(f"it has {here}, and the trainer has {there}")
        if others := [number for number, one in enumerate(hashes[1:]) if one != hashes[0]]:
            self.stop(f"engines {others} have other tensors than the trainer")

    def wait_for(self, keys):
        """Wait for keys of the store. Each has the words for the case that it does not come."""
        try:
            self.store.wait(list(keys), self.limit)
        except dist.DistError:
            missing = ", ".join(words for key, words in keys.items() if not self.store.check([key]))
            self.stop(f"{missing} at {self.where} after {self.limit}: does it run?")

    def broadcast(self, tensor):
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, self.limit  # a rank of this group
        self.group.broadcast([tensor], options).wait()

    def send(self, model, version):
        """For the trainer. When it returns, every engine has all weights of this version."""
        try:
            for bucket in in_buckets(model.state_dict().values()):
                self.broadcast(torch.cat([as_bytes(tensor) for tensor in bucket]))
            # subtle: a broadcast that returns here is no proof that it has arrived anywhere
            came = {f"came/{version}/{rank}": rank for rank in range(1, 1 + self.engines)}
            self.store.wait(list(came), self.limit)
            self.store.set(f"commit/{version}", "")
        except RuntimeError as error:
            self.stop_update(version, error)

    def receive(self, model, version):
        """For an engine. Its model keeps the old weights until all engines have the new ones."""
        try:
            spares = []
            for bucket in in_buckets(model.state_dict().values()):
                size = sum(tensor.nbytes for tensor in bucket)
                spares.append(torch.empty(size, dtype=torch.uint8))
                self.broadcast(spares[-1])
            self.store.set(f"came/{version}/{self.rank}", "")
            self.store.wait([f"commit/{version}"], self.limit)
        except RuntimeError as error:
            self.stop_update(version, error)
        new = torch.cat(spares)
        for tensor in model.state_dict().values():
            part, new = new.tensor_split([tensor.nbytes])
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

    def stop_update(self, version, error):
        reason = str(error).splitlines()[0]
        why = "has a rank died, or has the other job fewer --updates?"
        self.stop(f"version {version} has not come to all: {why} ({reason})")

    def stop(self, why):
        print(f"{self.name}: {why}", file=sys.stderr, flush=True)
        self.leave()
        dist.destroy_process_group()  # a thread of gloo that outlives Python aborts the process
        sys.exit(1)

    def leave(self):
        """Wait for all others, but not for long: the store ends with the trainer's process, and
        torchrun ends the other ranks of a job when one of them fails.
        """
        deadline = time.monotonic() + 5
        with contextlib.suppress(dist.DistError):  # if the store has ended already
            self.store.add("left", 1)
            while self.store.add("left", 0) <= (self.engines or 0) and time.monotonic() < deadline:
                time.sleep(0.05)
