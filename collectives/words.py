"""How we say what many texts say: ranks, numbers, a name that was meant, text of others."""

import difflib
import re
from collections.abc import Iterable

# All control characters but tab and newline; marks that turn the direction of text; and lone
# surrogates, which no encoding can write.
_NOT_SHOWN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def ranks(numbers: Iterable[int]) -> str:
    """As in rank 2, or ranks 0,1."""
    numbers = sorted(numbers)
    return f"rank{'s' if len(numbers) > 1 else ''} {','.join(map(str, numbers))}"


def counted(number: int, what: str) -> str:
    """As in 1 rank, or 3 ranks."""
    return f"{number} {what}{'' if number == 1 else 's'}"


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


def printable(text: object) -> str:
    r"""Text of others, harmless for a terminal: with \x1b where it has an escape character."""
    return _NOT_SHOWN.sub(lambda found: ascii(found[0])[1:-1], str(text))
