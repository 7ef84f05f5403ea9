"""What a lesson shows besides its tables: pictures and traces of its runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.course.console import check_files, print_text, writing
from collectives.course.results import StepReport
from collectives.recording.ending import Ending

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from collectives.recording.call import Call

WIDTH = 120  # characters of a line in a file or pipe


@dataclass
class Display:
    """What to show of each step. ValueError for a file that cannot be written.

    `runs` holds the names and the calls of the steps so far: their trace is one file. `unwritten`:
    the files that could be opened before the run, and not be written after it. Each is said once.
    `has_begun`: whether a step of the lesson has run.
    """

    trace: Path | None = None
    picture: bool = False
    save_picture: Path | None = None
    runs: list[tuple[str, list[Call]]] = field(default_factory=list)
    pictures_saved: int = 0
    unwritten: set[Path] = field(default_factory=set)
    has_begun: bool = False

    def __post_init__(self) -> None:
        if self.save_picture is not None:
            _check_picture(self.save_picture)
        check_files(self.trace, self.save_picture)

    @property
    def record(self) -> str | None:
        """What `launch` has to record, so that it can be shown."""
        if self.picture or self.save_picture:
            return "tensors"
        return "calls" if self.trace else None

    def show(self, report: StepReport) -> None:
        """Print and write what is wanted of a step that was recorded, or that draws itself."""
        if report.calls is None and not drawable(report):
            return
        if self.picture:
            _print_picture(report)
        self.add_to_trace(report.name, report.calls or [])
        if self.save_picture:
            self._save_pictures(report, self.save_picture)

    def add_to_trace(self, name: str, calls: list[Call]) -> None:
        """Write the trace. A step that failed is in it, too, but has no picture."""
        if self.trace:
            from collectives.pictures import trace

            self.runs.append((name, calls))
            with self._writing(self.trace):
                trace.write(self.trace, self.runs)

    def _save_pictures(self, report: StepReport, path: Path) -> None:
        """Write the first picture to the file that was named, the others to files beside it."""
        from collectives.pictures import picture

        drawn = figures(report)
        if not drawn:
            why = "its data cannot be traced, or it calls too often (--trace FILE.json shows all)"
            print(f"{report.name}: no picture: {why}", file=sys.stderr)
        for number, figure in enumerate(drawn, 1):
            file = path
            if self.pictures_saved:
                suffix = f"-{number}" if number > 1 else ""
                file = path.with_stem(f"{path.stem}-{report.name}{suffix}")
            self.pictures_saved += 1
            with self._writing(file):
                picture.save(figure, file)
                print_text(f"{report.name}: picture in {file}", stderr=True)

    @contextlib.contextmanager
    def _writing(self, file: Path) -> Iterator[None]:
        try:
            with writing(file):
                yield
        except ValueError as error:
            if file not in self.unwritten:
                print_text(error, stderr=True)
            self.unwritten.add(file)


def _check_picture(path: Path) -> None:
    if path.suffix not in (".svg", ".png"):
        raise ValueError(
            f"--save-picture {path}: a picture is written as .svg or .png: choose such a name."
        )
    try:
        from collectives.pictures import picture  # noqa: F401
    except ImportError as error:  # no matplotlib
        raise ValueError(str(error)) from None


def drawable(report: StepReport) -> dict[str, list]:
    """What the ranks returned that draws itself: by name, the values of all ranks."""
    rows = [one if isinstance(one, dict) else {"": one} for one in report.results]
    found = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
    return {
        name: values
        for name, values in found.items()
        if all(hasattr(value, "draw") for value in values)
    }


def figures(report: StepReport) -> list[Figure]:
    """What was returned and draws itself, else what the ranks called."""
    if found := drawable(report):
        titles = {
            name: getattr(values[0], "shows", report.name.replace("_", " "))
            for name, values in found.items()
        }
        if len({*titles.values()}) < len(titles):
            titles = {name: f"{title}: {name}" for name, title in titles.items()}
        return [values[0].draw(titles[name], values) for name, values in found.items()]
    from collectives import pictures

    outcomes = enumerate(report.outcomes)
    died = {rank: str(outcome) for rank, outcome in outcomes if outcome.kind is Ending.DIED}
    rows = [one if isinstance(one, dict) else {} for one in report.results]
    roles = [row["role"] for row in rows if "role" in row]
    return pictures.draw(report.calls or [], died=died, roles=roles)


def _print_picture(report: StepReport) -> None:
    from collectives.course import rich_console
    from collectives.pictures import illustration, text

    calls = report.calls or []
    if shown := illustration.data(calls):
        for call in shown:
            rich_console.console(width=WIDTH).print(text.text(call))
        return
    hint = "its data cannot be traced"
    if drawable(report) or illustration.order_matters(calls):
        hint = "try --save-picture"
    print(
        f"{report.name}: no picture, because no collective of all ranks shows where data went; "
        f"{hint}",
        file=sys.stderr,
    )
