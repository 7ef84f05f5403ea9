"""Which frame of a stack a report names: of the own stack, or of one that faulthandler wrote."""

import functools
import linecache
import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

Frame = tuple[str, int, str]  # file, line, function
NOWHERE: Frame = ("", 0, "")

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
# The modules of Python in which a process waits for others.
_WAITING = re.compile(
    r"(multiprocessing|asyncio|concurrent)[\\/][^\\/]+(?:[\\/][^\\/]+)?$"
    r"|(queue|threading|selectors|socket|socketserver|subprocess)\.py$"
)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_COURSE = f"{_PACKAGE}_course{os.sep}"  # the programs in the wheel, which are a reader's
_TORCH = f"site-packages{os.sep}torch{os.sep}"
# Python's own folder, also that of another Python than ours; Debian's packages.
_PYTHONS = re.compile(r"[/\\]lib[/\\]python3(\.\d+)?[/\\]")

# The kinds of code. The caller is never inside torch or this package; it is in another library only
# if the stack has no code of the program.
_INNER, _LIBRARY, _OWN = range(3)

# The call sites found so far, by code object and instruction: in a long function it takes long to
# find a line number. The code object is kept alive, so that no other gets its id.
_own: dict[tuple[int, int], tuple[CodeType, Frame]] = {}


def caller() -> Frame:
    """The file, line and function that called the function that asks.

    ("", 0, "") if the stack has no such place.
    """
    frame = first = sys._getframe(1).f_back
    if first is None:  # C called it, as it calls the functions of atexit
        return "", 0, ""
    key = id(first.f_code), first.f_lasti
    known = _own.get(key)
    if known is not None:
        return known[1]
    libraries = []
    while frame is not None and (kind := _kind(frame.f_code.co_filename)) != _OWN:
        if kind == _LIBRARY:
            libraries.append(_place(frame))
        frame = frame.f_back
    place = _place(frame) if frame else named_or_innermost(libraries)
    if frame is first:
        if len(_own) >= 4096:  # a program that makes code as it runs
            _own.clear()
        _own[key] = first.f_code, place
    return place


def way_here() -> str:
    """The program's own lines above that of `caller`, innermost first, as in f:7 in g, f:9."""
    frame: FrameType | None = sys._getframe(1)
    found: list[str] = []
    while frame is not None and len(found) < 4:
        if _kind(frame.f_code.co_filename) == _OWN:
            file, line, function = _place(frame)
            inside = "" if function == "<module>" else f" in {function}"
            found.append(f"{os.path.basename(file)}:{line}{inside}")
        frame = frame.f_back
    return ", ".join(found[1:])


def _place(frame: FrameType) -> Frame:
    return frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name


@functools.cache
def _kind(file: str) -> int:
    import torch

    if is_ours(file) or file.startswith(("<frozen", os.path.dirname(torch.__file__) + os.sep)):
        return _INNER
    return _LIBRARY if is_library(file) else _OWN


def where(stack: str) -> str:
    """One line for a faulthandler stack: file, line, function and the call that stands there."""
    frames = main_thread(stack)
    if not frames:
        return "an unknown place: it did not answer (stopped, or not yet started)"
    file, line, function = named(frames) or frames[0]
    call = linecache.getline(file, line).strip()
    path = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{path}:{line} in {function}" + (f": {call}" if call else "")


def stands() -> list[Frame]:
    """The frames in which the main thread of this process stands now, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[Frame] = []
    while frame is not None:
        found.append(_place(frame))
        frame = frame.f_back
    return found


def line_of(file: str, frames: Iterable[Frame]) -> int:
    """The first line of this file among the frames; 0 if there is none."""
    return next((line for name, line, _ in frames if name == file), 0)


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


# What torch does in a line of the program, by the functions in which it does that.
_TORCH_DOES = {
    ("distributed.py", "_sync_buffers"): "DDP's forward broadcasts its buffers",
    ("distributed.py", "_pre_forward"): "DDP's forward broadcasts the order of its buckets",
    ("distributed.py", "__init__"): "DDP's constructor compares and broadcasts the parameters",
    ("graph.py", "_engine_run_backward"): "DDP averages gradients in backward",
}
_DDP = os.path.join("torch", "nn", "parallel", "distributed.py")
_BACKWARD = os.path.join("torch", "autograd", "graph.py")


def torch_does(frames: list[Frame]) -> str:
    """What torch does in the line of the program; empty where that is not known.

    `frames`: innermost first. Only a call that C++ makes for DDP stands directly below backward.
    """
    for at, (file, _, function) in enumerate(frames):
        if not is_ours(file) and _TORCH not in file and not file.startswith("<frozen"):
            break
        if file.endswith(_DDP) or (file.endswith(_BACKWARD) and not at):
            does = _TORCH_DOES.get((os.path.basename(file), function))
            if does is not None:
                return does
    return ""


def is_library(file: str) -> bool:
    """Whether the file is no program's: of an installed package, Python's own, or ours."""
    if is_ours(file) or file.startswith("<frozen"):
        return True
    if file.startswith(_COURSE):
        return False
    return "site-packages" in file or bool(_PYTHONS.search(file))


def waits_for_others(file: str) -> bool:
    """Whether this file's code waits for other processes, threads or machines: Python's own does.

    A server of logs stands there as long as nobody sends it anything.
    """
    is_pythons = is_library(file) and "site-packages" not in file and not is_ours(file)
    return is_pythons and bool(_WAITING.search(file))


def is_ours(file: str) -> bool:
    """Whether the file is a module of this package."""
    return file.startswith(_PACKAGE) and not file.startswith(_COURSE)


def _is_installed(file: str) -> bool:
    """Whether the file is of an installed package other than torch and this one."""
    return "site-packages" in file and _TORCH not in file and not is_ours(file)
