"""The wrong answers of every exercise, by the kind of case that refutes them."""

import runpy
from collections import Counter

from collectives.course import files
from collectives.course.practice import registry
from collectives.course.practice.exercise import Exercise
from tools.markdown import table

# What the first case shows, in the smallest world. All other kinds pass it.
FIRST = ("the example", "what is counted", "what the text demands")


def wrong_answers(exercise: Exercise) -> dict[str, dict]:
    """By title. What several exercises share lies in the folder of their chapter, or of all."""
    chapter = exercise.folder.parent
    with files.imports_from(chapter.parent), files.imports_from(chapter):
        return runpy.run_path(str(exercise.folder / "wrong.py"))["WRONG"]


def page() -> str:
    rows = []
    total: Counter[str] = Counter()
    for name, exercise in registry.read().items():
        kinds = Counter(answer["kind"] for answer in wrong_answers(exercise).values())
        total += kinds
        others = sorted(kind for kind in kinds if kind not in FIRST)
        first = sum(kinds[kind] for kind in FIRST)
        file = f"../exercises/{exercise.chapter}/{name}/wrong.py"
        rows.append([f"[{name}]({file})", first, ", ".join(others) or "-"])
    by_kind = sorted(total.items(), key=lambda kind: (-kind[1], kind[0]))
    return (
        f"{total.total()} wrong answers to {len(rows)} exercises:\n\n"
        f"{table(['refuted by', 'wrong answers'], by_kind)}\n\n"
        f"{table(['exercise', 'by its first case', 'only by cases of these kinds'], rows)}"
    )
