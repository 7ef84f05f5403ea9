"""Two backends for `--import`: no world of `broken` starts; `strict` starts and does not send."""

import torch.distributed as dist


class Broken(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.transport = dist.no_such_transport


class Strict(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def send(self, tensors, dst, tag):
        raise NotImplementedError("strict does not send")

    recv = send

    def broadcast(self, tensors, options):
        return self._gloo.broadcast(tensors, options)

    def getBackendName(self):
        return "strict"

    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name


if "broken" not in dist.Backend.backend_list:
    dist.Backend.register_backend("broken", Broken, devices=["cpu"])
    dist.Backend.register_backend("strict", Strict, devices=["cpu"])
