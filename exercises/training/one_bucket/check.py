"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from gradients import averaged, gradients

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`torch.cat` makes one flat tensor of all gradients.",
    "`flat.split([g.numel() for g in gradients])` cuts it again; then copy the pieces back.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        yield ExerciseCase(
            f"run {call + 1}",
            (gradients(rank, call),),
            after={0: averaged(n, call)},
            calls=1,
            says={"calls": "a single all_reduce"},
        )
