"""Every rank's calls -> a verdict: what went wrong, which ranks are to blame, at which line. Pure.

`judge` asks one rule after another, and the first that finds a fault gives the verdict. A fault
causes others: ranks that wait, time out or are ended. So the order goes from causes to effects.
Where ranks wait for others, `suspects` says which of them are to blame.

 1. `differing`: calls that belong together and do not fit. This is a fault whatever else happened.
    `unknown_calls`: gloo ended a rank for such a difference, and C++ made one of the calls.
 2. `failed`: a rank raised or died by itself. The others then wait for it, or lose it.
 3. `stopped`, `same_rank`, `silent`: ranks that cannot take part, whatever they called.
 4. `crossed_tags`, `circular`: ranks that wait for each other. The rules that follow take those
    that wait for nobody as the cause.
 5. `not_joined`: a collective that some ranks have not joined. `came_late`: all have joined it, but
    one after another had given up.
 6. `not_met`: a message of which one end waits in vain.
 7. `left_early`: a rank lost others that had left. `left_over`: all ranks have ended, or nothing
    moves, and a call is still unmatched.
 8. `lost`: ranks lost others, and nothing shows why.
"""

from collections import Counter

from collectives.diagnosis.rules.aborted import unknown_calls
from collectives.diagnosis.rules.asides import with_asides
from collectives.diagnosis.rules.faults import crossed_tags, differing, failed, left_early, lost
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.missing import (
    came_late,
    circular,
    left_over,
    not_joined,
    not_met,
)
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.report import join_as
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.recording.ending import Ending
from collectives.words import ranks


def judge(
    matching: Matching,
    states: dict[int, State],
    world_size: int,
    stalled: bool,
    c10d: Matching | None = None,
) -> Verdict:
    """The verdict on a program that made these calls.

    `stalled`: nothing has moved for so long that a rank that waits hangs. `c10d`: the collectives
    that torch's Flight Recorder noted, those from C++ too.
    """
    numbers = sorted({*matching.last, *states, *range(world_size)})
    if not numbers:
        return Verdict(Ending.NOT_DISTRIBUTED, "no process called torch.distributed")
    states = {rank: states.get(rank, State()) for rank in numbers}
    snapshot = Snapshot(matching, c10d or Matching(), states, stalled)
    for rule in _RULES:
        if (verdict := rule(snapshot)) is not None:
            return with_asides(snapshot, verdict)
    what = f"{ranks(numbers)}: all {matching.matched} collectives and messages fitted"
    return snapshot.verdict(Ending.OK, what)


def stopped(snapshot: Snapshot) -> Verdict | None:
    """A process that a signal or a debugger holds: whoever waits, waits for it."""
    held = [rank for rank, state in snapshot.states.items() if state.stopped]
    if not held or not snapshot.stalled or not snapshot.inside:
        return None
    what = f"{ranks(held)} stopped, as by SIGSTOP or a debugger"
    return snapshot.verdict(Ending.HUNG, what, map(snapshot.place, held))


def same_rank(snapshot: Snapshot) -> Verdict | None:
    """Ranks that join as the rank of another one, so that nobody is who they should be."""
    joining = {
        rank: call for rank, call in snapshot.inside.items() if call.name == "init_process_group"
    }
    named = {rank: rank if call.peer is None else call.peer for rank, call in joining.items()}
    counts = Counter(named.values())
    wrong = [rank for rank in joining if named[rank] != rank and counts[named[rank]] > 1]
    if not wrong or not snapshot.stalled:
        return None
    guilty = [joining[rank] for rank in wrong]
    what = join_as(wrong, {named[rank] for rank in wrong})
    return snapshot.verdict(Ending.HUNG, what, guilty, guilty[0])


def silent(snapshot: Snapshot) -> Verdict | None:
    """A machine whose diagnosis has not answered: it has no power, or no connection to this one."""
    unheard = {rank: one for rank, one in snapshot.states.items() if one.status is Ending.UNHEARD}
    unasked = {rank: one for rank, one in snapshot.states.items() if one.status is Ending.UNASKED}
    if not (unheard or unasked) or not snapshot.stalled or not snapshot.inside:
        return None
    if unheard:
        names = sorted({one.machine for one in unheard.values()})
        does = "does" if len(names) == 1 else "do"
        what = f"{', '.join(names)} {does} not answer: {ranks(unheard)} cannot be reached"
    else:
        what = f"{ranks(unasked)} {next(iter(unasked.values())).text}"
    return snapshot.verdict(Ending.UNREACHABLE, what, map(snapshot.place, unheard or unasked))


_RULES = (
    differing,
    unknown_calls,
    failed,
    stopped,
    same_rank,
    silent,
    crossed_tags,
    circular,
    not_joined,
    came_late,
    not_met,
    left_early,
    left_over,
    lost,
)
