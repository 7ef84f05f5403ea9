"""A call that has returned a Work, and whether the program treats that Work and its buffers safely.

Nothing here keeps the Work or a tensor alive.
"""

import os
import sys
import weakref
from collections.abc import Callable, Sequence

import torch
from torch.distributed import distributed_c10d as c10d

from ..semantics.calls import BY_NAME, SENDS, CallSpec, Flow

# By these methods of a Work, too, a program learns that it is done, or hands that over;
# is_completed only where it returns True.
COMPLETION_METHODS = (
    "is_completed",
    "is_success",
    "exception",
    "synchronize",
    "result",
    "get_future",
    "get_future_result",
    "block_current_stream",
)

_TORCH = os.path.dirname(torch.__file__) + os.sep


class PendingWork:
    """A call whose Work nobody has waited for yet.

    recorded: the call.
    given: its arguments, if they are to be kept.
    is_settled: no hint is due any more, because the program knows that the Work is done, or because
        somebody else waits for it.
    others: the other calls of a batch that has this one Work, with their arguments.
    """

    others: Sequence[tuple] = ()

    def __init__(self, work, recorded, kept: dict, given: dict, on_collected: Callable):
        self.end = weakref.ref(work, on_collected)
        self.recorded = recorded
        self.given = kept
        # subtle: torch's own code may hand a Work on to C++, which waits unseen. But the Works of
        # batch_isend_irecv, which torch's code also makes, come to the program.
        maker = sys._getframe(2).f_back
        file = maker.f_code.co_filename if maker else _TORCH
        self.is_settled = file.startswith(_TORCH) and file != c10d.__file__
        # A backend that is written in Python may finish a call by writing into the tensors that the
        # program gave to it: an average, for example.
        is_watched = type(work) is c10d.Work or recorded.call_args.name in SENDS
        self.versions = _versions(recorded.call_args.name, given) if is_watched else []

    def was_written_to(self) -> bool:
        """Whether the program has written into a buffer of the call before the call was done."""
        for reference, version in () if self.is_settled else self.versions:
            tensor = reference()
            if tensor is not None and tensor._version != version and _is_all_of_its_memory(tensor):
                return True
        return False


def _watched_parameters(spec: CallSpec) -> tuple[str, ...]:
    """The buffers that only the program writes to by means of torch, until the call is done.

    gloo collects the data of several ranks in a buffer of its own and copies it to the output by
    means of torch, which counts that as a write. The data of one rank goes to the output directly.
    """
    from_one_rank = spec.flow in (Flow.RECEIVE, Flow.FROM_ROOT)
    return tuple(buffer.parameter for buffer in spec.buffers if buffer.gives or from_one_rank)


_WATCHED = {name: _watched_parameters(spec) for name, spec in BY_NAME.items()}


def _versions(name: str, given: dict) -> list[tuple[weakref.ref, int]]:
    """The watched tensors, each with the number of times that it was written to until now."""
    found = []
    for parameter in _WATCHED[name]:
        value = given.get(parameter)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            # torch does not count the writes to a tensor that was made in inference mode.
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                found.append((weakref.ref(tensor), tensor._version))
    return found


def _is_all_of_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a counted write went into this tensor: all views of one memory share the count."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes
