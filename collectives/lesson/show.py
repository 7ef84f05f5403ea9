"""What a lesson shows besides its results: pictures and timelines of the run itself.

A step is recorded only if one of them is wanted.
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.launcher.place import launcher_place
from collectives.lesson.outcome import RankOutcome
from collectives.lesson.results import Cables, Curve, Pairs, Times
from collectives.lesson.steps import Played, Steps

# What a rank can return to be drawn.
Shown = Curve | Times | Steps | Played


@dataclass
class Display:
    """What to show of each step. ValueError for a file that cannot be written.

    `steps` holds the name and the calls of each step recorded so far, `noticed` what the ranks
    noticed in the last of them, and `drawn` the curves and steps that they returned there, by name.
    """

    timeline: bool = False
    trace: Path | None = None
    picture: bool = False
    save_picture: Path | None = None
    steps: list[tuple[str, list]] = field(default_factory=list)
    noticed: list = field(default_factory=list)
    drawn: dict[str, list[Shown]] = field(default_factory=dict)
    pictures_saved: int = 0

    def __post_init__(self):
        for path in filter(None, (self.trace, self.save_picture)):
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"{path} cannot be written: name a file in a folder that exists.")
        if self.save_picture is None:
            return
        if self.save_picture.suffix not in (".svg", ".png"):
            raise ValueError(
                f"--save-picture {self.save_picture}: a picture is written as .svg or .png: "
                "let the name end so."
            )
        try:
            from collectives.pictures import picture  # noqa: F401
        except ImportError as error:  # no matplotlib
            raise ValueError(str(error)) from None

    def launch(self, step: Callable, *args, **options) -> list:
        """`collectives.launch`, with a record of the ranks' calls if something shows them."""
        tensors = self.picture or self.save_picture is not None
        if not (tensors or self.timeline or self.trace):
            return launch(step, *args, **options)
        from collectives.recording import record

        with tempfile.TemporaryDirectory() as folder:
            recorded = _logged(record.recorded(step, tensors=tensors), folder)
            try:
                pairs = launch(recorded, *args, **options)
            except LaunchError:
                if launcher_place() is None:  # else the other ranks' logs are elsewhere
                    self.steps.append((step.__name__, _read(folder)))
                raise
            finally:
                self.noticed = [hint for log in _logs(folder) for hint in log.noticed()]
        self.steps.append((step.__name__, [call for _, calls in pairs for call in calls]))
        results = [result for result, _ in pairs]
        self.drawn = _drawn(results)
        return results

    def keep(self, name: str, found: object) -> None:
        """Note what a step in a lab returned: nothing of it is recorded."""
        if isinstance(found, Pairs | Cables):
            self.steps.append((name, []))
            self.drawn = {"": [found]}

    def show(self, name: str, outcomes: list[RankOutcome]) -> None:
        """Print and write what is wanted of this step, if it is the last step recorded.

        `outcomes`: of a mistake, by rank.
        """
        if not self._is_last(name):
            return
        if self.picture:
            self._print_picture(*self.steps[-1])
        self.show_times(name)
        if self.save_picture:
            self._save_picture(*self.steps[-1], outcomes)

    def show_times(self, name: str) -> None:
        """Show the timeline and write the trace. A step that failed has them, but no picture."""
        if not self._is_last(name):
            return
        if self.timeline:
            from collectives.pictures import wall_clock

            console = _console()
            console.print(wall_clock.timeline(self.steps[-1][1], console.width))
        if self.trace:
            from collectives.pictures import trace

            trace.write(self.trace, self.steps)

    def _is_last(self, name: str) -> bool:
        return bool(self.steps) and self.steps[-1][0] == name

    def show_in_notebook(self, name: str, outcomes: list[RankOutcome]) -> None:
        """Show the pictures of the last step under its cell."""
        from IPython.display import display

        try:
            from collectives.pictures import picture
        except ImportError as error:  # no matplotlib
            print(error, file=sys.stderr)
            return
        _, calls = self.steps[-1] if self.steps else (name, [])
        for figure in _figures(name, calls, outcomes, self.drawn):
            words = figure.get_label()
            data = {"image/svg+xml": picture.svg(figure).decode(), "text/plain": words}
            display(data, raw=True, metadata={"image/svg+xml": {"alt": words}})

    def _print_picture(self, name: str, calls: list) -> None:
        from collectives.pictures import illustration, text

        if found := illustration.data(calls):
            _console().print(text.text(**vars(found)))
            return
        hint = "its data cannot be traced"
        if illustration.order_matters(calls):
            hint = "try --timeline"
        if self.drawn:
            hint = "try --save-picture"
        print(
            f"{name}: no picture: no collective among all ranks shows where data went; {hint}",
            file=sys.stderr,
        )

    def _save_picture(self, name: str, calls: list, outcomes: list[RankOutcome]) -> None:
        """Write the first picture to the file that was named, the others to files beside it."""
        from collectives.pictures import picture

        figures = _figures(name, calls, outcomes, self.drawn)
        if not figures:
            print(f"{name}: no picture: its data cannot be traced", file=sys.stderr)
        for number, figure in enumerate(figures):
            path = self.save_picture
            if self.pictures_saved:
                path = path.with_stem(f"{path.stem}-{name}{'-damage' * (number > 0)}")
            self.pictures_saved += 1
            picture.save(figure, path)
            print(f"{name}: picture in {path}", file=sys.stderr)


