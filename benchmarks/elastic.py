"""How soon training continues after the accidents of lessons/machines/elastic.py, in minutes.

    python benchmarks/elastic.py docs/elastic_times.json && make docs ARGS="elastic elastic-plot"

All of them happen twice: with the times that the lesson gives torchrun, and with torchrun's own.
"""

import json
import sys
from pathlib import Path

from collectives.course import files


def measure(default: bool) -> list[dict]:
    """The rows of the lesson, with the seconds from each accident to the next step of training."""
    lesson = files.load(files.find("machines/elastic"))
    if default:
        lesson.TORCHRUN, _, _ = lesson.TORCHRUN.partition("--rdzv-conf")
    for step in lesson.STEPS:
        print(step.__name__, file=sys.stderr)
        step()
    return [
        {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        for row in lesson.Job.times
    ]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    found = {
        "with the times of the lesson": measure(default=False),
        "with torchrun's own times": measure(default=True),
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
