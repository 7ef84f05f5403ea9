"""Which frame of a stack a report names, and how to read a stack that faulthandler wrote."""

import linecache
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

Frame = tuple[str, int, str]  # file, line, function
NOWHERE: Frame = ("", 0, "")

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_COURSE = f"{_PACKAGE}_course{os.sep}"  # the programs in the wheel, which are a reader's
_LIBRARY = tuple(str(Path(path).resolve()) for path in {sys.base_prefix, sys.prefix})
_TORCH = f"site-packages{os.sep}torch{os.sep}"


def where(stack: str) -> str:
    """One line for a faulthandler stack: file, line, function and the call that stands there."""
    frames = main_thread(stack)
    if not frames:
        return "an unknown place: it did not answer (stopped, or not yet started)"
    file, line, function = named(frames) or frames[0]
    call = linecache.getline(file, line).strip()
    path = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{path}:{line} in {function}" + (f": {call}" if call else "")


def main_thread(stack: str) -> list[Frame]:
    """The frames of the main thread, innermost first: faulthandler lists it last."""
    threads: list[list[Frame]] = []
    for line in stack.splitlines():
        if "(most recent call first)" in line:
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append((match["file"], int(match["line"]), match["function"]))
    return threads[-1] if threads else []


def named(frames: Iterable[Frame]) -> Frame | None:
    """The frame that a report names; None if all are Python's, torch's or ours.

    This is the innermost frame of the program's own. If all frames are a library's, the program was
    run from inside site-packages. Its file is then the outermost one, and this is the innermost
    frame there.
    """
    # Line 0: the begin of code that a library made, as a dataclass's methods.
    frames = [frame for frame in frames if frame[1]]
    for frame in frames:
        if not is_library(frame[0]):
            return frame
    installed = [frame for frame in frames if _is_installed(frame[0])]
    return next((frame for frame in installed if frame[0] == installed[-1][0]), None)


def named_or_innermost(frames: list[Frame]) -> Frame:
    """The frame that a report names, of those given innermost first; else the innermost."""
    return named(frames) or (*frames, NOWHERE)[0]


def is_library(file: str) -> bool:
    """Whether the file is no program's: of an installed package, Python's own, or ours."""
    if is_ours(file) or file.startswith("<frozen"):
        return True
    return "site-packages" in file or (
        file.startswith(_LIBRARY) and f"{os.sep}lib{os.sep}python" in file
    )


def is_ours(file: str) -> bool:
    """Whether the file is a module of this package."""
    return file.startswith(_PACKAGE) and not file.startswith(_COURSE)


def _is_installed(file: str) -> bool:
    """Whether the file is of an installed package other than torch and this one."""
    return "site-packages" in file and _TORCH not in file and not is_ours(file)
