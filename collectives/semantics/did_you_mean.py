"""A name that is not known: which known one may have been meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'all_reduce'? ", or nothing if no known name is similar."""
    similar = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
    return f"did you mean {similar[0]!r}? " if similar else ""
