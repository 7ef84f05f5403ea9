"""Every link and anchor inside a folder of pages, and whatever they would load from elsewhere."""

from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class _Page(HTMLParser):
    """The ids of a page, its links, and what a browser loads with it."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: Counter[str] = Counter()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links[found["href"]] += 1
        if LOADED.get(tag, "") in found and found.get("rel") not in ("next", "prev"):
            self.loaded.add(found[LOADED[tag]])


def broken(site: Path) -> list[str]:
    """What leads nowhere, and what a page would ask another machine for, with its page."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    return [
        f"{path.relative_to(site)}: {fault}"
        for path in sorted(pages)
        for fault in _faults(path, pages)
    ]


def _faults(path: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    page = pages[path]
    for link in sorted({*page.links} | page.loaded):
        parts = urlsplit(urljoin(path.as_uri(), link))
        if parts.scheme != "file":
            if link in page.loaded and parts.scheme != "data":
                yield f"loads {link}"
            continue
        target = Path(unquote(parts.path))
        if not target.is_file():
            yield f"there is no {link}"
        elif parts.fragment and target in pages:
            known = pages[target].ids
            # What stands behind the # of a page in a frame is what it shows.
            if unquote(parts.fragment) not in known and "in-frame" not in known:
                yield f"there is no anchor {link}"


def lost(site: Path) -> list[str]:
    """Links of English pages that their Chinese twins, in site/zh/, do not have as often."""
    found = []
    for path in sorted((site / "zh").rglob("*.html")):
        twin = site / path.relative_to(site / "zh")
        lacking = _links_of_the_text(twin) - _links_of_the_text(path)
        found += [f"{path.relative_to(site)}: lacks a link to {link}" for link in lacking]
    return found


def _links_of_the_text(path: Path) -> Counter[str]:
    """Without what is around it on the page: menus, and the switch of languages."""
    text = path.read_text(encoding="utf-8").partition("<article")[2]
    return _Page(text.partition("</article>")[0]).links
