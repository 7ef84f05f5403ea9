"""What the machines of a lab printed, and the report of a step that ran there."""

import subprocess

from collectives.backends.availability import Unavailable
from collectives.course.results import aligned

_NO_SUCH_COMMAND = 127  # a shell's exit status


def stdout_lines(done: list[subprocess.CompletedProcess]) -> dict[str, list[str]]:
    """The lines that a command printed on each machine, by machine, in alphabetical order.

    (The ranks of a machine print in any order.) Raises RuntimeError, with stderr, if the command
    failed, and Unavailable, a ValueError, if there is no such command.

    >>> with Lab(2) as lab:  # doctest: +SKIP
    ...     print(stdout_lines(lab.run("hostname")))
    """
    for node, process in enumerate(done):
        if process.returncode == _NO_SUCH_COMMAND:
            raise Unavailable(process.stderr.strip())
        if process.returncode != 0:
            raise RuntimeError(f"node{node}: status {process.returncode}: {process.stderr[-2000:]}")
    return {f"node{node}": sorted(one.stdout.splitlines()) for node, one in enumerate(done)}


def report(name: str, result) -> str:
    """What a step in a lab returned: lines by machine, or the rows of a table (or its `rows`)."""
    title = f"{name}: proved in a lab"
    rows = getattr(result, "rows", result)
    if isinstance(rows, dict):
        lines = [f"  {node}: {line}" for node, lines in rows.items() for line in lines]
        return "\n".join([title, *lines, ""])
    return aligned(title, [list(rows[0]), *(list(map(str, row.values())) for row in rows)])
