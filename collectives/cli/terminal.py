"""The exit statuses of our commands."""

import sys
from collections.abc import Iterable

import typer


def failed(command: str, error: ValueError | RuntimeError, speaks: bool = True) -> typer.Exit:
    """Say what went wrong, and give what to raise.

    The exit status is 1 if ranks failed, 2 for bad usage, 3 if a backend is not here.
    """
    from collectives.backends.availability import Unavailable

    if speaks:
        print(f"{command}: {error}", file=sys.stderr)
    if isinstance(error, RuntimeError):
        return typer.Exit(1)
    return typer.Exit(3 if isinstance(error, Unavailable) else 2)


def status_of_all(statuses: Iterable[int]) -> int:
    """A failure counts most; 3, nothing could be run, only if it is so for all."""
    found = set(statuses)
    return next((status for status in (1, 2, 0) if status in found), 3)
