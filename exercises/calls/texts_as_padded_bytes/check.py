"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`torch.frombuffer(bytearray(text, 'utf-8'), dtype=torch.uint8)` makes a tensor of bytes.",
    "all_gather needs tensors of one length, so gather the lengths first, then pad.",
    "Cut each row to its own length before `bytes(row.tolist()).decode()`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, stem in enumerate(("abc", "äöü", "", " ", "\0", "你好, €", "a" * 150, "ä" * 9000)):
        texts = [f"{stem}{'!' * (r + bool(stem))}{stem * (call > 2)}" for r in range(n)]
        yield ExerciseCase(f"run {call + 1}", (texts[rank],), texts)
