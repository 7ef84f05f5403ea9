"""Hide our wrappers from Python's warnings and from torch.compile."""

import contextlib
from collections.abc import Callable

import torch

# subtle: a warning counts frames to find the line to blame, and skips the frames whose file name
# contains "importlib" and "_bootstrap". With such a name for our wrappers, a warning from torch
# blames the caller's line, as it does without us.
_FILE_NAME = "<frozen importlib._bootstrap> collectives.recording.record"


def hide_frame(function: Callable) -> Callable:
    """Decorate a wrapper, so that neither warnings nor torch.compile notice its frame."""
    function.__code__ = function.__code__.replace(co_filename=_FILE_NAME)
    # Older versions of torch do not have these names; there torch.compile decides for itself.
    with contextlib.suppress(AttributeError):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
