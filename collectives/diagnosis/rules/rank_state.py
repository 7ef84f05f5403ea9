"""How each rank is, or how it ended, from the facts about its process. Pure.

`state` looks at one rank alone. The first row that holds decides:

    facts                                                                state
    noted an exception (if it is a guess: and its status is not 0)       raised
    runs, and a signal or a debugger holds it                            running, stopped
    runs, and noted that it ends                                         returned
    runs                                                                 running
    ended by SIGTERM or unseen, and had given its last answer            returned
    ended by a signal, or left the stack of a crash                      died
    ended with status 0 or unseen, and noted that it ends                returned
    ended with status 0                                                  returned
    ended with another status, and noted that it ends                    raised
    ended with another status, or unseen                                 died

`states` compares the ranks. A launcher that sees a rank fail ends the others, mostly by SIGTERM:
they did not die by themselves. So if another rank failed, this decides about a rank that died by
SIGTERM or unseen (nobody knows its exit status):

    nothing else explains why the others failed (`_unseen_culprit`)      died
    had destroyed its groups                                             returned
    died by SIGTERM, or later than a launcher needs to react             running, where it was then
    died sooner                                                          died
"""

import dataclasses
import re
import signal
from collections.abc import Collection
from dataclasses import dataclass

from collectives.diagnosis.timing import LAUNCHER_REACTS_NS
from collectives.recording.call import Call

# What an exception says if another rank is gone or did not come: the cause is elsewhere.
_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)
_LOST = re.compile(
    rf"{_TIMED_OUT.pattern}|closed by peer|reset by peer|connection refused|broken pipe"
    r"|remote (process|worker)|recvValue|sendBytes|failed to (recv|connect)|not all ranks"
    r"|failed to pass|LaunchError|ChildFailedError|ProcessRaised|ProcessExited",
    re.IGNORECASE,
)

# The text of a rank that returned without noting its end, and whose launcher was content.
LEFT = "left by os._exit, or was ended by its launcher"

OUT_OF_SIGHT = ("elsewhere", "unheard")
NOT_ENDED = ("running", "missing", *OUT_OF_SIGHT)

Place = tuple[str, int, str]  # file, line, function
NOWHERE: Place = ("", 0, "")


