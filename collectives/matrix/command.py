"""The command `collectives matrix`: select cells, measure them, print the grid, compare."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from collectives.backends import claims
from collectives.launcher import place as world
from collectives.matrix import (
    compare_command,
    measured,
    recorded,
    run,
    selection,
    supervise,
    terminal,
)
from collectives.spec import probe
from collectives.spec.cell import Cell


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None or an empty tuple where it says nothing."""

    backend: list[str] | None = None
    device: list[str] | None = None
    collective: list[str] | None = None
    dtype: list[str] | None = None
    op: list[str] | None = None
    world_sizes: list[int] | None = None
    quick: bool = False
    timeout: float | None = None
    json_file: Path | None = None
    html_file: Path | None = None
    claims_file: Path | None = None
    against: str | None = None
    modules: tuple[str, ...] = ()

    @property
    def is_selection(self) -> bool:
        """Whether some cells are left out on purpose."""
        names = self.backend, self.device, self.collective, self.dtype, self.op, self.world_sizes
        return self.quick or any(names)


def execute(request: Request) -> int:
    """Measure and report; the exit status. Under torchrun only rank 0 prints."""
    prints = True
    try:
        place = world.launcher_place()
        prints = place is None or place.rank == 0
        _check(request, place)
        cells = _select(request, place)
    except (ValueError, ImportError, OSError) as error:
        if prints:
            print(f"collectives matrix: {error}", file=sys.stderr)
        return 2
    found, interrupted = _measure(request, cells, place, prints)
    if not prints:
        return 130 if interrupted else 0
    matrix = run.document(found)
    if request.json_file is not None:
        recorded.write(matrix, request.json_file)
    if request.html_file is not None:
        compare_command.html(matrix, request.html_file)
    terminal.print_grid(found)
    if interrupted:
        print(f"\ninterrupted: {len(found)} of {len(cells)} cells were tried", file=sys.stderr)
        return 130
    return _compare(request, matrix)


def _check(request: Request, place: world.Place | None) -> None:
    """Refuse at once what would fail after a minute of measuring."""
    sizes, timeout = request.world_sizes, request.timeout
    if place and place.meeting is None:
        raise ValueError(
            f"{place.launcher} started this process: start the matrix by itself, or under torchrun "
            "or srun."
        )
    if place and sizes not in (None, [place.world_size]):
        raise ValueError(
            f"--nproc {sizes[0]}, but {place.launcher} started {place.world_size} ranks: "
            "leave --nproc out."
        )
    for size in sizes or ():
        if size < 1:
            raise ValueError(f"--nproc {size} is not a number of ranks: use a whole number from 1.")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ValueError(f"--timeout {timeout:g} is not a time limit: use seconds, more than 0.")
    for file in filter(None, (request.json_file, request.html_file)):
        with file.open("a"):
            pass
    claims.load(request.claims_file)
    if request.against is not None:
        compare_command.other(request.against)


def _select(request: Request, place: world.Place | None) -> list[Cell]:
    probe.import_modules(request.modules)
    return selection.select(
        request.backend,
        request.collective,
        request.dtype,
        request.op,
        [place.world_size] if place else request.world_sizes,
        request.quick,
        request.device,
    )


def _measure(
    request: Request, cells: list[Cell], place: world.Place | None, prints: bool
) -> tuple[list[dict], bool]:
    """The measured cells in the order of `cells`, and whether Ctrl-C ended the run early."""
    arguments = cells, request.modules, request.timeout
    answers = supervise.measure(place, *arguments) if place else run.measure(*arguments)
    if prints:
        answers = terminal.show_progress(answers, len(cells))
    found, interrupted = [], False
    try:
        for answer in answers:
            found.append(answer)
    except KeyboardInterrupt:
        interrupted = True
    order = {measured.key(vars(cell)): number for number, cell in enumerate(cells)}
    return sorted(found, key=lambda cell: order[measured.key(cell)]), interrupted


def _compare(request: Request, matrix: dict) -> int:
    """Print how the matrix compares with the claims and with --against; the exit status."""
    sizes = [*(request.world_sizes or ()), 2]
    everything = selection.select(request.backend, world_sizes=sizes, device=request.device)
    probes = [dataclasses.asdict(cell) for cell in everything]
    reports = [compare_command.claims(matrix, request.claims_file, probes)]
    if request.against is not None:
        reports.append(compare_command.against(matrix, request.against, request.is_selection))
    for text, _ in reports:
        if text:
            print(f"\n{text}")
    if any(status for _, status in reports):
        return 1
    return 0 if any(map(measured.is_measured, matrix["cells"])) else 3
