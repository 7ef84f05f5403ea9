"""A table in Markdown."""

from collections.abc import Iterable


def table(heads: list[str], rows: Iterable[Iterable]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
