"""What a lesson shows besides its results: pictures and timelines. A step is recorded only if one of them is wanted."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

from collectives.launch import launch

NEEDS_MATPLOTLIB = "pictures need matplotlib: install it with pip install 'collectives[notebooks]', or `pip install matplotlib`."


@dataclass
class Views:
    """What is wanted of each step. ValueError for a file that cannot be written."""

    timeline: bool = False
    trace: Path | None = None
    picture: bool = False
    save_picture: Path | None = None
    steps: list[tuple[str, list]] = field(default_factory=list)  # the name and the calls of each step that was recorded
    saved: int = 0

    def __post_init__(self):
        for path in filter(None, (self.trace, self.save_picture)):
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"{path} cannot be written: name a file in a folder that exists.")
        if self.save_picture and self.save_picture.suffix not in (".svg", ".png"):
            raise ValueError(f"--save-picture {self.save_picture}: a picture is written as .svg or .png: let the name end so.")
        if self.save_picture and not importlib.util.find_spec("matplotlib"):
            raise ValueError(NEEDS_MATPLOTLIB)

    def launch(self, step, *args, **options) -> list:
        """`collectives.launch`, with a record of the ranks' calls if that is needed."""
        tensors = self.picture or self.save_picture is not None
        if not (tensors or self.timeline or self.trace):
            return launch(step, *args, **options)
        from collectives import record

        pairs = launch(record.recorded(step, tensors=tensors), *args, **options)
        self.steps.append((step.__name__, [call for _, calls in pairs for call in calls]))
        return [result for result, _ in pairs]

    def show(self) -> None:
        """Print and write what is wanted of the step that ran last."""
        if not self.steps:
            return
        if self.picture:
            self._print_picture(*self.steps[-1])
        if self.timeline:
            from collectives import seconds

            console = _console()
            console.print(seconds.timeline(self.steps[-1][1], console.width))
        if self.save_picture:
            self._save_picture(*self.steps[-1])
        if self.trace:
            from collectives import trace

            trace.write(self.trace, self.steps)

    def display(self) -> None:
        """Show the picture of the step that ran last under its cell of a notebook."""
        from IPython.display import display

        if not importlib.util.find_spec("matplotlib"):
            print(NEEDS_MATPLOTLIB, file=sys.stderr)
            return
        from collectives import illustration, picture

        if self.steps and (figure := illustration.illustrate(*self.steps[-1])):
            words = figure.get_label()
            data = {"image/svg+xml": picture.svg(figure).decode(), "text/plain": words}
            display(data, raw=True, metadata={"image/svg+xml": {"alt": words}})

    def _print_picture(self, name: str, calls: list) -> None:
        from collectives import illustration, picture_text

        if found := illustration.data(calls):
            _console().print(picture_text.text(**vars(found)))
        else:
            hint = "try --timeline" if illustration.order_matters(calls) else "its data cannot be traced"
            print(f"{name}: no picture: no collective among all ranks shows where data went; {hint}", file=sys.stderr)

    def _save_picture(self, name: str, calls: list) -> None:
        """The first picture goes into the file that was named; those of further steps beside it, with the step's name."""
        from collectives import illustration, picture

        if (figure := illustration.illustrate(name, calls)) is None:
            print(f"{name}: no picture: its data cannot be traced", file=sys.stderr)
            return
        path = self.save_picture.with_stem(f"{self.save_picture.stem}-{name}") if self.saved else self.save_picture
        self.saved += 1
        picture.save(figure, path)
        print(f"{name}: picture in {path}", file=sys.stderr)


def _console():
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)
