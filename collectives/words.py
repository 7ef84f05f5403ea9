"""How we say what many texts say: ranks, runs of numbers, and the name that may have been meant."""

import difflib
from collections.abc import Iterable


def ranks(numbers: Iterable[int]) -> str:
    """As in rank 2, or ranks 0,1."""
    numbers = sorted(numbers)
    return f"rank{'s' if len(numbers) > 1 else ''} {','.join(map(str, numbers))}"


def runs(numbers: Iterable[int]) -> list[str]:
    """Numbers that follow each other are a run: 0, 1, 2, 4 are "0-2" and "4"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'all_reduce'? ", or nothing if no known name is similar."""
    similar = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
    return f"did you mean {similar[0]!r}? " if similar else ""
