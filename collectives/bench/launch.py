"""What a launch costs, as ratios of timings that were taken in turn in one run.

This module imports nothing heavy: the ranks of `torch.multiprocessing.spawn` import it, and must not pay for our comforts.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from collectives.bench.timing import LIMIT, Row, process, timed

RANKS = 4

_MIB = 2**20


def measure(rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; `tell` hears, in words, what is being done."""
    return rows(launches(rounds, tell) | _processes(rounds, tell))


def rows(found: dict[str, list[float]]) -> list[Row]:
    """The table, from all that was measured: seconds, and bytes of memory."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    text = {
        name: f"{value / _MIB:.0f} MiB" if name.startswith("memory") else f"{value:.2f} s"
        for name, value in middle.items()
    }

    def row(
        what: str,
        first: tuple[str, str],
        second: tuple[str, str],
        target: str,
        is_met: Callable[[float], bool] | None,
    ):
        """Each of the two: what it is called in `found`, and how it is shown."""
        ratio = middle[first[0]] / middle[second[0]]
        shown = [f"{label} {text[name]}" for name, label in (first, second)]
        return Row(
            what, *shown, ratio, target, "-" if is_met is None else "yes" if is_met(ratio) else "no"
        )

    lesson, imported = (
        ("lesson", "python lessons/broadcast.py"),
        ("import torch", 'python -c "import torch"'),
    )
    spawn, launch = ("spawn", "torch.multiprocessing.spawn"), ("launch", "launch")
    table = [
        row(
            f"second launch of {RANKS} ranks",
            spawn,
            launch,
            ">= 20x, B <= 0.2 s",
            lambda x: x >= 20 and middle["launch"] <= 0.2,
        ),
        row("a lesson, start to end", lesson, imported, "<= 2.2x", lambda x: x <= 2.2),
        row(
            "the same under torchrun",
            ("torchrun", "torchrun lessons/broadcast.py"),
            lesson,
            ">= 1.7x",
            lambda x: x >= 1.7,
        ),
    ]
    if "memory, forkserver" in middle:
        server = middle.get("memory, server", 0)
        saved = (RANKS * (middle["memory, spawn"] - middle["memory, forkserver"]) - server) / _MIB
        note = f"{RANKS} ranks save {saved:.0f} MiB, their server's own {'counted' if server else 'not counted'}"
        table.append(
            row(
                "own memory of a rank",
                ("memory, spawn", "spawn"),
                ("memory, forkserver", "forkserver"),
                note,
                None,
            )
        )
    return table


def launches(
    rounds: int, tell: Callable[[str], None], ranks: int = RANKS
) -> dict[str, list[float]]:
    """Timings from a fresh process, whose main module is empty: the ranks that spawn starts would run it again."""
    found: dict[str, list[float]] = {}
    code = f"from collectives.bench import launch; launch.print_launches({rounds}, {ranks})"
    with process([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as started:
        for line in started.stdout:
            message = json.loads(line)
            if "about" in message:
                tell(message["about"])
            else:
                found.setdefault(message["name"], []).append(message["value"])
    return found


def _processes(rounds: int, tell: Callable[[str], None]) -> dict[str, list[float]]:
    from collectives.lesson import files

    lesson = str(files.folder() / "broadcast.py")
    commands = {
        "import torch": ["-c", "import torch"],
        "lesson": [lesson],
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), lesson],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds):
        for name, arguments in commands.items():
            tell(f"whole processes, round {number + 1} of {rounds}: {name}")
            with (
                timed(found[name]),
                process(
                    [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                ),
            ):
                pass
    return found


def print_launches(rounds: int, ranks: int) -> None:
    """Measure launches in this process, and print each figure as a line of JSON."""
    import faulthandler
    import multiprocessing

    import torch.multiprocessing

    from collectives import launch
    from collectives.backends import availability

    os.environ.update(
        availability.rank_environment("gloo", ranks)
    )  # the ranks of spawn, too, listen on loopback only
    launch(one_all_reduce, ranks, backend="gloo")  # the first launch starts the server
    for number in range(rounds):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        _say(about=f"launches, round {number + 1} of {rounds}")
        seconds: dict[str, list[float]] = {"spawn": [], "launch": []}
        with tempfile.TemporaryDirectory() as folder, timed(seconds["spawn"]):
            torch.multiprocessing.spawn(spawned, (ranks, str(Path(folder, "store"))), nprocs=ranks)
        with timed(seconds["launch"]):
            launch(one_all_reduce, ranks, backend="gloo")
        for name, (value,) in seconds.items():
            _say(name=name, value=value)
    if "forkserver" in multiprocessing.get_all_start_methods():
        for method in ("spawn", "forkserver"):
            _say(about=f"memory, {method}")
            for value in launch(own_memory, ranks, backend="gloo", start_method=method):
                _say(name=f"memory, {method}", value=value)
        _say_server_memory()


def _say(**message) -> None:
    print(json.dumps(message), flush=True)


def one_all_reduce(rank: int, world_size: int, device) -> None:
    """What both ways of starting ranks are to do: prove that the world is there."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    if one.item() != world_size:
        raise RuntimeError(f"rank {rank}: {one.item()} ranks took part, should be {world_size}")


def spawned(rank: int, world_size: int, file: str) -> None:
    """The same in a rank of torch.multiprocessing.spawn, which leaves it to us to make the group."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=Path(file).as_uri(), rank=rank, world_size=world_size
    )
    one_all_reduce(rank, world_size, "cpu")
    dist.destroy_process_group()


def own_memory(rank: int, world_size: int, device) -> int:
    """The bytes that would be free again if this rank ended, while all the others are there."""
    import psutil
    import torch.distributed as dist

    one_all_reduce(rank, world_size, device)
    dist.barrier()
    own = psutil.Process().memory_full_info().uss
    dist.barrier()
    return own


def _say_server_memory() -> None:
    """The own memory of the fork server, now that no rank shares it; nothing where the system does not let us look."""
    from multiprocessing import forkserver

    import psutil

    with contextlib.suppress(psutil.Error):
        _say(
            name="memory, server",
            value=psutil.Process(forkserver._forkserver._forkserver_pid).memory_full_info().uss,
        )
