"""What `collectives practice` says in Chinese: the sentences of chinese.toml, and the tasks and
hints of exercises/zh.json, which `make docs ARGS=translations` makes.
"""

import functools
import json
import re
import tomllib
from pathlib import Path

from collectives.course.practice import registry


def said(text: str) -> str:
    """`text` in Chinese; as it is where nobody has translated it."""
    if (whole := _texts().get(text)) is not None:
        return whole
    for pattern, chinese in _sentences():
        if found := pattern.fullmatch(text):
            return chinese.format(*map(said, found.groups()))
    return text


def task(program: str) -> str:
    """The program of a task.py with its docstring in Chinese, paragraph by paragraph."""
    before, text, after = program.split('"""', 2)
    title, _, others = text.partition("\n")
    parts = [said(title), *map(_paragraph, others.strip("\n").split("\n\n"))]
    text = "\n\n".join(parts)
    return f'{before}"""{text}\n"""{after}'


def _paragraph(text: str) -> str:
    joined = " ".join(text.split("\n"))
    chinese = said(joined)
    return text if chinese == joined else chinese


@functools.cache
def _texts() -> dict[str, str]:
    return json.loads((registry.folder() / "zh.json").read_text("utf-8"))


@functools.cache
def _sentences() -> list[tuple[re.Pattern[str], str]]:
    table = tomllib.loads(Path(__file__).with_name("chinese.toml").read_text("utf-8"))
    return [
        (
            re.compile(
                re.escape(english).replace(r"\{\}", "(.+?)").replace(r"\{n\}", r"(\d+)"), re.DOTALL
            ),
            chinese,
        )
        for english, chinese in table.items()
    ]
