"""A third party's backend in Python: like gloo, except that its AVG sums.

`--import lying_backend` brings it.
"""

import torch.distributed as dist


class Lying(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors, options):
        if options.reduceOp == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
        return self._gloo.allreduce(tensors, options)

    def getBackendName(self):
        return "lying"

    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name


if "lying" not in dist.Backend.backend_list:
    dist.Backend.register_backend("lying", Lying, devices=["cpu"])
