"""What people write about distributed PyTorch, and what is so: docs/statements.md."""

import tomllib
from pathlib import Path

from tools.markdown import table

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "lessons" / "statements.toml"


def rows() -> list[dict]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["statement"]


def page() -> str:
    statements = rows()
    by_run = sum(row["known"] == "run" for row in statements)
    lines = [[row["nr"], row["claim"], row["fact"], _where(row), _known(row)] for row in statements]
    heads = ["nr", "what people write", "what is so", "where", "how we know"]
    return f"A run refutes {by_run} of these {len(lines)} statements.\n\n{table(heads, lines)}"


def _where(row: dict) -> str:
    lesson = row["lesson"]
    if lesson.endswith(".md"):
        return f"[{Path(lesson).stem}]({Path(lesson).name})"
    return f"[{lesson}](../notebooks/{lesson}.ipynb)"


def _known(row: dict) -> str:
    return f"run: `{row['step']}`" if row["known"] == "run" else f"{row['known']}: {row['source']}"
