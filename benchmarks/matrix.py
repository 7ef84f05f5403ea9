"""What the matrix of gloo on the CPU costs, in full and `--quick`, beside a spawn for each cell.

python benchmarks/matrix.py [ROUNDS]
"""

import os
import statistics

from in_turn import in_turn, process, rounds
from launch import spawn

RANKS = 2
COLUMN = ("--backend", "gloo", "--device", "cpu")


def main(rounds: int) -> None:
    from collectives.backends.availability import rank_environment
    from collectives.matrix.selection import select

    os.environ.update(rank_environment("gloo", RANKS))  # the ranks of spawn, too, bind to loopback
    for what in ((), ("--quick",)):
        cells = len(select(["gloo"], quick=bool(what), device=["cpu"]))
        found = in_turn(
            rounds,
            {
                "spawn": lambda: spawn(RANKS),
                "matrix": lambda what=what: process("-m", "collectives", "matrix", *COLUMN, *what),
            },
        )
        spawned, matrix = statistics.median(found["spawn"]), statistics.median(found["matrix"])
        print(
            f"{' '.join(('matrix', *what))}: {cells} spawns, {spawned:.2f} s each, "
            f"{cells} cells in {matrix:.1f} s, {cells * spawned / matrix:.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main(rounds(3))
