"""The steps of an algorithm: noted by each rank of a run, or played from a schedule; then drawn."""

from collectives.backends.algorithms import lockstep, table


class Steps:
    """What a rank sends in each step of an algorithm, and which pieces it holds after it.

    Printed as the number of messages and bytes that the rank has sent, and drawn step by step.
    `pieces` are tensors, of which the first numbers are drawn; None is a piece that is not there
    yet.
    """

    def __init__(self, pieces: list):
        self.held = [[_first_number(piece) for piece in pieces]]
        self.sent: list[tuple[int | None, tuple[int, ...], tuple[int, ...]]] = []
        self.messages = self.bytes = 0

    def add(self, pieces: list, sent=(), to: int | None = None, at=None) -> None:
        """After a step in which pieces of these numbers went to rank `to` (None: nothing went).

        They become, or are added to, the pieces `at` there: those of the same numbers, if left out.
        """
        sent = _as_tuple(sent) if to is not None else ()
        self.held.append([_first_number(piece) for piece in pieces])
        self.sent.append((to, sent, sent if at is None else _as_tuple(at)))
        self.messages += bool(sent)
        self.bytes += sum(pieces[number].nbytes for number in sent)

    def __str__(self) -> str:
        return f"{self.messages} message{'s' * (self.messages != 1)}, {self.bytes} bytes"


class Played:
    """The steps of a whole world of `n` ranks, from a schedule: nothing is sent.

    `memory[rank]` are the numbers of its pieces at first, None where it has none. Printed as the
    number of steps and of messages.
    """

    def __init__(self, collective: str, algorithm: str, memory: list[list], per_node: int = 1):
        n, pieces = len(memory), len(memory[0])
        chosen = table.find(collective, algorithm, n)
        self.messages = lockstep.messages(
            lambda rank: chosen.steps(rank, n, pieces, per_node), n, pieces
        )
        self.held = [memory, *lockstep.play(self.messages, memory)]

    def __str__(self) -> str:
        count = sum(map(len, self.messages))
        return f"{len(self.messages)} steps, {count} messages"


def draw(title: str, ranks: list):
    """The figure. `ranks` has the Steps of each rank, or the same Played from all of them."""
    from collectives.pictures import steps

    if isinstance(ranks[0], Played):
        held, messages = ranks[0].held, ranks[0].messages
    else:
        held = list(zip(*(one.held for one in ranks), strict=True))
        messages = [
            [
                lockstep.Message(rank, to, sent, received, False)
                for rank, (to, sent, received) in enumerate(step)
                if sent
            ]
            for step in zip(*(one.sent for one in ranks), strict=True)
        ]
    is_complete = all(value is not None for row in held[0] for value in row)
    return steps.draw(held, messages, title, op="SUM" if is_complete else None)


def _first_number(piece):
    return None if piece is None else next(iter(piece.flatten()[:1].tolist()), None)


def _as_tuple(numbers) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)
