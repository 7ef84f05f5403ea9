"""What the lessons of the route show of their programs: `python -m tools.route` writes it there.

A lesson shows what its program has that the one before has not. The first shows its main function,
and the last also folds the whole program. A test compares.
"""

import difflib
import re
import textwrap
from pathlib import Path

from collectives.course import chapters

_BLOCK = re.compile(r"^# ```(diff|python)\n.*?^# ```$", re.MULTILINE | re.DOTALL)


def programs() -> list[Path]:
    return sorted((chapters.folder().parent / "examples" / "route").glob("*.py"))


def lessons() -> list[Path]:
    """Of the nine programs, in their order."""
    return [chapters.folder() / "route" / f"{name}.py" for name in _names()]


def _names() -> list[str]:
    return [lesson.path.stem for lesson in chapters.find("route").lessons]


def new_lines(before: Path, after: Path) -> list[str]:
    """Those that are added or changed, less the blank ones."""
    texts = before.read_text("utf-8"), after.read_text("utf-8")
    lines = [line for hunk in _hunks(*texts) for line in hunk]
    return [line[1:] for line in lines if line.startswith("+") and line[1:].strip()]


def difference(before: Path, after: Path) -> str:
    """Below the docstrings and without what is imported: each place in the file is a paragraph."""
    bodies = [file.read_text("utf-8").partition('"""\n\n')[2] for file in (before, after)]
    paragraphs = []
    for whole in _hunks(*bodies):
        hunk = [line for line in whole if not re.match(".(import|from) ", line)]
        lines = textwrap.dedent("\n".join(line[1:] for line in hunk)).split("\n")
        marked = [line[:1] + text for line, text in zip(hunk or [""], lines, strict=True)]
        paragraphs.append(re.sub(r"^([-+ ]\n)+|(\n[-+ ])+$", "", "\n".join(marked)))
    return "\n\n".join(one for one in paragraphs if one.strip("-+ "))


def _hunks(before: str, after: str) -> list[list[str]]:
    """Each line begins with "-", "+" or, if it is the same in both, a space."""
    hunks: list[list[str]] = []
    texts = before.splitlines(), after.splitlines()
    for line in list(difflib.unified_diff(*texts, n=1, lineterm=""))[2:]:
        if line.startswith("@@"):
            hunks.append([])
        else:
            hunks[-1].append(line)
    return [hunk if hunk[-1][0] in "+-" else hunk[:-1] for hunk in hunks]


def shown(number: int) -> list[str]:
    """The blocks of the lesson on this program, which counts from 0."""
    files = programs()
    text = files[number].read_text("utf-8")
    if number == 0:
        main = re.search(r"^def main.*?(?=\n\n\n)", text, re.MULTILINE | re.DOTALL)
        assert main is not None
        return [f"```python\n{main[0]}\n```"]
    whole = [f"```python\n{text}```"] if number == len(files) - 1 else []
    return [f"```diff\n{difference(files[number - 1], files[number])}\n```", *whole]


def as_comment(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


def write() -> None:
    for number, lesson in enumerate(lessons()):
        blocks = map(as_comment, shown(number))
        text = _BLOCK.sub(lambda _, blocks=blocks: next(blocks), lesson.read_text("utf-8"))  # type: ignore[misc]
        lesson.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
