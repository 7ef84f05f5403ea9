"""A call that has returned a Work: what the program does, until the call's end, with that Work and with the tensors that it lent.

Nothing here keeps the Work or a tensor alive.
"""

import os
import sys
import weakref
from collections.abc import Callable

import torch
from torch.distributed import distributed_c10d as c10d

# By these methods of a Work, too, a program learns that it is done, or hands that over; is_completed only where it says so.
WAYS = (
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


class UnderWay:
    """`noted`: the call. `given`: its arguments, if they are to be kept. `is_settled`: nothing can be said against it any more."""

    def __init__(self, work, noted, given: dict, lent: dict, gone: Callable):
        self.end = weakref.ref(work, gone)
        self.noted = noted
        self.given = given
        # subtle: torch's own code may hand a Work on to C++, which waits unseen. From batch_isend_irecv it comes to the program.
        maker = sys._getframe(2).f_back
        file = maker.f_code.co_filename if maker else _TORCH
        self.is_settled = file.startswith(_TORCH) and file != c10d.__file__
        # A backend that is written in Python may finish a call by writing what it gave into its tensors: an average, say.
        self.lent = _versions(lent) if type(work) is c10d.Work or noted.what.name == "isend" else []

    def was_written_to(self) -> bool:
        """Whether the program has written into a tensor that is still the call's."""
        for reference, version in () if self.is_settled else self.lent:
            tensor = reference()
            if tensor is not None and tensor._version != version and _is_all_of_its_memory(tensor):
                return True
        return False


def _versions(lent: dict) -> list[tuple[weakref.ref, int]]:
    """The tensors that belong to the call until it is done, and how often each was written to by now.

    Not its mere outputs: gloo fills those of all_gather by means of torch, which counts that as well.
    """
    found = []
    for word, value in lent.items():
        if word.startswith("output") or word in ("tensor_list", "gather_list"):
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, torch.Tensor) and not one.is_inference():  # which are not counted
                found.append((weakref.ref(one), one._version))
    return found


def _is_all_of_its_memory(tensor: torch.Tensor) -> bool:
    """Whether what was written there was written into the tensor: its count is that of all views of one memory."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes
