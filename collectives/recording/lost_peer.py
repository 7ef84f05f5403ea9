"""What torch says if another rank is gone, or did not come. The cause is elsewhere."""

import re

# A connection broke because its other end ended, and what TORCH_DISTRIBUTED_DEBUG=DETAIL says on
# ranks that did nothing wrong.
PEER_IS_GONE = re.compile(
    r"closed by (remote )?peer|reset by peer|broken pipe|successfully reached monitoredBarrier",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)
_NOBODY_ANSWERS = re.compile(
    r"connection refused|remote (process|worker)|(recv(Value|Vector|String)|sendBytes) failed"
    r"|failed to (recv|send|connect)|not all ranks|failed to pass"
    r"|writev \[|flag on TCPStore|rank ID from TCPStore"
    r"|NCCL communicator (was aborted|encountered error set)"
    r"|LaunchError|ChildFailedError|ProcessRaised|ProcessExited",
    re.IGNORECASE,
)


def is_lost(text: str) -> bool:
    """Whether an exception with this text says that another rank is gone or did not come."""
    return bool(PEER_IS_GONE.search(text) or timed_out(text) or _NOBODY_ANSWERS.search(text))


def timed_out(text: str) -> bool:
    """Whether the exception came since a time limit was reached."""
    return bool(_TIMED_OUT.search(text))
