"""What a launch costs, as ratios of timings that were taken in turn in one run.

This module imports nothing heavy: the ranks of `torch.multiprocessing.spawn` import it too, and
their start is timed.
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


def measure(rounds: int, report: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; call `report` with what is being done, in words."""
    return rows(launches(rounds, report) | _processes(rounds, report))


def rows(found: dict[str, list[float]]) -> list[Row]:
    """The table, from all figures by name: seconds, and bytes of memory."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    table = [
        _row(
            medians,
            f"second launch of {RANKS} ranks",
            ("spawn", "torch.multiprocessing.spawn"),
            ("launch", "launch"),
            ">= 20x, B <= 0.2 s",
            lambda ratio: ratio >= 20 and medians["launch"] <= 0.2,
        ),
        _row(
            medians,
            "a lesson, start to end",
            ("lesson", "python lessons/broadcast.py"),
            ("import torch", 'python -c "import torch"'),
            "<= 2.2x",
            lambda ratio: ratio <= 2.2,
        ),
        _row(
            medians,
            "the same under torchrun",
            ("torchrun", "torchrun lessons/broadcast.py"),
            ("lesson", "python lessons/broadcast.py"),
            ">= 1.7x",
            lambda ratio: ratio >= 1.7,
        ),
    ]
    return [*table, _memory_row(medians)] if "memory, forkserver" in medians else table


def _row(
    medians: dict[str, float],
    what: str,
    first: tuple[str, str],
    second: tuple[str, str],
    target: str,
    is_met: Callable[[float], bool],
) -> Row:
    """A row of seconds. `first` and `second` are the name of a figure, and how it is shown."""
    shown = [f"{label} {medians[name]:.2f} s" for name, label in (first, second)]
    ratio = medians[first[0]] / medians[second[0]]
    return Row(what, *shown, ratio, target, "yes" if is_met(ratio) else "no")


def _memory_row(medians: dict[str, float]) -> Row:
    """What a rank costs in memory, and what a world saves. It has no target."""
    spawn, forkserver = medians["memory, spawn"], medians["memory, forkserver"]
    server = medians.get("memory, server", 0)
    saved = (RANKS * (spawn - forkserver) - server) / _MIB
    counted = "counted" if server else "not counted"
    note = f"{RANKS} ranks save {saved:.0f} MiB, their server's own {counted}"
    first, second = f"spawn {spawn / _MIB:.0f} MiB", f"forkserver {forkserver / _MIB:.0f} MiB"
    return Row("own memory of a rank", first, second, spawn / forkserver, note, "-")


def launches(
    rounds: int, report: Callable[[str], None], ranks: int = RANKS
) -> dict[str, list[float]]:
    """Figures by name, from a fresh process.

    Its main module is empty, for the ranks that spawn starts run that again.
    """
    found: dict[str, list[float]] = {}
    code = f"from collectives.bench import launch; launch.print_launches({rounds}, {ranks})"
    with process([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as started:
        for line in started.stdout:
            message = json.loads(line)
            if "about" in message:
                report(message["about"])
            else:
                found.setdefault(message["name"], []).append(message["value"])
    return found


def _processes(rounds: int, report: Callable[[str], None]) -> dict[str, list[float]]:
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
            report(f"whole processes, round {number + 1} of {rounds}: {name}")
            command = [sys.executable, *arguments]
            with timed(found[name]):
                with process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE):
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
        _print_message(about=f"launches, round {number + 1} of {rounds}")
        seconds: dict[str, list[float]] = {"spawn": [], "launch": []}
        with tempfile.TemporaryDirectory() as folder, timed(seconds["spawn"]):
            torch.multiprocessing.spawn(spawned, (ranks, str(Path(folder, "store"))), nprocs=ranks)
        with timed(seconds["launch"]):
            launch(one_all_reduce, ranks, backend="gloo")
        for name, (value,) in seconds.items():
            _print_message(name=name, value=value)
    if "forkserver" in multiprocessing.get_all_start_methods():
        for method in ("spawn", "forkserver"):
            _print_message(about=f"memory, {method}")
            for value in launch(own_memory, ranks, backend="gloo", start_method=method):
                _print_message(name=f"memory, {method}", value=value)
        _print_server_memory()


def _print_message(**message) -> None:
    """One line of JSON for `launches`."""
    print(json.dumps(message), flush=True)


def one_all_reduce(rank: int, world_size: int, device) -> None:
    """What the ranks do, however they are started: prove that all of them are there."""
    import torch
    import torch.distributed as dist

    count = torch.ones(1)
    dist.all_reduce(count)
    if count.item() != world_size:
        raise RuntimeError(f"rank {rank}: {count.item()} ranks took part, should be {world_size}")


def spawned(rank: int, world_size: int, file: str) -> None:
    """The same in a rank of torch.multiprocessing.spawn, which does not start the group itself."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=Path(file).as_uri(), rank=rank, world_size=world_size
    )
    one_all_reduce(rank, world_size, "cpu")
    dist.destroy_process_group()


def own_memory(rank: int, world_size: int, device) -> int:
    """The bytes that only this rank uses (its unique set size), while all ranks are there."""
    import psutil
    import torch.distributed as dist

    one_all_reduce(rank, world_size, device)
    dist.barrier()
    own = psutil.Process().memory_full_info().uss
    dist.barrier()
    return own


def _print_server_memory() -> None:
    """The fork server's own memory, now that no rank shares it, if the system lets us see it."""
    from multiprocessing import forkserver

    import psutil

    with contextlib.suppress(psutil.Error):
        _print_message(
            name="memory, server",
            value=psutil.Process(forkserver._forkserver._forkserver_pid).memory_full_info().uss,
        )