@dataclass(frozen=True)
class State:
    """How a rank is.

    `status`: running, returned, raised or died; missing if no process is known; elsewhere if it
    runs on a node that tells nothing; unheard if its node has not answered the last question yet.
    `text`: its exception, or how it died. `at`: when it ended, in nanoseconds. `in_torch`: its main
    thread is in torch, below `where`. `is_old`: `where` is from its last answer, and it may have
    gone on since. `machine`: the host name, if the world is on several.
    """

    status: str = "running"
    text: str = ""
    where: Place = NOWHERE
    at: int = 0
    in_torch: bool = False
    stopped: bool = False
    is_old: bool = False
    machine: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known about the process of one rank.

    `exit_status`: negative for a signal, None if it is unknown. `exception` and `answer`: as the
    recorder wrote them (see recording/rank_log.py), empty if it wrote none. `noted_end`: when the
    process noted that it ends, in nanoseconds, or 0.
    """

    gone_at: int | None = None  # when it was seen to have ended, in nanoseconds; None while it runs
    exit_status: int | None = None
    exception: dict = dataclasses.field(default_factory=dict)
    answer: dict = dataclasses.field(default_factory=dict)
    noted_end: int = 0
    calls: int = 0  # how many it has entered
    is_inside_call: bool = False
    is_stopped: bool = False
    crash_signal: int = 0
    crash_place: Place = NOWHERE

    @property
    def has_ended_unseen_or_by_sigterm(self) -> bool:
        return self.gone_at is not None and self.exit_status in (None, -signal.SIGTERM)

    @property
    def has_failed(self) -> bool:
        """Whether it raised, or ended badly, as far as it is known without the other ranks."""
        ended_badly = self.gone_at is not None and self.exit_status != 0 and not self.noted_end
        return ended_badly or bool(self.exception)

    @property
    def answer_is_current(self) -> bool:
        """Whether it runs, or has answered after its last call."""
        if self.gone_at is None and not self.exception:
            return True
        destroyed_last = self.answer.get("destroyed") and self.answer["count"] == self.calls
        return bool(self.answer.get("last") or destroyed_last)

    @property
    def seen_at(self) -> Place:
        """Where it answered that it is; nowhere if it has called something since.

        subtle: a rank in C code may let no other thread run, and the recorder's thread cannot
        answer then.
        """
        if self.answer.get("count") != self.calls or self.is_inside_call:
            return NOWHERE
        return _place(self.answer.get("where"))


def is_lost(text: str) -> bool:
    """Whether an exception only says that another rank is gone or did not come."""
    return bool(_LOST.search(text))


def timed_out(text: str) -> bool:
    """Whether an exception says that another rank, which may still run, did not come in time."""
    return bool(_TIMED_OUT.search(text))


def state(facts: Facts) -> State:
    """How one rank is, from its own facts alone; see the first table."""
    noted = facts.exception
    if noted and not (noted["is_guess"] and facts.exit_status == 0):
        return State("raised", noted["text"], _place(noted["where"]), noted["at"])
    if facts.gone_at is not None:
        return _state_at_its_end(facts)
    if facts.is_stopped:  # it may have left the place of its last answer
        return State(text="is stopped", stopped=True)
    if facts.noted_end:
        return State("returned", where=_place(facts.answer.get("exit")), at=facts.noted_end)
    seen = facts.seen_at
    return State(where=seen, in_torch=bool(facts.answer.get("in_torch") and seen[0]))


def _state_at_its_end(facts: Facts) -> State:
    at, status = facts.gone_at, facts.exit_status
    exit_place = _place(facts.answer.get("exit"))
    if facts.answer.get("last") and facts.has_ended_unseen_or_by_sigterm:
        return State("returned", where=exit_place, at=at)
    if facts.crash_signal or (status or 0) < 0:
        text = f"was killed by {_signal_name(facts.crash_signal or -status)}"
        if facts.crash_place != NOWHERE:
            return State("died", text, facts.crash_place, at)
        return State("died", text, facts.seen_at, at, is_old=True)
    if facts.noted_end and not status:
        return State("returned", where=exit_place, at=facts.noted_end)
    if status == 0:
        return State("returned", LEFT, at=at)
    if facts.noted_end:
        where = _place(facts.answer.get("where"))
        return State("raised", f"ended with exit status {status}", where, at)
    text = f"ended with exit status {status}" if status else "died (killed, or left by os._exit)"
    return State("died", text, facts.seen_at, at, is_old=True)


def states(
    ranks: dict[int, Facts], destroyed: dict[int, Call], are_all_known: bool
) -> dict[int, State]:
    """How each rank is, in the light of the others; see the second table.

    `destroyed`: the calls by which ranks destroyed their groups. `are_all_known`: `ranks` are all
    ranks of the world.
    """
    found = {rank: state(facts) for rank, facts in ranks.items()}
    failed_at = {rank: found[rank].at for rank in ranks if _failed(found[rank], ranks[rank])}
    suspects = {
        rank: found[rank].at
        for rank, facts in ranks.items()
        if found[rank].status == "died" and facts.has_ended_unseen_or_by_sigterm
    }
    if are_all_known and not _is_explained(found, suspects, destroyed):
        suspects.pop(_unseen_culprit(suspects, ranks, failed_at), None)
    for rank, died_at in suspects.items():
        others = [other for other in failed_at if other != rank]
        if not others:
            continue
        first = min(others, key=failed_at.get)
        # A rank that timed out fails alone: whoever ends after that was ended for it.
        reaction = 0 if timed_out(found[first].text) else LAUNCHER_REACTS_NS
        if rank in destroyed:
            found[rank] = State("returned", at=destroyed[rank].entered)
        elif ranks[rank].exit_status is not None or died_at > failed_at[first] + reaction:
            found[rank] = dataclasses.replace(
                found[rank], status="running", text="was ended by its launcher", at=0
            )
    return found


def _failed(state: State, facts: Facts) -> bool:
    """Whether it raised, or ended perhaps by itself: neither with status 0 nor by SIGTERM."""
    ended = facts.gone_at is not None
    return state.status == "raised" or (ended and facts.exit_status not in (0, -signal.SIGTERM))


def _is_explained(
    states: dict[int, State], suspects: Collection[int], destroyed: Collection[int]
) -> bool:
    """Whether a rank that is no suspect left, raised or died by itself: then the others lost it."""
    for rank, one in states.items():
        only_lost_another = is_lost(one.text) and not timed_out(one.text)
        if one.status == "returned" or rank in destroyed:
            return True
        if one.status == "raised" and not only_lost_another:
            return True
        if one.status == "died" and rank not in suspects:
            return True
    return False


def _unseen_culprit(
    suspects: dict[int, int], ranks: dict[int, Facts], failed_at: dict[int, int]
) -> int | None:
    """The first suspect to die that no launcher can have ended, as far as is known.

    Its status is unknown, or it died before a launcher could react to another failure.
    """
    too_soon = min(failed_at.values(), default=0) + LAUNCHER_REACTS_NS
    possible = [
        rank for rank, at in suspects.items() if ranks[rank].exit_status is None or at < too_soon
    ]
    soonest = min(map(suspects.get, possible), default=0)
    # subtle: ranks that were found gone in one look have times in the order of that look. Of these,
    # one that was waiting in a call was more likely ended.
    found_together = [rank for rank in possible if suspects[rank] <= soonest + LAUNCHER_REACTS_NS]
    waits_and_at = {rank: (ranks[rank].is_inside_call, suspects[rank]) for rank in found_together}
    return min(found_together, key=waits_and_at.get, default=None)


def _place(where: list | None) -> Place:
    return tuple(where or NOWHERE)


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
