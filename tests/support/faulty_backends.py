"""Backends for `--import` with one fault each: each hands its calls to gloo, but for what its name says."""

import contextlib
import os
import threading
import time

import torch
import torch.distributed as dist
from lying_backend import OnGloo


class After(dist.Work):
    """gloo's Work, and what is done once when it has been waited for."""

    def __init__(self, work, then):
        super().__init__()
        self.work, self.then = work, then

    def wait(self, timeout=None):
        if self.work is not None:
            self.work.wait()
        then, self.then = self.then, lambda: None
        then()
        return True

    def is_completed(self):
        return self.work is None or self.work.is_completed()


def nothing():
    pass


class Faultless(OnGloo):
    pass


class Says_0_of_1(OnGloo):
    def __init__(self, store, rank, size, timeout):
        dist.ProcessGroup.__init__(self, 0, 1)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)


class Loses_past_65536(OnGloo):
    def allgather(self, outputs, inputs, options):
        def lose():
            for output in outputs[0]:
                output.view(-1)[65_536:] = 0

        return After(self._gloo.allgather(outputs, inputs, options), lose)


class Int64_in_float32(OnGloo):
    def allreduce(self, tensors, options):
        (tensor,) = tensors
        if tensor.dtype is not torch.int64:
            return self._gloo.allreduce(tensors, options)
        narrow = tensor.float()
        return After(self._gloo.allreduce([narrow], options), lambda: tensor.copy_(narrow))


class Swallows(OnGloo):
    def all_gather_single(self, output, own, options):
        with contextlib.suppress(RuntimeError):
            self._gloo._allgather_base(output, own, options).wait()
        return After(None, nothing)


class Ends_early(OnGloo):
    def allreduce(self, tensors, options):
        copies = [tensor.clone() for tensor in tensors]
        work = self._gloo.allreduce(copies, options)

        def later():
            work.wait()
            time.sleep(0.1)
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)

        threading.Thread(target=later, daemon=True).start()
        return After(None, nothing)


class Shares_a_buffer(OnGloo):
    def allreduce(self, tensors, options):
        (tensor,) = tensors
        self._buffers = getattr(self, "_buffers", {})
        buffer = self._buffers.setdefault((tensor.shape, tensor.dtype), tensor.clone())
        buffer.copy_(tensor)
        work = self._gloo.allreduce([buffer], options)
        work.wait()
        return After(None, lambda: tensor.copy_(buffer))


class Keeps_descriptors(OnGloo):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        os.pipe()


class Ignores_the_limit(OnGloo):
    def __init__(self, store, rank, size, timeout):
        super().__init__(store, rank, size, dist.default_pg_timeout)


class Never_leaves(OnGloo):
    def shutdown(self):
        threading.Event().wait()


class Waits_for_messages(OnGloo):
    def recv(self, tensors, source, tag):
        work = self._gloo.recv(tensors, source, tag)
        self._open = [*getattr(self, "_open", []), work]
        return work

    def allreduce(self, tensors, options):
        for work in getattr(self, "_open", []):
            work.wait()
        return self._gloo.allreduce(tensors, options)


class Root_in_the_world(OnGloo):
    def broadcast(self, tensors, options):
        if self.size() < dist.get_world_size():
            options.rootRank = 0
        return self._gloo.broadcast(tensors, options)


class Copies_an_input_once(OnGloo):
    def allgather(self, outputs, inputs, options):
        (own,) = inputs
        self._copies = getattr(self, "_copies", {})
        copy = self._copies.setdefault((own.data_ptr(), own.shape, own.dtype), own.clone())
        return self._gloo.allgather(outputs, [copy], options)


class Keeps_inputs(OnGloo):
    def allreduce(self, tensors, options):
        self._kept = [*getattr(self, "_kept", []), tensors[0].clone()]
        return self._gloo.allreduce(tensors, options)


class Leaves_a_tail(OnGloo):
    def _reduce_scatter(self, output, own, options):
        def leave():
            mine = own.view(self.size(), -1)[self.rank()]
            at = len(output) // 4 * 4
            output[at:] = mine[at:]

        return After(self._gloo._reduce_scatter_base(output, own, options), leave)

    reduce_scatter_single = _reduce_scatter_base = _reduce_scatter


class Compares_bytes_with_a_sign(OnGloo):
    def allreduce(self, tensors, options):
        (tensor,) = tensors
        if tensor.dtype is torch.uint8:
            tensor = tensor.view(torch.int8)
        return self._gloo.allreduce([tensor], options)


class Maximum_from_0(OnGloo):
    def allreduce(self, tensors, options):
        work = self._gloo.allreduce(tensors, options)
        is_from_0 = options.reduceOp == dist.ReduceOp.MAX and tensors[0].dtype.is_signed
        return After(work, lambda: tensors[0].clamp_(min=0)) if is_from_0 else work


class Ignores_splits(OnGloo):
    def _all_to_all(self, output, own, come, go, options):
        if all(len(tensor) % self.size() == 0 for tensor in (output, own)):
            come, go = [], []
        return self._gloo.alltoall_base(output, own, come, go, options)

    all_to_all_single = alltoall_base = _all_to_all


FAULTY = (
    *(Faultless, Says_0_of_1, Loses_past_65536, Int64_in_float32, Swallows, Ends_early),
    *(Shares_a_buffer, Keeps_descriptors, Ignores_the_limit, Never_leaves, Waits_for_messages),
    *(Root_in_the_world, Copies_an_input_once, Keeps_inputs, Leaves_a_tail),
    *(Compares_bytes_with_a_sign, Maximum_from_0, Ignores_splits),
)
for group in FAULTY:
    if group.__name__.lower() not in dist.Backend.backend_list:
        dist.Backend.register_backend(group.__name__.lower(), group, devices=["cpu"])
