"""The paragraphs of a page, under the names that they have in Sphinx's catalogs.

A message is a paragraph, a heading, a cell of a table, the summary of what is folded, or a title in
a list of pages. Code is none.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

BLOCKS = MarkdownIt("commonmark").enable("table")
INLINE = MarkdownIt("commonmark")
SUMMARY = re.compile(r"(?<=<summary>).*?(?=</summary>)")


class Found(NamedTuple):
    """A message, its lines in the page, and how it begins there: "" in a table, None in HTML."""

    message: str
    first: int
    end: int
    begin: str | None


def of_page(path: Path) -> Iterator[str]:
    """Those of a page that Sphinx reads, which is Markdown or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "markdown":
                yield from (found.message for found in find("".join(cell["source"])))
            for output in cell.get("outputs", ()):
                yield from SUMMARY.findall("".join(output.get("data", {}).get("text/html", ())))
        return
    yield from (found.message for found in find(text))
    for listed in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^:caption: (.+)$", listed, re.MULTILINE)
        yield from re.findall(r"^(.+) <\S+>$", listed, re.MULTILINE)


def find(text: str) -> Iterator[Found]:
    row = None
    for token in BLOCKS.parse(re.sub(r"^:{3,}.*$", "", text, flags=re.MULTILINE)):
        row = {"tr_open": token.map, "tr_close": None}.get(token.type, row)
        if token.type == "inline" and token.content.strip():
            lines = [line.strip() for line in token.content.split("\n")]
            first, end = row or token.map or (0, 0)
            yield Found(" ".join(lines), first, end, "" if row else lines[0])
        elif token.type == "html_block" and token.map:
            first, end = token.map
            yield from (Found(one, first, end, None) for one in SUMMARY.findall(token.content))


def replaced(text: str, of: Callable[[str], str]) -> str:
    """The Markdown `text` with `of(message)` in the place of each message."""
    lines: list[str | None] = list(text.split("\n"))
    done: dict[int, int] = {}  # row of a table: up to where its cells are replaced
    for message, first, end, begin in find(text):
        line = lines[first] or ""
        if begin is None:
            lines[first] = line.replace(f"<summary>{message}<", f"<summary>{of(message)}<")
        elif not begin:
            old, new = (one.replace("|", r"\|") for one in (message, of(message)))
            at = line.index(old, done.get(first, 0))
            lines[first] = line[:at] + new + line[at + len(old) :]
            done[first] = at + len(new)
        else:
            mark = line.rstrip()[: -len(begin)]  # of a heading, an item or a quotation
            lines[first:end] = [mark + of(message), *[None] * (end - first - 1)]
    return "\n".join(line for line in lines if line is not None)


def prose(message: str) -> str:
    """What it says beside its code, the targets of its links, and links called by their files."""
    said = re.sub(r"\[([\w./]+)\]\([^)]*\1[^)]*\)", "", message)
    tokens = INLINE.parseInline(said)[0].children or ()
    return " ".join(token.content for token in tokens if token.type == "text")


def has_language(message: str) -> bool:
    """Whether there is a word in it that is no name of a file, a call or a rank."""
    words = re.findall(r"[^\W\d][\w./]*", prose(message))
    names = re.compile(r"rank|n|collectives|.*([_\d/]|\.\w).*")
    return not all(names.fullmatch(word) for word in words)
