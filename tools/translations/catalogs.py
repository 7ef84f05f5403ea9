"""What is translated, and whether it still is what the English says: `make docs ARGS=translations`.

translations/zh_CN/PAGE.po has the paragraphs of a page of the site. One that several pages share
stands in the first of them alone. A paragraph whose English has changed is shown in English.
"""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

from collectives.course import chapters
from collectives.course.practice import registry
from tools.site.pages import Source
from tools.site.repository import ROOT
from tools.translations import paragraphs

LANGUAGE = "zh_CN"
FOLDER = ROOT / "translations" / LANGUAGE
WORDS = "words"  # of the site itself, from its templates
CHANGED = "〔这一段的英文已经改动，译文待更新〕"
README = ROOT / "README.zh-CN.md"
TO_CHINESE = "[中文](README.zh-CN.md)"
TO_ENGLISH = (
    "[English](README.md) · 下方链接指向英文页面；中文网站可用 `make site` 生成，位于 `site/zh/`。"
)

# Of what several pages say, the first one in this order has the translation; the others follow.
FIRST = ("index", "README", "docs/contents", "notebooks/start")

# Of which the theme has no Chinese.
THEME = ("Collapse Sidebar", "Expand Sidebar", "Color mode")


# The title of a page in a list of pages: as a link, or with its stars. It is translated as a title.
TITLE = re.compile(r"(\[)([^\]`]+)(\]\([^)]*\)(?:, \[\.py\]\([^)]*\))?)|()(.+)( ★+)")


class Missing(NamedTuple):
    """A paragraph that is shown in English."""

    page: str
    message: str
    why: str


def pages() -> list[str]:
    """The pages that are translated: those with a catalog."""
    found = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.po")]
    known = [*FIRST, *sorted(found)]
    return sorted(set(found) - {WORDS}, key=known.index)


def read(name: str) -> Catalog:
    path = FOLDER / f"{name}.po"
    if not path.is_file():
        return Catalog(locale=LANGUAGE, fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=LANGUAGE)


def entries() -> dict[str, Message]:
    """All that is translated, and not since its English has changed."""
    found = {}
    for path in FOLDER.rglob("*.po"):
        for entry in read(path.relative_to(FOLDER).with_suffix("").as_posix()):
            if entry.id and entry.string and not entry.fuzzy:
                found[str(entry.id)] = entry
    return found


def with_note(entry: Message) -> str:
    """The translation, and what a Chinese reader needs beside it: a comment "note: ..."."""
    comment = " ".join(entry.user_comments)  # Babel breaks a long one at its spaces
    note = comment.removeprefix("note:").strip() if comment.startswith("note:") else ""
    return f"{entry.string}{note}"


def parts(message: str) -> tuple[str, str, str]:
    """The title that stands in a message alone, and what is around it."""
    if not (found := TITLE.fullmatch(message)):
        return "", "", ""
    return found[1] or "", found[2] or found[5], found[3] or found[6]


def in_chinese(message: str, known: dict[str, Message]) -> str | None:
    """None if nobody has translated it."""
    if message in known:
        return with_note(known[message])
    before, title, after = parts(message)
    if title in known:
        return f"{before}{known[title].string}{after.replace(', ', '，')}"
    return None if paragraphs.has_language(message) else message


def of_page(source: Path, page: str) -> list[str]:
    """The messages of one page of the folder that Sphinx reads."""
    if page != WORDS:
        notebook = source / f"{page}.ipynb"
        file = notebook if notebook.is_file() else source / f"{page}.md"
        return list(dict.fromkeys(paragraphs.of_page(file))) if file.is_file() else []
    found = list(THEME)
    for template in sorted((ROOT / "tools/site/templates").glob("*.html")):
        for text in re.findall(r"\{% trans.*?%\}(.*?)\{% endtrans", template.read_text("utf-8")):
            found.append(re.sub(r"\{\{ (\w+) \}\}", r"%(\1)s", text))
    return list(dict.fromkeys(found))


