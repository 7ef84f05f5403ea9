"""What the scripts in this folder share: contenders take turns, and medians are compared.

A busy machine then slows all of them: trust the ratios, not the seconds.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

LIMIT = 300  # seconds for a process


def in_turn(rounds: int, contenders: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The seconds of each contender in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def process(*arguments: str) -> None:
    """Run Python with these arguments. CalledProcessError if it fails."""
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)


def print_ratio(what: str, first: list[float], second: list[float]) -> None:
    """Two medians in seconds, and the first divided by the second."""
    a, b = statistics.median(first), statistics.median(second)
    print(f"{what:45} {a:10.4g} s {b:10.4g} s {a / b:8.3g}x", flush=True)


def rounds(default: int) -> int:
    """The number of rounds: the first argument of the script."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else default
