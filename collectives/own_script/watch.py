"""Note what a training script has torch do, in a rank that `collectives check-training` starts.

Imported by startup/sitecustomize.py, under the recorder's name. A note is a line of JSON: its kind,
the line of the script that it comes from, and what `RankWatch` gives it. The rank works in a copy
of the reader's folder that is its own.
"""

import atexit
import contextlib
import functools
import json
import os
import sys
import time
import zlib
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from ..recording.stack import caller, is_library
from ..semantics.on_import import OnImport

NOTES = "COLLECTIVES_CHECK_TRAINING"  # the folder of the notes
AGAIN = "again"  # the folder of the notes of the second start
HAS_GPU = "COLLECTIVES_HAS_GPU"
STEPS = 8  # of which the weights are kept, unless they are many
_LOADERS = "torch.utils.data.dataloader"
_MOST_WEIGHTS = 2_000_000
_ROWS = 64  # samples by whose content one sees whether two ranks have the same


def begin(recording) -> None:
    """Watch this process if it is the rank itself, and not a process that the rank has started."""
    notes = Path(os.environ[NOTES])
    try:
        file = open(notes / f"{os.environ['RANK']}.jsonl", "x")  # noqa: SIM115
    except (KeyError, FileExistsError):
        return
    if notes.name == AGAIN and os.environ.get(HAS_GPU):
        # As if each rank had a machine of its own, which counts its GPUs from 0.
        gpu = os.environ["LOCAL_RANK"]
        if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
            gpu = visible.split(",")[int(gpu)]
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"
    watch = RankWatch(notes, file)
    sys.addaudithook(watch.opened)
    atexit.register(watch.note, "end")
    OnImport(
        {
            "torch.random": watch.random,
            "torch.serialization": watch.serialization,
            "torch.autograd": watch.autograd,
            "torch.cuda": watch.cuda,
            "torch.nn.modules.module": watch.module,
            "torch.optim.optimizer": watch.optimizer,
            _LOADERS: watch.dataloader,
            "torch.nn.parallel.data_parallel": watch.data_parallel,
            "torch.nn.parallel.distributed": watch.ddp,
            "torch.multiprocessing.spawn": watch.spawn,
            "torch.distributed.distributed_c10d": lambda _: watch.attach(recording.recorder),
            "torch.distributed.fsdp": watch.fsdp,
            "torch.distributed.tensor.parallel": watch.tensor_parallel,
            "accelerate": lambda _: watch.note("library", name="Accelerate"),
            "transformers.trainer": lambda _: watch.note("library", name="HF Trainer"),
            "lightning.pytorch": lambda _: watch.note("library", name="Lightning"),
        }
    )


def _wrap(place, name: str, around) -> None:
    """Call `around(real, *args)` in place of the function."""
    real = getattr(place, name)

    @functools.wraps(real)
    def wrapped(*args, **kwargs):
        return around(real, *args, **kwargs)

    setattr(place, name, wrapped)


def _quietly(function):
    """What cannot be noted must not end the script."""

    @functools.wraps(function)
    def quiet(*args):
        with contextlib.suppress(Exception):
            return function(*args)
        return None

    return quiet


