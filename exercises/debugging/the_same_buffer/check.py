"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import MESSAGES, Case, exercise, hints


@exercise("send_all", stars=2, lesson="isend_irecv", uses=MESSAGES, sizes=(2, 3, 4))
@hints(
    "When may a program write into the tensor that it gave to isend?",
    "Give each message a tensor of its own, or wait before you write again.",
)
def cases(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        texts = [moved(k, 1000, call) for k in range(3)]
        yield Case(f"run {call + 1}", (texts if rank == 0 else 3,), texts if rank < 2 else [])
