"""Ranks that never meet: as another rank, in a world of another size, or elsewhere. Pure."""

import dataclasses
from dataclasses import dataclass

from collectives.diagnosis.rules.compare import minority
from collectives.diagnosis.rules.report import against, format_call, join_as, location
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.recording.call import WORLD, Call
from collectives.words import ranks


@dataclass(frozen=True)
class JoiningWorld:
    """What is known of the ranks of one world, by rank. `place`: a number for where they meet.

    `joining`: the calls of those that wait for the others. `last`: their last calls. `launched_as`:
    the rank that the launcher gave to their process. `meets`: where each of them looks for the
    others. `lines`: what each does, and where, for the report.
    """

    place: int
    size: int
    absent: list[int]
    joining: dict[int, Call]
    last: dict[int, Call]
    launched_as: dict[int, int | None]
    meets: dict[int, str]
    lines: dict[int, tuple[str, str]]


def never_met(worlds: list[JoiningWorld]) -> Verdict | None:
    """`worlds`: those in which ranks are absent or wait for others."""
    for world in worlds:
        alike = [one for one in worlds if (one.place, one.size) == (world.place, world.size)]
        if (verdict := _joined_as_others(world, alike)) is not None:
            return verdict
    return _joined_elsewhere(worlds)


def _joined_as_others(world: JoiningWorld, alike: list[JoiningWorld]) -> Verdict | None:
    """Ranks that join as the rank of another process."""
    calls = {one.launched_as[rank]: call for one in alike for rank, call in one.joining.items()}
    absent = [rank for rank in world.absent if rank in calls and rank != calls[rank].rank]
    wrong = {rank: dataclasses.replace(calls[rank], rank=rank) for rank in absent}
    if not wrong:
        return None
    lines = {rank: (f"in {format_call(call)}", location(call)) for rank, call in wrong.items()}
    lines = world.lines | lines
    what = join_as(wrong, {calls[rank].rank for rank in wrong})
    return Verdict("hang", what, tuple(wrong.values()), group=WORLD, seq=0, lines=lines)


def _joined_elsewhere(worlds: list[JoiningWorld]) -> Verdict | None:
    """Ranks that would make one world together, if they agreed on its size and its place."""
    here = [rank for world in worlds for rank in world.meets]
    if len(set(here)) < len(here):
        return None  # a rank is there twice: these are several jobs
    calls = {rank: call for world in worlds for rank, call in world.last.items()}
    sizes = {rank: f"world_size={world.size}" for world in worlds for rank in world.last}
    meets = {rank: world.meets[rank] for world in worlds for rank in world.last}
    for field, sides in (("world_size", sizes), ("store", meets)):
        if len({side for side in sides.values() if side}) > 1:
            return _disagree(field, sides, calls, worlds)
    return None


def _disagree(
    field: str, sides: dict[int, str], calls: dict[int, Call], worlds: list[JoiningWorld]
) -> Verdict:
    guilty = minority(sides)
    note = "; ".join(
        f"{side or 'somewhere'} on {ranks(rank for rank in sides if sides[rank] == side)}"
        for side in sorted(set(sides.values()))
    )
    lines = {rank: world.lines[rank] for world in worlds for rank in world.meets}
    what = f"{field} of init_process_group: {against(guilty, calls)}"
    blamed = tuple(calls[rank] for rank in guilty)
    return Verdict(
        "mismatch", what, blamed, group=WORLD, seq=0, field=field, lines=lines, notes=(note,)
    )
