"""Note what a training script has torch do, in a rank that `collectives check-training` starts.

Imported by startup/sitecustomize.py, under the recorder's name. A note is a line of JSON: its kind,
the line of the script that it comes from, and what `RankWatch` gives it. The rank works in a copy
of the reader's folder that is its own.
"""

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

from ..recording.stack import caller
from ..semantics.on_import import OnImport

NOTES = "COLLECTIVES_CHECK_TRAINING"  # the folder of the notes
GPUS = "COLLECTIVES_GPUS"  # of which each rank sees its own alone
AGAIN = "again"  # the folder of the notes of the second start
_STEPS = 8  # the first ones, of which the weights are noted
_SOME = 16  # weights of each parameter
_ROWS = 64  # samples by whose content one sees whether two ranks have the same
_LIBRARIES = "accelerate", "transformers.trainer", "lightning.pytorch"


def begin(recording) -> None:
    """Watch this process if it is the rank itself, and not a process that the rank has started."""
    notes = Path(os.environ[NOTES])
    try:
        file = open(notes / f"{os.environ['RANK']}.jsonl", "x")  # noqa: SIM115
    except (KeyError, FileExistsError):
        return
    if gpus := os.environ.get(GPUS):
        # As if each rank had a machine of its own, which counts its GPUs from 0.
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus.split(",")[int(os.environ["LOCAL_RANK"])]
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"
    watch = RankWatch(notes, file)
    sys.addaudithook(watch.opened)
    OnImport({"torch": partial(watch.begin, recording)} | dict.fromkeys(_LIBRARIES, watch.library))


def _wrapped(real, watching):
    """Calls `watching(real, *args)` in place of the function."""

    @functools.wraps(real)
    def wrapped(*args, **kwargs):
        return watching(real, *args, **kwargs)

    return wrapped


