"""Read a stack that faulthandler wrote: which thread matters, which frame is the program's own, and what it says there."""

import linecache
import os
import re
import sys
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = tuple(str(Path(path).resolve()) for path in {sys.base_prefix, sys.prefix})


def where(stack: str) -> str:
    """One line for a faulthandler stack: file, line, function and the call that stands there."""
    frames = main_thread(stack)
    if not frames:
        return "an unknown place: it did not answer (stopped, or not yet started)"
    own = [frame for frame in frames if not is_library(frame["file"])]
    frame = (own or frames)[0]
    call = linecache.getline(frame["file"], int(frame["line"])).strip()
    path = (
        os.path.relpath(frame["file"])
        if frame["file"].startswith(os.getcwd() + os.sep)
        else frame["file"]
    )
    return f"{path}:{frame['line']} in {frame['function']}" + (f": {call}" if call else "")


def main_thread(stack: str) -> list[dict[str, str]]:
    """The frames, innermost first, of the thread that runs the rank's function: the last one that faulthandler lists."""
    threads: list[list[dict[str, str]]] = []
    for line in stack.splitlines():
        if "(most recent call first)" in line:
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(match.groupdict())
    return threads[-1] if threads else []


def is_library(file: str) -> bool:
    if file.startswith((_PACKAGE, "<frozen")):
        return True
    return "site-packages" in file or (
        file.startswith(_LIBRARY) and f"{os.sep}lib{os.sep}python" in file
    )
