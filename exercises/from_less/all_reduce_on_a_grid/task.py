"""All_reduce on a grid

The ranks form a grid with `width` columns, row by row. Write the sum of all ranks' tensors into `x`
on every rank. The links along the columns are slow, which is why only a piece of `x` may travel
there, in an all_reduce. Three calls are enough, and none of them is one of all ranks. The length of
`x` is a multiple of `width`.

    width 2
    rank  x             x afterwards
    0     [1, 2]        [1111, 2222]
    1     [10, 20]      [1111, 2222]
    2     [100, 200]    [1111, 2222]
    3     [1000, 2000]  [1111, 2222]

You may call reduce_scatter_single, all_reduce, all_gather_single, new_group and
new_subgroups_by_enumeration, and no other collective.
"""

import torch
import torch.distributed as dist


def hierarchical_all_reduce(x: torch.Tensor, width: int) -> None:
    raise NotImplementedError("TODO: about ten lines")