def _drawn(results: list) -> dict[str, list[Shown]]:
    """The curves and the steps that every rank returned, by their names."""
    dicts = [result if isinstance(result, dict) else {} for result in results]
    names = [name for name, value in dicts[0].items() if isinstance(value, Shown)]
    return {name: [one[name] for one in dicts] for name in names}


def _figures(
    name: str,
    calls: list,
    outcomes: list[RankOutcome],
    drawn: dict[str, list[Shown]],
) -> list:
    """The curves and steps that were returned, or what was done and damaged, if it can be drawn.

    If a rank died, how far the others came is luck.
    """
    if drawn:
        return _figures_of(name, drawn)
    from collectives.pictures import damage, illustration

    died = {rank: str(one) for rank, one in enumerate(outcomes) if one.kind == "died"}
    calls = [
        replace(call, error=died.get(call.rank)) if call.left is None else call for call in calls
    ]
    wrong = {rank: one.detail for rank, one in enumerate(outcomes) if one.kind == "wrong"}
    found = [illustration.illustrate(name, calls, is_cut_short=bool(died))]
    found += [] if died else [damage.draw(wrong, title=name)]
    return [figure for figure in found if figure]


def _figures_of(title: str, drawn: dict[str, list[Shown]]) -> list:
    """One figure for all curves over the steps, and one for each other name."""
    from collectives.lesson import steps
    from collectives.pictures import cables, crossings, curves, pairs

    lines = {name: ranks for name, ranks in drawn.items() if isinstance(ranks[0], Curve)}
    found = []
    if lines:
        values = {name: [one.values for one in ranks] for name, ranks in lines.items()}
        first = next(iter(lines.values()))[0]
        axes = {"label": first.label, "log": first.log, "done": first.done}
        found.append(curves.draw(values, title=title, **axes))
    others = {name: ranks for name, ranks in drawn.items() if name not in lines}
    for name, ranks in others.items():
        heading = f"{title}: {name}" if len(others) > 1 else title
        first = ranks[0]
        if isinstance(first, Times):
            found.append(crossings.figure(first.curves, {}, heading, first.against))
        elif isinstance(first, Pairs):
            found.append(pairs.draw(first.together, first.pairs, title=heading))
        elif isinstance(first, Cables):
            wirings = [cables.Wiring(*panel) for panel in first.panels]
            found.append(cables.draw(wirings, title=heading))
        else:
            found.append(steps.draw(heading, ranks))
    return found


def _logged(step: Callable, folder: str) -> Callable:
    """The same step, whose calls also go into a file that is there when the rank has died."""

    def logged_step(rank, world_size, device):
        from collectives.recording import call_log, record

        with (Path(folder) / str(rank)).open("xb+") as file:
            recording = record.Recording(call_log.Writer(file, rank, world_size))
        recording.begin()
        try:
            return step(rank, world_size, device)
        finally:
            recording.end()

    return functools.wraps(step)(logged_step)


def _read(folder: str) -> list:
    calls = {
        (call.rank, call.number): call for log in _logs(folder) for call in log.poll(has_ended=True)
    }
    return list(calls.values())


def _logs(folder: str) -> list:
    from collectives.recording import call_log

    logs = []
    for path in Path(folder).iterdir():
        with path.open("rb+") as file:
            logs.append(call_log.Reader(file))
    return logs


def _console():
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)
