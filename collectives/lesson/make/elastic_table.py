"""How soon training continues after the accidents of machines/elastic, in docs/machines.md.

`python -m collectives.lesson.make.elastic_table` has them all twice: with the times that the lesson
hands to torchrun, and with torchrun's own. It takes some minutes, and writes what it has measured
into docs/elastic_times.json, from which come the table and the picture beside it. With
`--from-file` it measures nothing.
"""

import json
import sys

from collectives.launcher.hosts import Lab
from collectives.lesson import files
from collectives.lesson.make.generated_part import ROOT, Part

PART = Part("times", "collectives.lesson.make.elastic_table", "docs/machines.md")
MEASURED, PICTURE = ROOT / "docs/elastic_times.json", ROOT / "docs/elastic_times.svg"
EXPERIMENTS = ("processes_die", "machines_change", "agents_are_killed")
HEADER = ["accident", "ranks before", "after", "parameters", "seconds", "with torchrun's own times"]
BLOCKS = ("with the times of the lesson", "with torchrun's own times")


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
    return [
        {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def table(measured: dict[str, list[dict]]) -> str:
    lines = [HEADER, ["---"] * len(HEADER)]
    for quick, slow in zip(*(measured[block] for block in BLOCKS), strict=True):
        times = [f"{row['seconds']:.0f}" if "seconds" in row else "-" for row in (quick, slow)]
        names = [quick["accident"].replace("_", " "), *map(str, list(quick.values())[1:3])]
        lines.append([*names, "equal", *times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(measured: dict[str, list[dict]]):
    """The same for `picture.svg`: when how many ranks trained."""
    from collectives.pictures import world_sizes

    stories = {
        block: [
            world_sizes.Story(
                row["accident"].replace("_", " "),
                row["ranks before"],
                row["after"],
                row.get("last step"),
                row.get("seconds"),
            )
            for row in rows
        ]
        for block, rows in measured.items()
    }
    return world_sizes.draw(stories, title="How soon training continues after an accident")


def main() -> None:
    from collectives.pictures import picture

    if "--from-file" not in sys.argv:
        measured = {block: measure(default=block != BLOCKS[0]) for block in BLOCKS}
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    PART.write(table(measured))
    picture.save(figure(measured), PICTURE)


if __name__ == "__main__":
    main()
