"""How soon training continues after the accidents of machines/elastic, in docs/machines.md.

`python -m collectives.lesson.make.elastic_table` has them all twice: with the times that the lesson
hands to torchrun, and with torchrun's own. It takes some minutes.
"""

import sys

from collectives.launcher.hosts import Lab
from collectives.lesson import files
from collectives.lesson.make.generated_part import Part

PART = Part("times", "collectives.lesson.make.elastic_table", "docs/machines.md")
EXPERIMENTS = ("processes_die", "machines_change", "agents_are_killed")
HEADER = ["accident", "ranks before", "after", "parameters", "seconds", "with torchrun's own times"]


def measure(default: bool) -> list[dict]:
    """The rows of the lesson, with the seconds from each accident to the next step of training."""
    lesson = files.load(files.find("machines/elastic"))
    if default:
        before, _, after = lesson.TORCHRUN.partition("--rdzv-conf")
        lesson.TORCHRUN = f"{before} {after.split(maxsplit=1)[1]}"
    rows = []
    for name in EXPERIMENTS:
        print(name, file=sys.stderr)
        with Lab(2) as lab:
            rows += getattr(lesson, name)(lab)
    return rows


def table() -> str:
    lines = [HEADER, ["---"] * len(HEADER)]
    for quick, slow in zip(measure(default=False), measure(default=True), strict=True):
        times = [f"{row['seconds']:.0f}" if row["seconds"] else "-" for row in (quick, slow)]
        names = [str(quick[name]).replace("_", " ") for name in HEADER[:4]]
        lines.append([*names, *times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PART.write(table())
