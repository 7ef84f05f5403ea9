"""What torch.cuda and torch.distributed ask of a build with CUDA: the Python half of cuda.cpp."""

import contextlib
import datetime
import importlib.util
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import _C, cuda
from torch.distributed import constants
from torch.distributed import distributed_c10d as c10d

_spec = importlib.util.spec_from_file_location("rehearsed_cuda", os.environ["REHEARSED_CUDA"])
gpus = sys.modules["rehearsed_cuda"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpus)

_driver_in = None  # the process that has asked the driver: a fork of it cannot use a GPU


def device_count():
    """Asked again each time: a rank gets its own environment only after it has been forked."""
    count, visible = int(os.environ["REHEARSED_GPUS"]), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = sum(name.isdigit() and int(name) < count for name in visible.split(","))
    gpus.set_device_count(count)
    return count


def _device_count_by_driver():
    """In a fork the driver finds no GPU, which torch takes for none."""
    global _driver_in
    if _is_bad_fork():
        return 0
    _driver_in = os.getpid()
    return device_count()


def _device_count_by_nvml():
    """Asks the driver for nothing. NVML knows no slices of a GPU, and some machines lack it."""
    return device_count() if os.environ.get("REHEARSED_NVML") != "0" else -1


def _init():
    if not _device_count_by_driver():
        raise RuntimeError("No CUDA GPUs are available")
    gpus.make_default_generators(True)
    cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in range(device_count()))
    gpus.make_default_generators(False)


def _properties(device=None):
    cuda._lazy_init()
    return SimpleNamespace(
        name="Rehearsed GPU", major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132
    )


def _is_bad_fork():
    return _driver_in not in (None, os.getpid())


def _initialised(function):
    def call(*args):
        cuda._lazy_init()
        return function(*args)

    return call


def _exchange_device(index):
    before = gpus.get_device()
    if index >= 0:
        gpus.set_device(index)
    return before if index >= 0 else -1


def _maybe_exchange_device(index):  # a function of its own, for the compiler
    return _exchange_device(index)


_C._has_cuda = True
_C._cuda_getDeviceCount = _device_count_by_driver
_C._cuda_init = _init
_C._cuda_isInBadFork = cuda._is_in_bad_fork = _is_bad_fork
_C._cuda_setDevice = _initialised(gpus.set_device)
_C._cuda_getDevice = _initialised(gpus.get_device)
_C._cuda_exchangeDevice = _exchange_device
_C._cuda_maybeExchangeDevice = _maybe_exchange_device
_C._cuda_synchronize = _initialised(gpus.synchronize)
_C._cuda_getCompiledVersion = lambda: 13000
_C._cuda_getArchFlags = lambda: "sm_90"
_C._cuda_isCurrentStreamCapturing = lambda: False
cuda.graphs._cuda_isCurrentStreamCapturing = lambda: False
_C._cuda_getCurrentRawStream = lambda device=0: 0
_C._cuda_emptyCache = lambda: None
_C._cuda_sleep = lambda cycles: None  # streams are not played: nothing would wait for it
_C._cuda_memoryStats = lambda device: {}
_C._cuda_resetPeakMemoryStats = _C._cuda_resetAccumulatedMemoryStats = lambda device: None
cuda._exchange_device, cuda._maybe_exchange_device = _exchange_device, _maybe_exchange_device
cuda._cudart = SimpleNamespace(cudaMemGetInfo=lambda device: (70 * 2**30, 80 * 2**30))
cuda._device_count_nvml = _device_count_by_nvml
cuda.memory_allocated = cuda.max_memory_allocated = cuda.memory_reserved = lambda device=None: 0
cuda.get_device_properties = _properties


class Event:
    def __init__(self, *_, **__):
        pass

    def record(self, stream=None):
        pass

    wait = record

    def query(self):
        return True

    def synchronize(self):
        gpus.synchronize()

    def elapsed_time(self, other):
        return 0.1


class Stream:
    def __init__(self, device=None, priority=0, **_):
        cuda._lazy_init()
        index = gpus.get_device() if device is None else torch.device(device).index or 0
        self.device, self.device_index = torch.device("cuda", index), index
        self.stream_id, self.cuda_stream, self.device_type = 0, 0, 1

    def wait_event(self, other):
        pass

    wait_stream = wait_event

    def record_event(self, event=None):
        return event or Event()

    def query(self):
        return True

    def synchronize(self):
        gpus.synchronize()


class StreamContext(contextlib.nullcontext):
    pass


cuda.Event = cuda.streams.Event = Event
cuda.Stream = cuda.streams.Stream = Stream
cuda.current_stream = cuda.default_stream = lambda device=None: Stream(device)
cuda.set_stream = lambda stream: None
cuda.stream = cuda.StreamContext = StreamContext

_resize = torch.UntypedStorage.resize_


def _resize_on_gpu(storage, size):
    """A CPU build refuses it. Here a storage that shrinks keeps its memory."""
    if storage.device.type != "cuda":
        return _resize(storage, size)
    if size > storage.nbytes():
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).resize_(size)
    return storage


torch.UntypedStorage.resize_ = _resize_on_gpu

# SyncBatchNorm's five operators, which a CPU build has no kernels for.


def _channels(x):
    """The dimensions of a batch norm's input over which it sums, and the shape of its sums."""
    return [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))


def _stats(x, eps):
    variance, mean = torch.var_mean(x, _channels(x)[0], correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(x, means, inverses, running_mean, running_var, momentum, eps, counts):
    count = counts.sum()
    shares = (counts / count).view(-1, 1)
    mean = (shares * means).sum(0)
    variance = (shares * (inverses**-2 - eps + (means - mean) ** 2)).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * count / (count - 1), momentum)
    return mean, (variance + eps).rsqrt()


def _normalize(x, weight, bias, mean, inverse, eps):
    shape = _channels(x)[1]
    return ((x - mean.view(shape)) * (inverse * weight).view(shape)) + bias.view(shape)


def _sums_of_gradients(gradient, x, mean, inverse, weight, *wanted):
    dimensions, shape = _channels(x)
    total = gradient.sum(dimensions)
    product = (gradient * (x - mean.view(shape))).sum(dimensions)
    return total, product, product * inverse, total.clone()


def _gradient(gradient, x, mean, inverse, weight, total, product, counts):
    shape, count = _channels(x)[1], counts.sum()
    centred = (x - mean.view(shape)) * (inverse**2 * product / count).view(shape)
    return (gradient - (total / count).view(shape) - centred) * (inverse * weight).view(shape)


_operators = torch.library.Library("aten", "IMPL")
for _name, _function in {
    "stats": _stats,
    "gather_stats_with_counts": _gather_stats,
    "elemt": _normalize,
    "backward_reduce": _sums_of_gradients,
    "backward_elemt": _gradient,
}.items():
    _operators.impl(f"batch_norm_{_name}", _function, "CUDA")

gpus.carry_with(dist.ProcessGroupGloo)
gpus.ProcessGroupNCCL.__module__ = c10d.__name__
c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = gpus.ProcessGroupNCCL
c10d._NCCL_AVAILABLE = True
_C._distributed_c10d._DEFAULT_PG_NCCL_TIMEOUT = datetime.timedelta(minutes=10)
constants.default_pg_nccl_timeout = c10d.default_pg_nccl_timeout = datetime.timedelta(minutes=10)
_major, _minor, _patch = map(int, os.environ["REHEARSED_NCCL"].split("."))
_C._nccl_version = lambda: _major << 32 | _minor << 16 | _patch
_C._nccl_version_suffix = lambda: b""

device_count()
