"""Two backends for `--import`: no world of `broken` starts; `strict` starts and does not send."""

import torch.distributed as dist
from lying_backend import OnGloo


class Broken(OnGloo):
    def __init__(self, store, rank, size, timeout):
        self.transport = dist.no_such_transport


class Strict(OnGloo):
    def send(self, tensors, dst, tag):
        raise NotImplementedError("strict does not send")

    recv = send


if "broken" not in dist.Backend.backend_list:
    dist.Backend.register_backend("broken", Broken, devices=["cpu"])
    dist.Backend.register_backend("strict", Strict, devices=["cpu"])
