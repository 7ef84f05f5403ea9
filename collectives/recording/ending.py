"""How a rank, or a whole program, ended, or why it has not: one word for one thing. Pure.

The launcher, the diagnosis, the matrix, the mistakes and the practice speak of it by these names.
"""

from enum import StrEnum


class Ending(StrEnum):
    """How it ended, if it did."""

    # It ended.
    RETURNED = "returned"
    LEFT = "left"  # by sys.exit(), with status 0
    RAISED = "raised"
    DIED = "died"
    PEER_LOST = "peer_lost"  # for other ranks had ended
    WRONG = "wrong"  # with numbers that are wrong
    # It did not.
    RUNNING = "running"
    HUNG = "hung"
    SLOW = "slow"
    MISSING = "missing"  # it never came
    ELSEWHERE = "elsewhere"  # it runs on a machine that tells nothing
    UNHEARD = "unheard"  # its machine has not answered the last question yet
    UNASKED = "unasked"  # there is no way to ask its machine
    # So it is with a program as a whole.
    OK = "ok"
    UNREACHABLE = "unreachable"  # it hangs, for a machine does not answer
    MISMATCH = "mismatch"  # calls that belong together do not fit
    NOT_DISTRIBUTED = "not-distributed"
    PARTIAL = "partial"  # not all of it is known

    @property
    def verdict(self) -> str:
        """The word in a report and in its JSON, where a program that hung is a hang."""
        return "hang" if self in (Ending.HUNG, Ending.UNREACHABLE) else str(self)

    @property
    def is_out_of_sight(self) -> bool:
        """Whether only its machine, which tells nothing, knows how this rank is."""
        return self in (Ending.ELSEWHERE, Ending.UNHEARD, Ending.UNASKED)

    @property
    def is_unreachable(self) -> bool:
        """Whether its machine should have answered."""
        return self in (Ending.UNHEARD, Ending.UNASKED)

    @property
    def is_over(self) -> bool:
        """Whether this rank has ended, as far as is known."""
        return self not in (Ending.RUNNING, Ending.MISSING) and not self.is_out_of_sight

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with this program, as far as is known."""
        return self in (Ending.OK, Ending.NOT_DISTRIBUTED)

    @property
    def is_failure(self) -> bool:
        """Whether a rank of it failed by itself."""
        return self in (Ending.RAISED, Ending.DIED)

    @property
    def is_explained(self) -> bool:
        """Whether what the ranks do explains why this program does not come to a good end."""
        return self in (Ending.HUNG, Ending.UNREACHABLE, Ending.MISMATCH)
