"""Files that hold what was measured: whether they can be written is known before."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def check(*files: Path | None) -> None:
    """Raises ValueError if one cannot be written. What stands in a file stays there for now."""
    for file in filter(None, files):
        with writing(file), file.open("a"):
            pass


def write(file: Path, text: str) -> None:
    """Raises ValueError if it cannot be written."""
    with writing(file):
        # A lone surrogate cannot be encoded: it becomes \udc80, which JSON reads as itself.
        file.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Inside, what the system says against writing this file is a ValueError in one sentence."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{file} cannot be written: {error.strerror or error}.") from None
