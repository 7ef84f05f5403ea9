"""The norm of gradients on a mesh

A model is trained on a mesh, in which `tensor` neighbouring ranks are a tensor group. Some weights
are cut over the ranks of a tensor group and sharded over the groups, so each rank has gradients of
its own in `cut`. The other weights are only sharded over the groups, so all ranks of a tensor group
have the same gradients in `shared`. To clip, every rank needs the norm of the whole gradient, in
which each number counts once. Return it as a float; one call is enough.

    rank  cut    shared  tensor  returned
    0     [2.0]  [4.0]   2       6.0
    1     [4.0]  [4.0]   2       6.0

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def norm(cut: torch.Tensor, shared: torch.Tensor, tensor: int) -> float:
    raise NotImplementedError("TODO: three lines")
