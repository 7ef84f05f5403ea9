"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, poison
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`torch.cat` makes one flat tensor of all weights; every rank needs one to receive into.",
    "`flat.split([w.numel() for w in weights])` cuts it again; then copy the pieces back.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for trainer in range(n):
        call = trainer if n > 1 else 2
        new = [moved(trainer, 2, call), moved(trainer, 6, call).view(2, 3), moved(trainer, 1, call)]
        if trainer > 0:  # as the weight of a layer that was transposed
            new[1] = new[1].mT
        weights = [one.clone() if rank == trainer else poison(one) for one in new]
        yield ExerciseCase(
            f"trainer {trainer}",
            (weights, trainer),
            after={0: new},
            calls=1,
            says={"calls": "with a single broadcast"},
        )
