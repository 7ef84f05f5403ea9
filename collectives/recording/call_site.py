"""Who calls: the file, line and function of the innermost frame that is neither torch's nor ours, cheaply."""

import functools
import os
import sys
from types import CodeType, FrameType

import torch

from . import stack

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__))

# torch and this package are never told; other libraries only where the program has no code of its own on the stack.
_INNER, _LIBRARY, _OWN = range(3)

# By code and instruction, the line that it is: to find its number takes long in a long function. Each code is kept, so that no
# other gets its id.
_Place = tuple[str, int, str]
_own: dict[tuple[int, int], tuple[CodeType, _Place]] = {}


def caller() -> _Place:
    """The place from which the function that asks was called; ("", 0, "") where the stack has none."""
    frame = first = sys._getframe(1).f_back
    if first is None:  # called by C alone, as what was given to atexit is
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
    place = _place(frame) if frame else stack.named(libraries) or (*libraries, stack.NOWHERE)[0]
    if frame is first:
        if len(_own) >= 4096:  # a program that makes code as it runs
            _own.clear()
        _own[key] = first.f_code, place
    return place


def _place(frame: FrameType) -> _Place:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


@functools.cache
def _kind(file: str) -> int:
    ours = (
        file.startswith(_HERE + os.sep) and f"{os.sep}lessons{os.sep}" not in file
    )  # the wheel holds lessons, too
    if ours or file.startswith(("<frozen", _TORCH)):
        return _INNER
    return _LIBRARY if stack.is_library(file) else _OWN
