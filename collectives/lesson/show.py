"""What a lesson shows besides its results: pictures and timelines. A step is recorded only if one of them is wanted."""

import functools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from collectives.launcher import place
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch


@dataclass
class Views:
    """What is wanted of each step. ValueError for a file that cannot be written."""

    timeline: bool = False
    trace: Path | None = None
    picture: bool = False
    save_picture: Path | None = None
    steps: list[tuple[str, list]] = field(
        default_factory=list
    )  # the name and the calls of each step that was recorded
    noticed: list = field(
        default_factory=list
    )  # what the ranks noticed in the step that was recorded last
    saved: int = 0

    def __post_init__(self):
        for path in filter(None, (self.trace, self.save_picture)):
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"{path} cannot be written: name a file in a folder that exists.")
        if self.save_picture and self.save_picture.suffix not in (".svg", ".png"):
            raise ValueError(
                f"--save-picture {self.save_picture}: a picture is written as .svg or .png: let the name end so."
            )
        if self.save_picture:
            try:
                from collectives.pictures import picture  # noqa: F401
            except ImportError as error:
                raise ValueError(str(error)) from None

    def launch(self, step, *args, **options) -> list:
        """`collectives.launch`, with a record of the ranks' calls if that is needed."""
        tensors = self.picture or self.save_picture is not None
        if not (tensors or self.timeline or self.trace):
            return launch(step, *args, **options)
        from collectives.recording import record

        with tempfile.TemporaryDirectory() as folder:
            try:
                pairs = launch(
                    _logged(record.recorded(step, tensors=tensors), folder), *args, **options
                )
            except LaunchError:
                if place.joined() is None:  # else the other ranks' logs are elsewhere
                    self.steps.append((step.__name__, _read(folder)))
                raise
            finally:
                self.noticed = [one for log in _logs(folder) for one in log.noticed()]
        self.steps.append((step.__name__, [call for _, calls in pairs for call in calls]))
        return [result for result, _ in pairs]

    def show(self, name: str) -> None:
        """Print and write what is wanted of this step, if it was the last to be recorded."""
        if not self.steps or self.steps[-1][0] != name:
            return
        if self.picture:
            self._print_picture(*self.steps[-1])
        self.show_times(name)
        if self.save_picture:
            self._save_picture(*self.steps[-1])

    def show_times(self, name: str) -> None:
        """The same of a step that may have failed: its data are lost, and its calls are not."""
        if not self.steps or self.steps[-1][0] != name:
            return
        if self.timeline:
            from collectives.pictures import wall_clock

            console = _console()
            console.print(wall_clock.timeline(self.steps[-1][1], console.width))
        if self.trace:
            from collectives.pictures import trace

            trace.write(self.trace, self.steps)

    def display(self) -> None:
        """Show the picture of the step that ran last under its cell of a notebook."""
        from IPython.display import display

        try:
            from collectives.pictures import illustration, picture
        except ImportError as error:  # no matplotlib
            print(error, file=sys.stderr)
            return
        if self.steps and (figure := illustration.illustrate(*self.steps[-1])):
            words = figure.get_label()
            data = {"image/svg+xml": picture.svg(figure).decode(), "text/plain": words}
            display(data, raw=True, metadata={"image/svg+xml": {"alt": words}})

    def _print_picture(self, name: str, calls: list) -> None:
        from collectives.pictures import illustration, text

        if found := illustration.data(calls):
            _console().print(text.text(**vars(found)))
        else:
            hint = (
                "try --timeline"
                if illustration.order_matters(calls)
                else "its data cannot be traced"
            )
            print(
                f"{name}: no picture: no collective among all ranks shows where data went; {hint}",
                file=sys.stderr,
            )

    def _save_picture(self, name: str, calls: list) -> None:
        """The first picture goes into the file that was named; those of further steps beside it, with the step's name."""
        from collectives.pictures import illustration, picture

        if (figure := illustration.illustrate(name, calls)) is None:
            print(f"{name}: no picture: its data cannot be traced", file=sys.stderr)
            return
        path = (
            self.save_picture.with_stem(f"{self.save_picture.stem}-{name}")
            if self.saved
            else self.save_picture
        )
        self.saved += 1
        picture.save(figure, path)
        print(f"{name}: picture in {path}", file=sys.stderr)


def _logged(step, folder: str):
    """The same step, whose calls also go into a file that outlives the rank."""

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
