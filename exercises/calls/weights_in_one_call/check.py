"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import Case, exercise, hints


@exercise("update", stars=2, lesson="weight_update", uses=("broadcast",))
@hints(
    "`torch.cat` makes one flat tensor of all weights, on the other ranks, too.",
    "`flat.split([w.numel() for w in weights])` cuts it again: copy the pieces back.",
)
def cases(rank: int, n: int) -> Iterator[Case]:
    for trainer in range(n):
        new = [moved(trainer, 2), moved(trainer, 6, 1).view(2, 3), moved(trainer, 1, 2)]
        weights = [one.clone() if rank == trainer else torch.full_like(one, -7) for one in new]
        yield Case(f"trainer {trainer}", (weights, trainer), after={0: new}, calls=1)
