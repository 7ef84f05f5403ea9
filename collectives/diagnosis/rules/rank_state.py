"""How each rank is, or how it ended, from the facts about its process. Pure.

`state` looks at one rank alone. `states` then compares the ranks: a launcher that sees a rank fail
ends the others, mostly by SIGTERM, and so these did not die by themselves. What decides, in which
order, is the table of cases in tests/diagnosis/test_rank_state.py.
"""

import dataclasses
import signal
from collections.abc import Collection
from dataclasses import dataclass

from collectives.diagnosis.timing import LAUNCHER_REACTS_NS
from collectives.recording.call import Call
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import is_lost, timed_out
from collectives.recording.stack import NOWHERE, Frame


@dataclass(frozen=True)
class State:
    """How a rank is.

    `status`: running, returned, raised or died, or why it is not known. `text`: its exception, or
    how it died. `error`: the type of the exception. `signal`: the one that killed it. `at`: when it
    ended, in nanoseconds. `unseen`: it returned without noting that, so `at` is when it was found
    gone. `in_torch`: its main thread is in torch, below `where`. `is_old`: `where` is from its
    last answer, and it may have gone on since. `machine`: the host name, if the world is on
    several. `process`: of a rank that has not come, which process it may be. `torch_does`: see
    stack.torch_does. `caught`: the last exception that it was seen to handle since its last call.
    """

    status: Ending = Ending.RUNNING
    text: str = ""
    where: Frame = NOWHERE
    at: int = 0
    error: str = ""
    signal: int = 0
    unseen: bool = False
    in_torch: bool = False
    stopped: bool = False
    is_old: bool = False
    machine: str = ""
    process: str = ""
    torch_does: str = ""
    caught: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known about the process of one rank.

    `exit_status`: negative for a signal, None if it is unknown. `exception` and `answer`: as the
    recorder wrote them (see recording/rank_log.py), empty if it wrote none. `recorded_end`: when
    the process wrote that it ends, in nanoseconds, or 0.
    """

    gone_at: int | None = None  # when it was seen to have ended, in nanoseconds; None while it runs
    exit_status: int | None = None
    exception: dict = dataclasses.field(default_factory=dict)
    answer: dict = dataclasses.field(default_factory=dict)
    recorded_end: int = 0
    calls: int = 0  # how many it has entered
    is_inside_call: bool = False
    is_stopped: bool = False
    crash_signal: int = 0
    crash_place: Frame = NOWHERE
    crash_does: str = ""  # what torch did there

    @property
    def has_ended_unseen_or_by_sigterm(self) -> bool:
        return self.gone_at is not None and self.exit_status in (None, -signal.SIGTERM)

    @property
    def has_failed(self) -> bool:
        """Whether it raised, or ended badly, as far as it is known without the other ranks."""
        ended_badly = self.gone_at is not None and self.exit_status != 0 and not self.recorded_end
        return ended_badly or bool(self.exception)

    @property
    def answer_is_current(self) -> bool:
        """Whether it runs, or has answered after its last call."""
        if self.gone_at is None and not self.exception:
            return True
        destroyed_last = self.answer.get("destroyed") and self.answer["count"] == self.calls
        return bool(self.answer.get("last") or destroyed_last)

    @property
    def seen_at(self) -> Frame:
        """Where it answered that it is; nowhere if it has called something since.

        subtle: a rank in C code may let no other thread run, and the recorder's thread cannot
        answer then.
        """
        if self.answer.get("count") != self.calls or self.is_inside_call:
            return NOWHERE
        return _place(self.answer.get("where"))


def state(facts: Facts) -> State:
    """How one rank is, from its own facts alone."""
    recorded = facts.exception
    if recorded and not (recorded["is_guess"] and facts.exit_status == 0):
        where, does = _place(recorded["where"]), recorded.get("torch_does", "")
        raised = recorded["text"], where, recorded["at"], recorded["type"]
        return State(Ending.RAISED, *raised, torch_does=does)
    if facts.gone_at is not None:
        return _state_at_its_end(facts, facts.gone_at)
    if facts.is_stopped:  # it may have left the place of its last answer
        return State(text="is stopped", stopped=True)
    if facts.recorded_end:
        return State(Ending.RETURNED, where=_place(facts.answer.get("exit")), at=facts.recorded_end)
    seen = facts.seen_at
    does = facts.answer.get("torch_does", "") if seen[0] else ""
    in_torch = bool(facts.answer.get("in_torch") and seen[0])
    return State(where=seen, in_torch=in_torch, torch_does=does)


def _state_at_its_end(facts: Facts, at: int) -> State:
    status = facts.exit_status
    exit_place = _place(facts.answer.get("exit"))
    if facts.answer.get("last") and facts.has_ended_unseen_or_by_sigterm:
        return State(Ending.RETURNED, where=exit_place, at=at)
    if number := facts.crash_signal or -min(status or 0, 0):
        text = f"was killed by {_signal_name(number)}"
        is_old = facts.crash_place == NOWHERE
        where = facts.seen_at if is_old else facts.crash_place
        died = State(Ending.DIED, text, where, at, signal=number, is_old=is_old)
        return dataclasses.replace(died, torch_does=facts.crash_does)
    if facts.recorded_end and not status:
        return State(Ending.RETURNED, where=exit_place, at=facts.recorded_end)
    if status == 0:
        text = "left by os._exit, or was ended by its launcher"
        return State(Ending.RETURNED, text, at=at, unseen=True)
    if facts.recorded_end:
        where = _place(facts.answer.get("where"))
        return State(Ending.RAISED, f"ended with exit status {status}", where, at)
    text = f"ended with exit status {status}" if status else "died (killed, or left by os._exit)"
    return State(Ending.DIED, text, facts.seen_at, at, is_old=True)


def states(
    ranks: dict[int, Facts], destroyed: dict[int, Call], are_all_known: bool
) -> dict[int, State]:
    """How each rank is, in the light of the others.

    `destroyed`: the calls by which ranks destroyed their groups. `are_all_known`: `ranks` are all
    ranks of the world.
    """
    by_rank = {
        rank: dataclasses.replace(state(facts), caught=facts.answer.get("caught", ""))
        for rank, facts in ranks.items()
    }
    failed_at = {rank: by_rank[rank].at for rank in ranks if _failed(by_rank[rank], ranks[rank])}
    # They died by themselves, or their launcher ended them.
    unclear = {
        rank: by_rank[rank].at
        for rank, facts in ranks.items()
        if by_rank[rank].status is Ending.DIED
        and facts.has_ended_unseen_or_by_sigterm
        and not facts.crash_signal
    }
    if are_all_known and not _is_explained(by_rank, unclear, destroyed):
        culprit = _died_by_itself(unclear, ranks, failed_at)
        unclear = {rank: at for rank, at in unclear.items() if rank != culprit}
    for rank, died_at in unclear.items():
        others = [other for other in failed_at if other != rank]
        if not others:
            continue
        first = min(others, key=failed_at.__getitem__)
        # A rank that timed out fails alone: whoever ends after that was ended for it.
        reaction = 0 if timed_out(by_rank[first].text) else LAUNCHER_REACTS_NS
        if rank in destroyed:
            by_rank[rank] = State(Ending.RETURNED, at=destroyed[rank].entered)
        elif ranks[rank].exit_status is not None or died_at > failed_at[first] + reaction:
            by_rank[rank] = dataclasses.replace(
                by_rank[rank],
                status=Ending.RUNNING,
                text="was ended by its launcher",
                at=0,
                signal=0,
            )
    return by_rank


def _failed(state: State, facts: Facts) -> bool:
    """Whether it raised, or ended perhaps by itself: neither with status 0 nor by SIGTERM."""
    ended = facts.gone_at is not None
    return state.status is Ending.RAISED or (
        ended and facts.exit_status not in (0, -signal.SIGTERM)
    )


def _is_explained(
    states: dict[int, State], unclear: Collection[int], destroyed: Collection[int]
) -> bool:
    """Whether a rank left, raised or died by itself for sure: then the others only lost it."""
    for rank, one in states.items():
        only_lost_another = is_lost(one.text) and not timed_out(one.text)
        if one.status is Ending.RETURNED or rank in destroyed:
            return True
        if one.status is Ending.RAISED and not only_lost_another:
            return True
        if one.status is Ending.DIED and rank not in unclear:
            return True
    return False


def _died_by_itself(
    died_at: dict[int, int], ranks: dict[int, Facts], failed_at: dict[int, int]
) -> int | None:
    """Of ranks whose launcher may have ended them, the first that it cannot have ended.

    A launcher sends SIGTERM, and needs time to see that another rank has failed. So the exit status
    of this rank is unknown, or it died too soon after the first failure.
    """
    too_soon = min(failed_at.values(), default=0) + LAUNCHER_REACTS_NS
    possible = [
        rank for rank, at in died_at.items() if ranks[rank].exit_status is None or at < too_soon
    ]
    # subtle: ranks that were found gone in one look have times in the order of that look. Of these,
    # one that was waiting in a call was more likely ended.
    one_look_later = min((died_at[rank] for rank in possible), default=0) + LAUNCHER_REACTS_NS
    return min(
        (rank for rank in possible if died_at[rank] <= one_look_later),
        key=lambda rank: (ranks[rank].is_inside_call, died_at[rank]),
        default=None,
    )


def _place(where: list | None) -> Frame:
    file, line, function = where or NOWHERE
    return file, line, function


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
