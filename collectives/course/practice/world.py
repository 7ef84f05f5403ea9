"""One world that runs the cases of an exercise: it ends, and says which ranks are stuck."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.course.practice.board import TICK, Board
from collectives.course.practice.exercise import Exercise
from collectives.course.practice.run_cases import run_cases
from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.rank_spec import LaunchSpec, RankSpec
from collectives.launcher.watch import LaunchWatch
from collectives.launcher.world import World
from collectives.recording.ending import Ending

# Ranks hang that all stand in one call of torch.distributed for so many seconds, counted by
# themselves. A rank that does something else has longer; so have ranks that count nothing, as they
# are stopped or the machine is busy.
HANGS_AFTER = 2.0
SLOW_AFTER = 20.0
_PATIENCE = 60.0
_LIMIT = 600.0  # for the whole world


class Stuck(Exception):
    """The ranks do not go on. kind: hung or slow. story: what the diagnosis says of it, by line."""

    def __init__(self, kind: Ending, story: list[str]):
        super().__init__(kind)
        self.kind, self.story = kind, story


@dataclass
class Ended:
    """How a world ended.

    error: None if all its cases are right. case: the number of the one that failed. notes: by rank
    and number, what is known of it. lines: by rank, of the reader's file.
    """

    error: LaunchError | Stuck | None
    case: int
    notes: list[dict[int, dict[str, Any]]]
    board: Board


class _Watch(LaunchWatch):
    """Watches the places of the ranks, and ends a world that does not go on."""

    def __init__(self, board: Board, report: Callable[[str], None]):
        super().__init__(at_once=False)
        self.board, self.report = board, report
        self.seen: list[tuple[int, int]] = []
        self.moved = time.monotonic()

    def give_files(self, specs: list[RankSpec]) -> list[RankSpec]:
        specs = super().give_files(specs)
        self.at_once = True  # now `look` is called
        return specs

    def look(self) -> None:
        """Raises Stuck if the ranks do not go on."""
        places = self.board.places
        seen = [(place.finished, place.calls) for place in places]
        if seen != self.seen or not any(place.ticks for place in places):
            self.seen, self.moved = seen, time.monotonic()
        unfinished = [places[rank] for rank in self.board.unfinished()]
        waits = [place.in_call and place.ticks * TICK >= HANGS_AFTER for place in unfinished]
        # A rank that has finished and is stopped may not have sent all of its last message.
        if all(waits) and all(place.ticks * TICK >= HANGS_AFTER for place in places):
            raise Stuck(Ending.HUNG, self._story())
        works = [place.ticks * TICK >= SLOW_AFTER for place in unfinished]
        if all(works) or time.monotonic() > self.moved + _PATIENCE:
            raise Stuck(Ending.SLOW, [])
        self._tell(waits)

    def _tell(self, waits: list[bool]) -> None:
        late = [str(rank) for rank, w in zip(self.board.unfinished(), waits, strict=False) if not w]
        is_slow = time.monotonic() > self.moved + HANGS_AFTER
        waiting = f", slow, still waiting for rank {', '.join(late)}" if is_slow else ""
        self.report(f"case {self.board.case + 1}{waiting}")

    def _story(self) -> list[str]:
        verdict = self._monitor.last_word() if self.files else None
        if verdict is None or not verdict.kind.is_explained:
            return []
        # Where each rank stands is told without it.
        return [verdict.headline, *(f"  {note}" for note in verdict.notes)]

    def check(self) -> None:
        """Right results are enough."""

    def explain(self, error: LaunchError) -> LaunchError:
        return error


def run_world(
    exercise: Exercise,
    program: str | Callable,
    size: int,
    report: Callable[[str], None],
    prints: bool,
) -> Ended:
    """Run the cases in a world of this size. `report` is told which case is running."""
    with tempfile.TemporaryDirectory() as folder:
        board, error = Board(Path(folder, "board"), size), None
        args = exercise.name, program, folder, prints
        spec = LaunchSpec(World(size, "gloo", "cpu", _LIMIT), run_cases, args)
        try:
            start.start(spec, _Watch(board, report))
        except (LaunchError, Stuck) as caught:
            error = caught
        notes = [_read(Path(folder, str(rank))) for rank in range(size)]
    return Ended(error, board.case, notes, board)


def _read(file: Path) -> dict[int, dict[str, Any]]:
    """What a rank noted of each case, by number; -1: of the file."""
    found: dict[int, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            recorded = json.loads(line)
        except ValueError:  # the rank died while it wrote
            continue
        found.setdefault(recorded["case"], {}).update(recorded)
    return found
