"""Find the line that makes a call: the innermost one that is outside of torch and this package."""

import functools
import os
import sys
from types import CodeType, FrameType

import torch

from . import stack

_TORCH = os.path.dirname(torch.__file__) + os.sep

# The kinds of code. The caller is never inside torch or this package; it is in another library only
# if the stack has no code of the program.
_INNER, _LIBRARY, _OWN = range(3)

# The call sites found so far, by code object and instruction: in a long function it takes long to
# find a line number. The code object is kept alive, so that no other gets its id.
_Place = tuple[str, int, str]
_own: dict[tuple[int, int], tuple[CodeType, _Place]] = {}


def caller() -> _Place:
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
    place = _place(frame) if frame else stack.named_or_innermost(libraries)
    if frame is first:
        if len(_own) >= 4096:  # a program that makes code as it runs
            _own.clear()
        _own[key] = first.f_code, place
    return place


def _place(frame: FrameType) -> _Place:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


@functools.cache
def _kind(file: str) -> int:
    if stack.is_ours(file) or file.startswith(("<frozen", _TORCH)):
        return _INNER
    return _LIBRARY if stack.is_library(file) else _OWN
