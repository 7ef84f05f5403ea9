"""The processes of the engine that stub_engine.py plays, and what its server asks them."""

import base64
import datetime
import io
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
from model import HEADS, Network, cut, held_dtype, log_probs, sha256
from torch.distributed import rendezvous
from wire import join_group, size_of, unpack


class Rank:
    """One process: a slice of every tensor, and a cache. The server calls its methods."""

    def __init__(self, number, options, store):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed)
        dist.init_process_group(backend="gloo", store=store, rank=number, world_size=options.tp)
        self.number, self.tp, self.groups = number, options.tp, {}
        weights = dict(Network(options.width).named_parameters())
        self.weights, self.cache = dict.fromkeys(weights), {}
        self.load(weights.items())

    def join(self, address, port, rank_offset, world_size, name, backend):
        rank, wait = rank_offset + self.number, datetime.timedelta(minutes=30)
        store, *_ = next(rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=wait))
        self.groups[name] = join_group(store, rank, world_size, name, backend, wait)

    def leave(self, name):
        dist.destroy_process_group(self.groups.pop(name))

    def receive(self, names, dtypes, shapes, counts, name):
        """Broadcasts, each with the bytes of so many tensors, and then all of these tensors."""
        tensors, plan = [], iter(list(zip(names, dtypes, shapes, strict=True)))
        for count in counts:
            part = list(itertools.islice(plan, count))
            size = sum(size_of(dtype, shape) for _, dtype, shape in part)
            packed = torch.empty(size, dtype=torch.uint8)
            dist.broadcast(packed, group_src=0, group=self.groups[name])
            tensors += unpack(packed, part)
        return tensors

    def update(self, *call):
        self.load(self.receive(*call))

    def update_by_handle(self, handles):
        """For an engine beside the trainer. It copies its slices out of the trainer's memory."""
        text = io.BytesIO(base64.b64decode(handles[self.number]))
        file, size, plan = torch.load(text, weights_only=True)  # HTTP could bring any code
        if not os.path.exists(file):  # subtle: from_file would make it anew, full of zeros
            raise ValueError("the memory that the handle names is gone")
        self.load(unpack(torch.from_file(file, shared=True, size=size, dtype=torch.uint8), plan))

    def load(self, tensors):
        for name, tensor in tensors:
            if name not in self.weights:
                raise ValueError(f"There is no module or parameter named {name}")
            mine = cut(name, tensor.detach(), self.number, self.tp)
            self.weights[name] = mine.to(held_dtype(name), copy=True)
            if name == "embed.weight":
                self.weights["head.weight"] = self.weights[name]  # tied

    def flush(self):
        self.cache.clear()

    def checksums(self):
        return {name: sha256(tensor) for name, tensor in sorted(self.weights.items())}

    def answer(self, tokens, count, top):
        """The `top` best log-probabilities of each of `count` tokens. What is cached stays."""
        weights = {name: tensor.float() for name, tensor in self.weights.items()}
        found = []
        for _ in range(count):
            best = log_probs(weights, tokens, HEADS // self.tp, self.cache, self.add_up).topk(top)
            found.append(list(zip(best.values.tolist(), best.indices.tolist(), strict=True)))
            tokens = [*tokens, found[-1][0][1]]
        return found

    def add_up(self, x):
        dist.all_reduce(x)
        return x


def serve(pipe, number, options, file, plant):
    os.dup2(2, 1)  # an older gloo prints to stdout, whose first line is the server's
    parent = os.getppid()

    def end_with_the_server():
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=end_with_the_server, daemon=True).start()
    rank = Rank(number, options, dist.FileStore(file, options.tp))
    plant(rank)
    while True:
        name, args = pipe.recv()
        try:
            pipe.send((None, getattr(rank, name)(*args)))
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))


class Engine:
    """The server's half. It asks all ranks, and the first one speaks for them."""

    def __init__(self, options, plant):
        fork = multiprocessing.get_context("fork")  # one import of torch for all ranks
        self.tp, self.old = options.tp, options.protocol == "sglang-0.5.20"
        self.tp_told, self.session, self.version = self.tp, False, "default"
        self.running, self.lock, self.ranks = threading.Event(), threading.Lock(), {}
        self.running.set()
        self.folder = tempfile.TemporaryDirectory()
        for number in range(self.tp):
            here, there = fork.Pipe()
            args = there, number, options, f"{self.folder.name}/store", plant
            self.ranks[here] = fork.Process(target=serve, args=args, daemon=True)
            self.ranks[here].start()
            there.close()
        plant(self)

    def ask(self, name, *args):
        with self.lock:
            answers = {}
            try:
                for pipe in self.ranks:
                    pipe.send((name, args))
                while len(answers) < self.tp:
                    for pipe in wait(set(self.ranks) - set(answers)):
                        answers[pipe] = pipe.recv()
            except (EOFError, OSError):
                self.end("a rank has died")
        errors, found = zip(*(answers[pipe] for pipe in self.ranks), strict=True)
        if errors[0]:
            raise RuntimeError(errors[0])
        return found

    def pause(self):
        self.running.clear()

    def begin(self):
        if self.session:
            raise RuntimeError("a weight update is open already")
        self.session = True

    def finish(self):
        if not self.session:
            raise RuntimeError("no weight update is open")
        self.session = False

    def end(self, why):
        print(f"the engine ends: {why}", file=sys.stderr, flush=True)
        for rank in self.ranks.values():
            rank.kill()
        self.folder.cleanup()
        os._exit(1)
