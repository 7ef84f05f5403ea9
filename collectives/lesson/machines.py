"""Steps that make machines, start the ranks there by themselves, and tell what these printed."""

import subprocess

from collectives.backends.availability import Unavailable
from collectives.lesson.results import Cables, Pairs, aligned

_NO_SUCH_COMMAND = 127  # a shell's exit status


def said(done: list[subprocess.CompletedProcess]) -> dict[str, list[str]]:
    """What a command on every machine has printed, by machine, the lines in alphabetical order.

    (The ranks of a machine print in any order.) Raises RuntimeError, with stderr, if it failed, and
    Unavailable, a ValueError, if there is no such command.
    """
    for number, one in enumerate(done):
        if one.returncode == _NO_SUCH_COMMAND:
            raise Unavailable(one.stderr.strip())
        if one.returncode != 0:
            raise RuntimeError(f"node{number}: status {one.returncode}: {one.stderr[-2000:]}")
    return {f"node{number}": sorted(one.stdout.splitlines()) for number, one in enumerate(done)}


def report(name: str, result) -> str:
    """What a step in a lab returned: lines by machine, or the rows of a table."""
    title = f"{name}: proved in a lab"
    if isinstance(result, Pairs | Cables):
        result = result.rows
    if isinstance(result, dict):
        lines = [f"  {name}: {line}" for name, lines in result.items() for line in lines]
        return "\n".join([title, *lines, ""])
    return aligned(
        title, [list(result[0]), *([str(cell) for cell in row.values()] for row in result)]
    )
