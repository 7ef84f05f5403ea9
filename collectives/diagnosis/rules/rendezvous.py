"""Ranks that can never meet, where nothing moves: they join as somebody else, in a world of another size, or at another place."""

import dataclasses

from collectives.diagnosis.rules.compare import minority
from collectives.diagnosis.rules.report import against, format_call, join_as, location, ranks, write
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.world import World
from collectives.recording import call_log
from collectives.recording.call import WORLD


def apart(worlds: dict[tuple, World]) -> Verdict | None:
    """`worlds`: by where their ranks meet, and a number for each that met there."""
    parts = {place: world for place, world in worlds.items() if world.absent() or world.joining()}
    if not any(world.joining() for world in parts.values()) or any(
        world.has_ended() for world in parts.values()
    ):
        return None
    for (meets, _), world in parts.items():
        same = [
            other for (at, _), other in parts.items() if at == meets and other.size == world.size
        ]
        if (verdict := _as_others(world, same)) is not None:
            return verdict
    return _split([*parts.values()])


def _as_others(world: World, worlds: list[World]) -> Verdict | None:
    """Ranks that name, as they join, the rank of another process, so that nobody is who they should be."""
    joining = [
        (one.ranks[number], call) for one in worlds for number, call in one.joining().items()
    ]
    named = {rank.read(call_log.ANSWER).get("launched_as"): call for rank, call in joining}
    absent = [
        number for number in world.absent() if number in named and number != named[number].rank
    ]
    wrong = {number: dataclasses.replace(named[number], rank=number) for number in absent}
    if not wrong:
        return None
    lines = _lines(world) | {
        number: (f"in {format_call(call)}", location(call)) for number, call in wrong.items()
    }
    says = write(join_as(wrong, {named[number].rank for number in wrong}), lines, [])
    return Verdict("hang", says, tuple(wrong.values()), group=WORLD, seq=0, lines=lines)


def _split(parts: list[World]) -> Verdict | None:
    """Parts that would make a whole, were they one world."""
    seats = [(number, world) for world in parts for number in world.ranks]
    world_of = dict(seats)
    if len(world_of) < len(seats):
        return None  # they are jobs of their own: a rank is there twice
    called = {
        number: world.matching.last[number]
        for number, world in seats
        if number in world.matching.last
    }
    sizes = {number: f"world_size={world_of[number].size}" for number in called}
    places = {
        number: world_of[number].ranks[number].read(call_log.ANSWER).get("meets", "")
        for number in called
    }
    for field, sides in (("world_size", sizes), ("store", places)):
        if len({side for side in sides.values() if side}) > 1:
            guilty = minority(sides)
            there = [
                (side, ranks(number for number in sides if sides[number] == side))
                for side in sorted(set(sides.values()))
            ]
            note = "; ".join(f"{side or 'somewhere'} on {who}" for side, who in there)
            lines = {
                number: line
                for world in parts
                for number, line in _lines(world).items()
                if number in world.ranks
            }
            says = write(
                f"mismatch: {field} of init_process_group: {against(guilty, called)}", lines, [note]
            )
            calls = tuple(called[number] for number in guilty)
            return Verdict("mismatch", says, calls, group=WORLD, seq=0, field=field, lines=lines)
    return None


def _lines(world: World) -> dict[int, tuple[str, str]]:
    return world.verdict(stalled=True).lines
