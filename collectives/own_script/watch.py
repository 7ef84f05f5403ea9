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

from ..recording.stack import caller, way_here
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
    """The function, and what `watching` does before and, behind its `yield`, after it.

    What cannot be noted must not end the script.
    """

    @functools.wraps(real)
    def wrapped(*args, **kwargs):
        if not _can_note():
            return real(*args, **kwargs)
        watcher = None
        with contextlib.suppress(Exception):
            watcher = watching(*args, **kwargs)
            next(watcher)
        try:
            result = real(*args, **kwargs)
        except StopIteration as end:
            with contextlib.suppress(Exception):
                watcher.throw(end)
            raise
        with contextlib.suppress(Exception):
            watcher.send(result)
        return result

    return wrapped


def _quietly(watching):
    """A hook of torch that does so."""

    def hook(*args):
        if _can_note():
            with contextlib.suppress(Exception):
                watching(*args)

    return hook


def _can_note() -> bool:
    """Not while torch.compile reads the script, nor while a graph of a GPU records what it does."""
    import torch

    if torch.compiler.is_compiling():
        return False
    # subtle: where there is no driver, the second question would be an error.
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class RankWatch:
    """`loaders`: by pass, from 1, which DataLoader it is of. `trained`: the passes that had a
    backward. `latest`: that of the latest batch. `is_fresh`: the next module that is called is the
    model. `has_graph`: one was called in this pass with gradients. `stepping`: the optimizers that
    are taking a step, as one may do inside another.
    """

    tensors, spans, functional = True, False, True  # it is a Sink of the recorder

    def __init__(self, notes: Path, file):
        self.notes, self.file, self.pid, self.root = notes, file, os.getpid(), os.getcwd()
        self.steps = self.latest = 0
        self.saved, self.is_fresh, self.has_graph = False, True, False
        self.loaders = [""]
        self.trained: set[int] = set()
        self.optimizers: list = []
        self.stepping: list = []
        self.models: list = []  # that DDP wraps

    def begin(self, recording, _) -> None:
        import torch.utils.data

        recording.recorder.set_sinks(*recording.recorder.sinks, self)
        torch.nn.modules.module.register_module_forward_pre_hook(_quietly(self.called))
        torch.multiprocessing.spawn = torch.multiprocessing.start_processes = self.spawn
        watched = {
            "manual_seed": partial(self.noting, "seed"),
            "save": self.save,
            "load": self.load,
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

    def noting(self, kind: str, *_, **__):
        self.note(kind)
        yield

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
        """Before a file is opened to be written."""
        if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR):
            self.own(args[0])

    def own(self, path: str) -> None:
        """A link in the rank's folder to a file of the reader's becomes a copy."""
        if os.path.islink(path) and self.is_own(os.path.dirname(path)) and not self.is_own(path):
            with contextlib.suppress(OSError):
                data = Path(path).read_bytes()
                os.unlink(path)
                Path(path).write_bytes(data)

    def is_own(self, path: str) -> bool:
        return f"{os.path.realpath(path)}{os.sep}".startswith(self.root + os.sep)

    def save(self, obj, f, *_, **__):
        if (file := self.file_of(f)) is not None:
            folder = os.path.realpath(os.path.dirname(file)) + os.sep
            if outside := not folder.startswith(str(self.notes.parent) + os.sep):
                self.note("save", file=file, outside=outside, wrapped=False)
                self.stop()  # rather than write over a file of the reader's
            self.own(file)
            self.saved = True
            self.note("save", file=file, outside=outside, wrapped=self.has_names_in_ddp(obj))
        yield

    def load(self, f, *_, **__):
        if (file := self.file_of(f)) is not None:
            self.note("load", file=file, is_readers=not self.is_own(file))
        yield

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
            names = ({name for name, _ in one.named_parameters()} for one in self.models)
            return any(one <= obj.keys() for one in names)
        return any(map(self.has_names_in_ddp, obj.values()))

    # Data.

    def loader_made(self, loader, *_, **__):
        # A function of the script may make several.
        loader.watched_at, loader.watched_as = self.place(), f"{self.place()} {way_here()}"
        yield

    def passing(self, loader):
        if self.saved and len(self.trained) > len({self.loaders[nth] for nth in self.trained}):
            self.stop()  # it has trained with one of them twice
        if (kept := getattr(loader, "_iterator", None)) is not None:  # of persistent workers
            vars(kept).pop("watched_asked", None)
        iterator = yield
        # The sampler itself, or that of a sampler of batches.
        samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
        distributed = [sampler for sampler in samplers if hasattr(sampler, "num_replicas")]
        self.note(
            "pass",
            number=len(self.loaders),
            made=loader.watched_at,
            loader=loader.watched_as,
            loads_ahead=type(loader).__module__ == "accelerate.data_loader",
            sampler_shuffles=any(getattr(sampler, "shuffle", False) for sampler in distributed),
            weights=self.weights(),
        )
        iterator.watched, self.has_graph = len(self.loaders), False
        self.loaders.append(loader.watched_as)

    def asked(self, iterator):
        asked = yield
        # Workers of a DataLoader load ahead of the batch that it gives.
        vars(iterator).setdefault("watched_asked", deque()).append(asked)

    def loaded(self, iterator):
        number = getattr(iterator, "watched", 0)  # 0: of another class, which begins by itself
        try:
            batch = yield
        except StopIteration:
            self.note("end", number=number, buffers=self.buffers(), trains=self.has_graph)
            self.latest = number if self.has_graph else 0
            return
        self.latest, self.is_fresh = number, True
        asked = vars(iterator).get("watched_asked")
        given, data = asked.popleft() if asked else None, iterator._dataset
        numbers = given if number and isinstance(given, list) else []
        asked = own = [int(index) for index in numbers if hasattr(index, "__index__")]
        while own and hasattr(data, "indices") and hasattr(data, "dataset"):  # a Subset
            data, own = data.dataset, [int(data.indices[index]) for index in own]
        rows = _rows(batch, own, max(1, len(data) // _ROWS)) if own else []
        self.note("batch", number=number, asked=asked, own=own, rows=rows)

    # Steps.

    def called(self, model, args) -> None:
        import torch

        self.has_graph |= torch.is_grad_enabled()
        if self.is_fresh:
            self.is_fresh = False
            given = [one for one in args if getattr(one, "ndim", 0)]
            size = len(given[0]) if given else 0
            content = _content(given[0]) if given and self.steps < _STEPS else None
            self.note("forward", size=size, content=content, state=_random_state())

    def backward(self, *_, **__):
        self.note("backward", state=_random_state())
        self.is_fresh = True
        self.trained.add(self.latest)
        for one in self.optimizers:
            one.watched = one.watched * _has_gradient(one) + 1
        yield

    def optimizer_made(self, optimizer, *_, **__):
        yield
        optimizer.watched = 0  # how many backward passes its gradients add up
        optimizer.register_step_pre_hook(_quietly(lambda one, *_: self.stepping.append(one)))
        optimizer.register_step_post_hook(_quietly(self.stepped))
        self.optimizers.append(optimizer)

    def stepped(self, optimizer, *_) -> None:
        del self.stepping[self.stepping.index(optimizer) :]
        if self.stepping:  # it is a part of another, as in ZeroRedundancyOptimizer
            return
        self.steps += 1
        weights = self.weights() if self.steps <= _STEPS else []
        of = self.optimizers.index(optimizer)
        self.note("step", of=of, held=optimizer.watched, weights=weights)
        if self.notes.name == AGAIN and self.steps == 2:
            self.stop()

    def weights(self) -> list[float]:
        """Some of each parameter; nothing if a rank has only parts of them."""
        every = [one for optimizer in self.optimizers for one in _weights(optimizer)]
        if any(map(_is_part, every)):
            self.note("sharded")
            return []
        return _some({id(one): one for one in every}.values())

    def buffers(self) -> list[float]:
        """Some of each buffer, as the statistics of a batch norm."""
        return _some(one for model in self.models for one in model.buffers())

    # What joins the ranks, and libraries that do so.

    def spawn(self, fn, args=(), nprocs=1, join=True, *_, **__):
        """torchrun has started this rank already, so that it does what the spawned one would do."""
        import torch

        self.note("spawn", ranks=nprocs)
        if nprocs == int(os.environ["WORLD_SIZE"]):
            # Else the script's own MASTER_PORT would be taken for that of torchrun's store.
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            fn(int(os.environ["RANK"]), *args)
        return None if join else torch.multiprocessing.ProcessContext([], [])

    def library(self, module) -> None:
        self.note("library", name=module.__name__)

    def ddp_made(self, ddp, *_, **__):
        yield
        self.note("ddp", device=str(ddp.device))
        self.models.append(ddp)

    def ddp_called(self, ddp, *_, **__):
        import torch

        if not (ddp.training and torch.is_grad_enabled()):
            self.note("validates", buffers=bool(ddp.broadcast_buffers and ddp.modules_buffers))
        yield

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
    """A number for it; 0 for one that is no plain block of memory."""
    import torch

    with contextlib.suppress(Exception):
        flat = tensor.detach().cpu().contiguous().view(-1)
        return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())
    return 0


def _some(tensors) -> list[float]:
    """The first numbers of each; nothing if one has none, as it is lazy, sparse or complex."""
    with contextlib.suppress(Exception):
        return [float(one) for each in tensors for one in each.detach().flatten()[:_SOME].tolist()]
    return []


def _weights(optimizer) -> list:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_part(weight) -> bool:
    """Whether a rank has only its part: a DTensor, or what the older FSDP has flattened."""
    return hasattr(weight, "to_local") or hasattr(weight, "_fsdp_flattened")


def _has_gradient(optimizer) -> bool:
    gradients = [one.grad for one in _weights(optimizer) if one.grad is not None]
    # subtle: of a distributed tensor the own part, because any() would be a collective.
    parts = [getattr(one, "to_local", lambda one=one: one)() for one in gradients]
    return any(bool(one._nnz() if one.is_sparse else one.any()) for one in parts)
