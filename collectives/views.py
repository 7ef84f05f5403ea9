"""What the flags show of a lesson besides its results: pictures and timelines. A step is recorded only if one of them asks for it."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from collectives.launch import launch


@dataclass
class Views:
    """What is wanted of each step. ValueError for a file that cannot be written."""

    timeline: bool = False
    trace: Path | None = None
    picture: bool = False
    save_picture: Path | None = None
    steps: list[tuple[str, list]] = field(default_factory=list)  # names and calls, as far as steps have been recorded
    saved: int = 0

    def __post_init__(self):
        for path in filter(None, (self.trace, self.save_picture)):
            if not path.parent.is_dir():
                raise ValueError(f"{path} cannot be written: there is no folder {path.parent}.")
        if self.save_picture and self.save_picture.suffix not in (".svg", ".png"):
            raise ValueError(f"--save-picture {self.save_picture}: a picture is written as .svg or .png: let the name end so.")

    def launch(self, step, *args, **options) -> list:
        """`collectives.launch`, with a record of the ranks' calls if it is needed."""
        if not (self.timeline or self.trace or self.picture or self.save_picture):
            return launch(step, *args, **options)
        from collectives import record

        pairs = launch(record.recorded(step, tensors=self.picture or self.save_picture is not None), *args, **options)
        self.steps.append((step.__name__, [call for _, calls in pairs for call in calls]))
        return [result for result, _ in pairs]

    def show(self) -> None:
        """Print and write what is wanted of the step that ran last."""
        if not self.steps:
            return
        name, calls = self.steps[-1]
        if self.picture:
            self._print_picture(name, calls)
        if self.timeline:
            from collectives import seconds

            console = _console()
            console.print(seconds.timeline(calls, console.width))
        if self.save_picture:
            self._save(name, calls)
        if self.trace:
            from collectives import trace

            trace.write(self.trace, self.steps)
