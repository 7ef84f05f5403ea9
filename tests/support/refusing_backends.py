"""Backends for `--import`: no world of `broken` starts, `strict` does not send, and of the methods of
`unfinished` one has a bug, one has another signature, and one refuses.
"""

import torch.distributed as dist
from lying_backend import OnGloo


class Broken(OnGloo):
    def __init__(self, store, rank, size, timeout):
        self.transport = dist.no_such_transport


class Strict(OnGloo):
    def send(self, tensors, dst, tag):
        raise NotImplementedError("strict does not send")

    recv = send


class Unfinished(OnGloo):
    def allreduce(self, tensors, options):
        return self._summed(tensors)

    def _summed(self, tensors, options):
        return self._gloo.allreduce(tensors, options)

    def broadcast(self, tensors):
        return self._gloo.broadcast(tensors)

    def reduce(self, tensors, options):
        raise TypeError("unfinished does not reduce")


if "broken" not in dist.Backend.backend_list:
    dist.Backend.register_backend("broken", Broken, devices=["cpu"])
    dist.Backend.register_backend("strict", Strict, devices=["cpu"])
    dist.Backend.register_backend("unfinished", Unfinished, devices=["cpu"])
