"""What the page for teachers says of the verdicts, and its program that counts points, hold."""

import json
import re
import subprocess
import sys

from repository import ROOT

from collectives.cli import practice
from collectives.course.practice import registry
from collectives.course.practice.checker import ExerciseVerdict

PAGE = (ROOT / "docs/for-teachers.md").read_text(encoding="utf-8")


def verdict(name: str, kind: str) -> dict:
    return practice._plain(registry.find(name), ExerciseVerdict(kind, "It says.", "2 ranks"))


def test_a_verdict_has_the_fields_that_the_page_names():
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert named == list(verdict("neighbours", "solved"))


def test_the_weeks_name_exercises_with_their_stars():
    found = re.findall(r"(\w+) (★+)", PAGE)
    assert len(found) >= 18
    assert {name: len(stars) for name, stars in found} == {
        name: registry.find(name).stars for name, _ in found
    }


def test_its_program_counts_the_points_of_the_week(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = ("shards_with_a_remainder", "average_the_gradients", "neighbours")
    kinds = zip(names, ("solved", "wrong", "todo"), strict=True)
    file = tmp_path / "verdicts.json"
    file.write_text(json.dumps([verdict(name, kind) for name, kind in kinds]))
    command = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "average_the_gradients: wrong. It says. 2 ranks\n1 of 2 stars\n" in done.stdout
    assert done.returncode == 1
    assert "neighbours" not in done.stdout
