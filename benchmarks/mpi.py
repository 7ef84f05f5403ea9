"""What an all_reduce costs on gloo, on MPI, and with mpi4py alone: the same ranks and tensors.

python benchmarks/mpi.py [ROUNDS]
"""

from algorithms import medians, time_all_reduce
from in_turn import print_ratio, rounds

from collectives import launch

RANKS = 4


def main(rounds: int) -> None:
    names = ["gloo", "mpi", "mpi4py"]
    options = {"backend": "mpi", "timeout": 600.0, "diagnose": False}
    by_rank = launch(time_all_reduce, RANKS, args=(rounds, names), **options)
    for size, seconds in medians(by_rank).items():
        for first, second in (("gloo", "mpi"), ("mpi", "mpi4py")):
            print_ratio(f"{size} B: {first}, {second}", [seconds[first]], [seconds[second]])


if __name__ == "__main__":
    main(rounds(7))
