"""A third party's backend for `--import`, in Python: it is gloo, except that its AVG sums."""

import torch.distributed as dist

CALLS = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter"),
    *("alltoall", "barrier", "send", "recv", "recv_anysource"),
)
# The names of gloo's methods for one tensor, and what torch 2.13 calls those of a group in Python.
SINGLE = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
}


class OnGloo(dist.ProcessGroup):
    """What a subclass does not define is gloo's."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _get_backend(self, device):  # torch 2.14 asks for it before a batch of messages
        return self

    def getBackendName(self):
        return type(self).__name__.lower()

    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name


def forwarding(name):
    """barrier gets its options by name; gloo takes them by position alone."""
    return lambda self, *values, **named: getattr(self._gloo, name)(*values, *named.values())


for name in CALLS:
    setattr(OnGloo, name, forwarding(name))
for name, public in SINGLE.items():
    setattr(OnGloo, public, forwarding(name))
    setattr(OnGloo, name, forwarding(name))  # an older torch


class Lying(OnGloo):
    def allreduce(self, tensors, options):
        if options.reduceOp == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
        return self._gloo.allreduce(tensors, options)


if "lying" not in dist.Backend.backend_list:
    dist.Backend.register_backend("lying", Lying, devices=["cpu"])
