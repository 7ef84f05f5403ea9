"""A third party's backend for `--import`, in Python: it is gloo, except that its AVG sums."""

import torch.distributed as dist


class OnGloo(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self):
        return type(self).__name__.lower()

    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name


class Lying(OnGloo):
    def allreduce(self, tensors, options):
        if options.reduceOp == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
        return self._gloo.allreduce(tensors, options)


if "lying" not in dist.Backend.backend_list:
    dist.Backend.register_backend("lying", Lying, devices=["cpu"])