class RankWatch:
    """`trained`: the passes that had a backward, by number. `latest`: that of the latest batch.
    `is_fresh`: the next module that is called is the model."""

    tensors, spans, functional = True, False, True  # it is a Sink of the recorder

    def __init__(self, notes: Path, file):
        self.notes, self.file, self.pid, self.root = notes, file, os.getpid(), os.getcwd()
        self.steps = self.passes = self.latest = 0
        self.saved, self.is_fresh = False, True
        self.trained: set[int] = set()
        self.optimizers: list = []
        self.names_in_ddp: list[set[str]] = []
        self.models: list = []  # that DDP wraps

    def begin(self, recording, _) -> None:
        import torch.utils.data

        recording.recorder.set_sinks(*recording.recorder.sinks, self)
        torch.nn.modules.module.register_module_forward_pre_hook(self.called)
        watched = {
            "manual_seed": partial(self.noting, "seed"),
            "save": self.save,
            "load": self.load,
            "multiprocessing.spawn": self.spawn,
            "utils.data.DataLoader.__init__": self.loader_made,
            "utils.data.DataLoader.__iter__": self.passing,
            "utils.data.dataloader._BaseDataLoaderIter._next_index": self.asked,
            "utils.data.dataloader._BaseDataLoaderIter.__next__": self.loaded,
            "autograd.backward": self.backward,
            "optim.Optimizer.__init__": self.optimizer_made,
            "nn.parallel.DistributedDataParallel.__init__": self.ddp_made,
            "nn.parallel.DistributedDataParallel.forward": self.ddp_called,
            "nn.DataParallel.__init__": partial(self.noting, "data_parallel"),
        }
        for path, watching in watched.items():
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, torch)
            setattr(owner, name, _wrapped(getattr(owner, name), watching))

    def note(self, kind: str, **fields) -> None:
        if os.getpid() == self.pid:  # and not a worker of a DataLoader
            self.file.write(json.dumps({"kind": kind, "at": self.place(), **fields}) + "\n")
            self.file.flush()

    def noting(self, kind: str, real, *args, **kwargs):
        self.note(kind)
        return real(*args, **kwargs)

    def place(self) -> str:
        file, line, _ = caller()
        return f"{file.removeprefix(self.root + os.sep)}:{line}" if line else ""

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

    def save(self, real, obj, f, *args, **kwargs):
        if (file := self.file_of(f)) is not None:
            folder = os.path.realpath(os.path.dirname(file)) + os.sep
            outside = not folder.startswith(str(self.notes.parent) + os.sep)
            self.note("save", file=file, outside=outside, wrapped=self.has_names_in_ddp(obj))
            if outside:
                self.stop()  # rather than write over a file of the reader's
            self.own(file)
            self.saved = True
        return real(obj, f, *args, **kwargs)

    def load(self, real, f, *args, **kwargs):
        if (file := self.file_of(f)) is not None:
            self.note("load", file=file, is_readers=os.path.isabs(file) or os.path.islink(file))
        return real(f, *args, **kwargs)

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

    # Data.

    def loader_made(self, real, loader, *args, **kwargs):
        loader.watched_at = self.place()
        real(loader, *args, **kwargs)

    def passing(self, real, loader):
        if self.saved and len(self.trained) > 1:
            self.stop()
        if kept := getattr(loader, "_iterator", None):  # of persistent workers
            vars(kept).pop("watched_asked", None)
        iterator = real(loader)
        self.passes += 1
        iterator.watched = self.passes
        # The sampler itself, or that of a sampler of batches.
        samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
        distributed = [one for one in samplers if hasattr(one, "num_replicas")]
        self.note(
            "pass",
            number=self.passes,
            made=loader.watched_at,
            loads_ahead=type(loader).__module__ == "accelerate.data_loader",
            sampler_shuffles=any(getattr(one, "shuffle", False) for one in distributed),
            weights=self.weights(),
        )
        return iterator

    def asked(self, real, iterator):
        asked = real(iterator)
        # Workers of a DataLoader load ahead of the batch that it gives.
        vars(iterator).setdefault("watched_asked", deque()).append(asked)
        return asked

    def loaded(self, real, iterator):
        try:
            batch = real(iterator)
        except StopIteration:
            self.note("end", number=iterator.watched, buffers=self.buffers())
            raise
        with contextlib.suppress(Exception):  # what cannot be noted must not end the script
            self.latest, self.is_fresh = iterator.watched, True
            given, data = iterator.watched_asked.popleft(), iterator._dataset
            numbers = given if isinstance(given, list) else []
            asked = own = [int(one) for one in numbers if hasattr(one, "__index__")]
            while own and hasattr(data, "indices") and hasattr(data, "dataset"):  # a Subset
                data, own = data.dataset, [int(data.indices[one]) for one in own]
            rows = _rows(batch, own, max(1, len(data) // _ROWS)) if own else []
            self.note("batch", number=self.latest, asked=asked, own=own, rows=rows)
        return batch

    # Steps.

    def called(self, model, args) -> None:
        if self.is_fresh:
            self.is_fresh = False
            with contextlib.suppress(Exception):
                given = [one for one in args if getattr(one, "ndim", 0)]
                size = len(given[0]) if given else 0
                content = _content(given[0]) if given and self.steps < _STEPS else None
                self.note("forward", size=size, content=content, state=_random_state())

    def backward(self, real, *args, **kwargs):
        self.note("backward", state=_random_state())
        self.is_fresh = True
        self.trained.add(self.latest)
        for one in self.optimizers:
            one.watched = one.watched * _has_gradient(one) + 1
        return real(*args, **kwargs)

    def optimizer_made(self, real, optimizer, *args, **kwargs):
        real(optimizer, *args, **kwargs)
        if any(map(_is_part, _weights(optimizer))):
            self.note("sharded")
        optimizer.watched = 0  # how many backward passes its gradients add up
        optimizer.register_step_post_hook(self.stepped)
        self.optimizers.append(optimizer)

    def stepped(self, optimizer, *_) -> None:
        self.steps += 1
        weights = self.weights() if self.steps <= _STEPS else []
        of = self.optimizers.index(optimizer)
        self.note("step", of=of, held=optimizer.watched, weights=weights)
        if self.notes.name == AGAIN and self.steps == 2:
            self.stop()

    def weights(self) -> list[float]:
        """Some of each parameter; nothing if a rank has only parts of them."""
        weights = [one for optimizer in self.optimizers for one in _weights(optimizer)]
        if any(map(_is_part, weights)):
            return []
        return [value for one in weights for value in one.detach().flatten()[:_SOME].tolist()]

    def buffers(self) -> list[float]:
        """Some of each buffer, as the statistics of a batch norm."""
        buffers = [one for model in self.models for one in model.buffers()]
        return [float(value) for one in buffers for value in one.flatten()[:_SOME].tolist()]

    # What joins the ranks, and libraries that do so.

    def spawn(self, real, fn, args=(), nprocs=1, *_, **__):
        """torchrun has started this rank already, so that it does what the spawned one would do."""
        self.note("spawn", ranks=nprocs)
        if nprocs == int(os.environ["WORLD_SIZE"]):
            # Else the script's own MASTER_PORT would be taken for that of torchrun's store.
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            fn(int(os.environ["RANK"]), *args)

    def library(self, module) -> None:
        self.note("library", name=module.__name__)

    def ddp_made(self, real, ddp, *args, **kwargs):
        real(ddp, *args, **kwargs)
        self.note("ddp", device=str(ddp.device))
        self.names_in_ddp.append({name for name, _ in ddp.named_parameters()})
        self.models.append(ddp)

    def ddp_called(self, real, ddp, *args, **kwargs):
        import torch

        if not (ddp.training and torch.is_grad_enabled()):
            self.note("validates", buffers=bool(ddp.broadcast_buffers and ddp.modules_buffers))
        return real(ddp, *args, **kwargs)

    def enter(self, seq, torch_seq, of, call_args, given):
        return call_args.name

    def leave(self, name, error, source): ...

    def done(self, name, given):
        from torch.utils._pytree import tree_leaves

        sizes = [one.numel() for one in tree_leaves(given) if hasattr(one, "numel")]
        self.note("result", name=name, size=sum(sizes))

    def notice(self, kind, call_args, at): ...


def _random_state() -> int:
    """Two ranks with one state draw the same random numbers."""
    import torch

    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    # In order, because each rank draws from that of a GPU of its own.
    return hash(tuple(sorted(_content(one.get_state()) for one in generators)))


def _rows(batch, samples: list[int], every: int) -> list[tuple[int, list[int]]]:
    """Of some samples, a number for each part: two ranks see whether theirs is the same."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = [one for one in tree_leaves(batch) if isinstance(one, torch.Tensor)]
    parts = [one for one in leaves if one.shape[:1] == (len(samples),)]
    chosen = [(place, sample) for place, sample in enumerate(samples) if sample % every == 0]
    return [(sample, [_content(part[place]) for part in parts]) for place, sample in chosen]


def _content(tensor) -> int:
    import torch

    flat = tensor.detach().cpu().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def _weights(optimizer) -> list:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_part(weight) -> bool:
    """Whether a rank has only its part: a DTensor, or what the older FSDP has flattened."""
    return hasattr(weight, "to_local") or hasattr(weight, "_fsdp_flattened")


def _has_gradient(optimizer) -> bool:
    gradients = [one.grad for one in _weights(optimizer) if one.grad is not None]
    # subtle: of a distributed tensor the own part, because any() would be a collective.
    return any(bool(getattr(one, "to_local", lambda one=one: one)().any()) for one in gradients)
