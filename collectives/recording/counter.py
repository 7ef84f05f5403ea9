"""The numbers of one sequence of calls: ours, by which calls are matched, and torch's, for reports.

torch counts the collectives of a group from 1, those that C++ code makes (as DDP does) too. Its
logs and the dumps of its Flight Recorder show this number. Groups written in Python have none.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from ..semantics.calls import POINT_TO_POINT


class Counter:
    """`count`: how many calls there were, of all groups that bore this name one after another."""

    def __init__(self) -> None:
        self.count = 0
        self.forget_group()

    def forget_group(self) -> None:
        """The next call is of another group with the same name."""
        self.first = self.count  # its first call
        # gloo counts messages, too; they are not in the Flight Recorder, and are taken off.
        self.messages = 0
        self.counts_messages = False
        self.group: Callable[[], Any] | None = None  # the one whose calls torch counts
        self.is_bound = False

    def bind(self, group: Any) -> None:
        """This is the sequence of that group's collectives."""
        if not self.is_bound and group is not None:
            self.is_bound = True
            with contextlib.suppress(Exception):
                backends = {group._get_backend(one).name() for one in group._device_types}
                self.counts_messages = backends == {"gloo"}
            # subtle: kept alive here, it would outlive destroy_process_group with all its threads.
            if hasattr(group, "_get_sequence_number_for_group"):
                self.group = weakref.ref(group)

    def next(self) -> tuple[int, int | None]:
        """The two numbers of a call that begins now."""
        seq = self.count
        self.count = seq + 1
        if self.group is None:
            return seq, None
        try:
            torch_seq = self.group()._get_sequence_number_for_group() - self.messages + 1
        except Exception:  # a backend of another kind
            torch_seq = 0
        if torch_seq <= seq - self.first:  # a group that wraps another may never count
            self.group = None
            return seq, None
        return seq, torch_seq

    def note_messages(self, count: int, is_collective: bool) -> None:
        """A call consists of so many messages; torch counts no collective for it."""
        self.first += is_collective
        if self.counts_messages:
            self.messages += count

    def take_back(self, seq: int | None, messages: int) -> None:
        """The call was refused: the next one gets its numbers."""
        if seq is not None and self.count == seq + 1:
            self.count = seq
        if messages:
            self.note_messages(-messages, False)


def messages_in(name: str, is_root: bool, size: int) -> int:
    """How many messages gloo counts for this call of a rank in a group of that size.

    A monitored_barrier consists of two messages between rank 0 and each of the others.
    """
    if name == "monitored_barrier":
        return 2 * (size - 1) if is_root else 2
    return (name in POINT_TO_POINT) * (2 if "object" in name else 1)
