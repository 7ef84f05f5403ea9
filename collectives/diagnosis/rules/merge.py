"""The reports of several machines on one job -> one verdict. Pure.

A machine cannot see those that meet elsewhere. Their reports show it.
"""

from collections import Counter

from collectives.diagnosis.rules.report import location
from collectives.recording.call import Call


def merge(reports: list[dict]) -> tuple[str, str]:
    """The kind of the verdict, and what it says. `reports`: as `run.as_json` gives them.

    Raises ValueError if two reports are of the same machine.
    """
    names = [report["machine"] for report in reports]
    if len(set(names)) < len(names):
        raise ValueError(f"these reports are of {', '.join(names)}: give one of each machine.")
    # After a restart the last world counts.
    worlds = {report["machine"]: report["worlds"][-1] for report in reports if report["worlds"]}
    if _are_several(list(worlds.values())):
        return "mismatch", _several(worlds)
    said = {report["says"]: report["verdict"] for report in reports}
    wrong = {says: kind for says, kind in said.items() if kind != "ok"} or said
    return next(iter(wrong.values())), "\n".join(wrong)


def _are_several(worlds: list[dict]) -> bool:
    """A rank is on two machines; or nobody has met, and they look for each other elsewhere."""
    ranks = Counter(rank for world in worlds for rank in world["ranks"])
    places = {(world["meets"], world["world_size"]) for world in worlds}
    nobody_met = not any(world["has_begun"] for world in worlds)
    return max(ranks.values(), default=0) > 1 or (nobody_met and len(places) > 1)


def _several(worlds: dict[str, dict]) -> str:
    sides: dict[str, list[str]] = {}
    lines = []
    for machine, world in worlds.items():
        place = f"{world['meets']} with world_size={world['world_size']}"
        sides.setdefault(place, []).append(machine)
        for rank, (file, line, function) in world["ranks"].items():
            where = location(Call(int(rank), -1, "", file=file, line=line, function=function))
            lines.append(f"  rank {rank} on {machine}  joined at {where}")
    headline = " against ".join(", ".join(machines) for machines in sides.values())
    notes = [f"  {', '.join(machines)} met at {place}" for place, machines in sides.items()]
    return "\n".join([f"mismatch: machines in different worlds: {headline}", *lines, *notes])