def update(source: Path) -> None:
    """Bring the catalogs up to the English: an entry of which the English changed is fuzzy."""
    known, placed = entries(), set()  # known now: a paragraph may come to another page
    for page in (*pages(), WORDS):
        template, catalog = Catalog(fuzzy=False), read(page)
        for shown in of_page(source, page):
            message = parts(shown)[1] or shown
            if message not in placed and (page == WORDS or paragraphs.has_language(shown)):
                placed.add(message)
                template.add(message)
                if message in known and message not in catalog:
                    entry = known[message]
                    catalog.add(message, entry.string, user_comments=entry.user_comments)
        catalog.update(template, update_header_comment=False, update_creation_date=False)
        _write(FOLDER / f"{page}.po", catalog, no_location=True, ignore_obsolete=True)


def missing(source: Path) -> Iterator[Missing]:
    """Of the pages that are translated."""
    known = entries()
    for page in (*pages(), WORDS):
        old = {entry.id: entry for entry in read(page)}
        for message in of_page(source, page):
            if in_chinese(message, known) is None:
                changed = message in old and old[message].fuzzy
                yield Missing(page, message, "changed" if changed else "new")


def stage(source: Path, folder: Path) -> None:
    """The catalogs as Sphinx reads them: one for each translated page, with all its messages.

    Of a lesson that is not translated, the title is, because lists of lessons show it.
    """
    known = entries()
    others = {f"notebooks/{name}" for one in chapters.read().values() for name in one.names}
    for page in (*pages(), WORDS, *sorted(others - {*pages()})):
        catalog = Catalog(locale=LANGUAGE, fuzzy=False)
        found = of_page(source, page)
        for message in found[:1] if page in others and page not in pages() else found:
            if (chinese := in_chinese(message, known)) is not None:
                catalog.add(message, chinese)
        # The words of templates are those that Sphinx itself has in this catalog.
        name = "sphinx" if page == WORDS else page
        _write(folder / LANGUAGE / "LC_MESSAGES" / f"{name}.po", catalog)


def _write(path: Path, catalog: Catalog, **options: bool) -> None:
    """Only if it has changed: Sphinx and the tests of the site look at its time."""
    text = io.BytesIO()
    write_po(text, catalog, width=0, omit_header=True, **options)
    if not path.is_file() or path.read_bytes() != text.getvalue():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.getvalue())


def translated(text: str, known: dict[str, Message]) -> str:
    """Markdown in Chinese. `known`: see `entries`."""

    def of(message: str) -> str:
        chinese = in_chinese(message, known)
        return f"{CHANGED} {message}" if chinese is None else chinese

    return paragraphs.replaced(text, of)


def readme() -> str:
    """README.zh-CN.md. Its anchors are those of the English one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    title, _, text = text.partition(TO_CHINESE)
    linked = set(re.findall(r"\]\(#([\w-]+)\)", text))
    for heading in re.findall(r"^## .*$", text, re.MULTILINE):
        slug = heading[3:].lower().replace(" ", "-").replace(".", "")
        if slug in linked:
            text = text.replace(f"{heading}\n", f'<a id="{slug}"></a>\n\n{heading}\n')
    return f"{title}{TO_ENGLISH}{translated(text, entries())}"


def tasks() -> str:
    """exercises/zh.json, with which `collectives practice` says tasks and hints in Chinese."""
    known = entries()
    found = {}
    for page in pages():
        if page.startswith("exercises/") and page != "exercises/index":
            path = ROOT / page
            _, said, _ = (path / "task.py").read_text(encoding="utf-8").split('"""', 2)
            title, _, text = said.partition("\n")
            paragraphs = [" ".join(one.split("\n")) for one in text.strip("\n").split("\n\n")]
            for one in [title, *paragraphs, *registry.find(path.name).hints]:
                if one in known:
                    found[one] = str(known[one].string)
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def main() -> list[Missing]:
    """Update the catalogs and what is made of them, and list what is shown in English."""
    source = Source(ROOT / ".site" / "source", "")
    source.write()
    update(source.pages)
    if "README" in pages():
        README.write_text(readme(), encoding="utf-8")
    (ROOT / "exercises/zh.json").write_text(tasks(), encoding="utf-8")
    found = list(missing(source.pages))
    for page, message, why in found:
        print(f"{FOLDER.name}/{page}.po: {why}: {message[:90]}")
    mark = "::warning::" if found and os.environ.get("GITHUB_ACTIONS") else ""
    print(f"{mark}{len(found)} paragraphs of {len(pages())} Chinese pages are shown in English.")
    return found


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