class RankWatch:
    """`trained`: by the passes that had a backward, their data. `is_fresh`: the next module that is
    called is the model."""

    tensors, spans, functional = True, False, True  # it is a Sink of the recorder

    def __init__(self, notes: Path, file):
        self.notes, self.file, self.pid, self.root = notes, file, os.getpid(), os.getcwd()
        self.is_again, self.saved, self.is_fresh = notes.name == AGAIN, False, True
        self.steps = self.passes = 0
        self.latest: Any = None  # the iterator that gave the latest batch
        self.trained: dict[int, int] = {}
        self.optimizers: list = []
        self.names_in_ddp: list[set[str]] = []

    def note(self, kind: str, **fields) -> None:
        if os.getpid() == self.pid:  # and not a worker of a DataLoader
            self.file.write(json.dumps({"kind": kind, "at": self.place(), **fields}) + "\n")
            self.file.flush()

    def place(self) -> str:
        file, line, _ = caller() if "torch" in sys.modules else ("", 0, "")
        return f"{file.removeprefix(self.root + os.sep)}:{line}" if line else ""

    def noting(self, kind: str, real, *args, **kwargs):
        self.note(kind)
        return real(*args, **kwargs)

    def stop(self) -> None:
        """What is to be seen has been seen: wait until the parent ends all ranks."""
        (self.notes / "stop").touch()
        while True:
            time.sleep(1)

    # Files.

    def opened(self, event: str, args: tuple) -> None:
        """Before a file is opened to be written: a link to one of the reader's becomes a copy."""
        if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR):
            self.own(args[0])

    def own(self, path: str) -> None:
        if os.path.islink(path):
            data = Path(path).read_bytes()
            os.unlink(path)
            Path(path).write_bytes(data)

    def serialization(self, module) -> None:
        def save(real, obj, f, *args, **kwargs):
            if (file := self.file_of(f)) is not None:
                folder = os.path.realpath(os.path.dirname(file)) + os.sep
                outside = not folder.startswith(str(self.notes.parent) + os.sep)
                wrapped = self.has_names_in_ddp(obj)
                self.note("save", file=file, outside=outside, wrapped=wrapped)
                if outside:
                    self.stop()  # rather than write over a file of the reader's
                self.own(file)
                self.saved = True
            return real(obj, f, *args, **kwargs)

        def load(real, f, *args, **kwargs):
            if (file := self.file_of(f)) is not None:
                is_readers = os.path.isabs(file) or os.path.islink(file)
                self.note("load", file=file, is_readers=is_readers)
            return real(f, *args, **kwargs)

        _wrap(module, "save", save)
        _wrap(module, "load", load)

    def file_of(self, f) -> str | None:
        """Its path below the rank's folder; None of what is in memory."""
        name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
        if not isinstance(name, str | os.PathLike):
            return None
        return str(os.fspath(name)).removeprefix(self.root + os.sep)

    def has_names_in_ddp(self, obj) -> bool:
        """Whether the parameters in it have the names that DDP gives them, `module.` and theirs."""
        if not isinstance(obj, dict):
            return False
        if all(isinstance(key, str) and key.startswith("module.") for key in obj):
            return any(names <= obj.keys() for names in self.names_in_ddp)
        return any(map(self.has_names_in_ddp, obj.values()))

    # Random numbers.

    def random(self, module) -> None:
        _wrap(module, "manual_seed", partial(self.noting, "seed"))

    def state(self) -> int:
        """Two ranks with one state draw the same random numbers."""
        import torch

        generators = [torch.default_generator]
        if torch.cuda.is_initialized():
            generators += torch.cuda.default_generators
        # In order, because each rank draws from that of a GPU of its own.
        return hash(tuple(sorted(_content(one.get_state()) for one in generators)))

    # Data.

    def dataloader(self, module) -> None:
        def __init__(real, loader, *args, **kwargs):
            names = "dataset", "batch_size", "shuffle", "sampler"
            given = dict(zip(names, args, strict=False)) | kwargs
            self.note("loader", both=bool(given.get("shuffle") and given.get("sampler")))
            loader.watched_at = self.place()
            real(loader, *args, **kwargs)

        def __iter__(real, loader):
            data = id(_base(loader.dataset))
            if self.saved and list(self.trained.values()).count(data) >= 2 and not self.is_again:
                self.stop()
            if kept := getattr(loader, "_iterator", None):
                vars(kept).pop("watched_asked", None)
            iterator = real(loader)
            self.passes += 1
            iterator.watched, iterator.watched_data = self.passes, data
            pending = [optimizer.watched_pending for optimizer in self.optimizers]
            facts = {"number": self.passes, "pending": pending, "weights": self.sums()}
            self.note("pass", made=loader.watched_at, **facts, **_sampling(loader))
            return iterator

        def _next_index(real, iterator):
            asked = real(iterator)
            vars(iterator).setdefault("watched_asked", deque()).append(asked)
            return asked

        def __next__(real, iterator):
            data = real(iterator)
            if hasattr(iterator, "watched") and os.getpid() == self.pid:
                self.latest, self.is_fresh = iterator, True
                self.batch(iterator, data)
            return data

        for name, around in (("__init__", __init__), ("__iter__", __iter__)):
            _wrap(module.DataLoader, name, around)
        for name, around in (("_next_index", _next_index), ("__next__", __next__)):
            _wrap(module._BaseDataLoaderIter, name, around)

    @_quietly
    def batch(self, iterator, data) -> None:
        asked = iterator.watched_asked.popleft()
        asked = [one for one in asked if isinstance(one, int)] if isinstance(asked, list) else []
        own, dataset = asked, iterator._dataset
        while asked and _is_subset(dataset):
            own, dataset = [int(dataset.indices[one]) for one in own], dataset.dataset
        every = max(1, len(dataset) // _ROWS) if own else 1
        rows = _rows(data, own, every)
        number, state = iterator.watched, self.state()
        self.note("batch", number=number, asked=asked, own=own, rows=rows, state=state)

    def module(self, module) -> None:
        @_quietly
        def called(model, args) -> None:
            if self.is_fresh:
                self.is_fresh = False
                given = next((one for one in args if getattr(one, "ndim", 0)), None)
                size = None if given is None else len(given)
                is_first = size and self.steps < STEPS
                content = _content(given) if is_first else None
                self.note("forward", size=size, content=content, state=self.state())

        module.register_module_forward_pre_hook(called)
        _wrap(module.Module, "zero_grad", self.zero_grad)

    # Steps.

    def autograd(self, module) -> None:
        def backward(real, *args, **kwargs):
            if self.latest is not None:
                self.trained[self.latest.watched] = self.latest.watched_data
            for one in self.optimizers:
                one.watched = one.watched * _has_gradient(one) + 1
                one.watched_pending += 1
            self.note("backward", state=self.state())
            self.is_fresh = True
            return real(*args, **kwargs)

        _wrap(module, "backward", backward)

    def zero_grad(self, real, owner, *args, **kwargs):
        real(owner, *args, **kwargs)
        for one in self.optimizers:
            one.watched *= _has_gradient(one)

    def optimizer(self, module) -> None:
        def __init__(real, optimizer, *args, **kwargs):
            real(optimizer, *args, **kwargs)
            # How many backward passes its gradients add up, and how many since its latest step.
            optimizer.watched = optimizer.watched_pending = 0
            self.optimizers.append(optimizer)

        @_quietly
        def before(optimizer, *_) -> None:
            self.keep_weights()
            self.note("step", held=optimizer.watched, of=self.optimizers.index(optimizer))
            optimizer.watched_pending = 0

        def after(*_) -> None:
            self.steps += 1
            self.keep_weights()
            if self.is_again and self.steps == 2:
                self.stop()

        _wrap(module.Optimizer, "__init__", __init__)
        _wrap(module.Optimizer, "zero_grad", self.zero_grad)
        module.register_optimizer_step_pre_hook(before)
        module.register_optimizer_step_post_hook(after)

    @_quietly
    def sums(self) -> list[float]:
        return [float(one.double().sum()) for one in self.weights()]

    @_quietly
    def keep_weights(self) -> None:
        """In a file, for the comparison with one rank."""
        import torch

        weights = self.weights()
        if weights and self.steps <= STEPS and sum(one.numel() for one in weights) <= _MOST_WEIGHTS:
            flat = torch.cat([one.double().cpu().flatten() for one in weights])
            flat.numpy().tofile(self.notes / f"{os.environ['RANK']}.{self.steps}.weights")

    def weights(self) -> list:
        """Nothing if a rank has only parts of them, as with FSDP."""
        weights = [one.detach() for optimizer in self.optimizers for one in _weights(optimizer)]
        return [] if any(hasattr(one, "to_local") for one in weights) else weights

    # What joins the ranks, and libraries that do so.

    def data_parallel(self, module) -> None:
        _wrap(module.DataParallel, "__init__", partial(self.noting, "data_parallel"))

    def ddp(self, module) -> None:
        def __init__(real, ddp, *args, **kwargs):
            real(ddp, *args, **kwargs)
            self.note("ddp", device=str(ddp.device))
            self.names_in_ddp.append({name for name, _ in ddp.named_parameters()})

        def forward(real, ddp, *args, **kwargs):
            import torch

            if not (ddp.training and torch.is_grad_enabled()):
                self.note("validates", buffers=bool(ddp.broadcast_buffers and ddp.modules_buffers))
            return real(ddp, *args, **kwargs)

        _wrap(module.DistributedDataParallel, "__init__", __init__)
        _wrap(module.DistributedDataParallel, "forward", forward)

    def cuda(self, module) -> None:
        def set_device(real, device):
            self.note("device", index=module._utils._get_device_index(device))
            return real(device)

        _wrap(module, "set_device", set_device)

    def spawn(self, module) -> None:
        _wrap(module, "start_processes", partial(self.noting, "spawn"))

    def fsdp(self, module) -> None:
        _wrap(module, "fully_shard", partial(self.noting, "sharded"))
        _wrap(module.FullyShardedDataParallel, "__init__", partial(self.noting, "sharded"))

    def tensor_parallel(self, module) -> None:
        _wrap(module, "parallelize_module", partial(self.noting, "sharded"))

    # What the recorder says of collectives.

    def attach(self, recorder) -> None:
        recorder.set_sinks(*recorder.sinks, self)

    def enter(self, seq, torch_seq, of, call_args, given):
        return call_args.name

    def leave(self, name, error, source) -> None: ...

    def done(self, name, given) -> None:
        from torch.utils._pytree import tree_leaves

        sizes = [one.numel() for one in tree_leaves(given) if hasattr(one, "numel")]
        self.note("result", name=name, size=sum(sizes))

    def notice(self, kind, call_args, at) -> None: ...


def _is_subset(dataset) -> bool:
    return hasattr(dataset, "indices") and hasattr(dataset, "dataset")


def _base(dataset):
    while _is_subset(dataset):
        dataset = dataset.dataset
    return dataset


def _sampling(loader) -> dict:
    """Of how many samples the loader chooses, and how."""
    sampler = getattr(loader, "sampler", None)
    if not hasattr(sampler, "num_replicas"):
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    data, is_split = _base(loader.dataset), hasattr(sampler, "num_replicas")
    length = len(loader.dataset if is_split else data) if hasattr(data, "__len__") else None
    file = getattr(sys.modules.get(type(loader).__module__), "__file__", None)
    return {
        "length": length,
        "is_split": is_split,
        "shuffle": getattr(sampler, "shuffle", None),
        "is_library": is_library(file or "") and type(loader).__module__ != _LOADERS,
    }


def _rows(data, samples: list[int], every: int) -> list[tuple[int, list[int]]]:
    """Of some samples, a number for each part: two ranks see whether theirs is the same."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = [one for one in tree_leaves(data) if isinstance(one, torch.Tensor) and one.ndim]
    parts = [one for one in leaves if len(one) == len(samples)]
    chosen = ((place, sample) for place, sample in enumerate(samples) if sample % every == 0)
    return [(sample, [_content(part[place]) for part in parts]) for place, sample in chosen]


def _content(tensor) -> int:
    import torch

    flat = tensor.detach().cpu().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def _weights(optimizer) -> list:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _has_gradient(optimizer) -> bool:
    gradients = [one.grad for one in _weights(optimizer) if one.grad is not None]
    # subtle: of a distributed tensor the own part, because any() would be a collective.
    return any(bool(getattr(one, "to_local", lambda one=one: one)().any()) for one in gradients)
