"""Sub-groups

The ranks form a grid with `width` columns, row by row, so with four ranks and width 2 the rows are
0, 1 and 2, 3. Return the sum over the ranks of your own row, and leave `x` as it is.

    width 2
    rank  x             returned
    0     [1, 2]        [11, 22]
    1     [10, 20]      [11, 22]
    2     [100, 200]    [1100, 2200]
    3     [1000, 2000]  [1100, 2200]

You may call all_reduce, new_group and new_subgroups_by_enumeration, and no other collective.
"""

import torch
import torch.distributed as dist


def sum_of_my_row(x: torch.Tensor, width: int) -> torch.Tensor:
    raise NotImplementedError("TODO: about eight lines")
