"""A backend that does nothing and reports success: a test that passes on it checks no data.

For `--import`.
"""

import torch.distributed as dist


class Done(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class Lazy(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)

    def nothing(self, *_):
        return Done()

    allreduce = reduce = reduce_scatter = broadcast = allgather = gather = scatter = alltoall = (
        alltoall_base
    ) = barrier = nothing
    allreduce_coalesced = allgather_coalesced = all_to_all_single = all_gather_single = (
        reduce_scatter_single
    ) = nothing
    send = recv = recv_anysource = nothing

    def getBackendName(self):
        return "lazy"

    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name


if "lazy" not in dist.Backend.backend_list:
    dist.Backend.register_backend("lazy", Lazy, devices=["cpu"])
