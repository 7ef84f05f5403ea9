"""What a translated paragraph has to keep of the English, and how Chinese is written here."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tools.translations import catalogs, paragraphs

HAN = "[\u3400-\u9fff]"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
NAME = re.compile(r"[A-Za-z]\w*_\w+")


@cache
def terms() -> dict[str, dict]:
    return tomllib.loads((catalogs.FOLDER / "terms.toml").read_text(encoding="utf-8"))


def faults(english: str, chinese: str) -> Iterator[str]:
    before, after = _kept(english), _kept(chinese)
    for kind, what in before - after:
        yield f"lacks the {kind} {what!r}"
    for kind, what in after - before:
        yield f"adds the {kind} {what!r}"
    yield from _misled(english, chinese)
    said, text = paragraphs.prose(english), _flat(chinese)
    for term, words in terms()["words"].items():
        term = rf"(?<![\w-]){term}(?:s|es)?(?![\w-])"
        around = rf"((?:\S+ )?['\"]?)({term})(['\"]?(?: \w+)?)"
        if found := re.search(around, said, re.IGNORECASE):
            left, word, right = found.groups()
            is_quoted = (left and left + word in text) or (right and word + right in text)
            if not is_quoted and not any(one in text.lower() for one in words):
                yield f"has none of {', '.join(words)} for {word!r}"
    for word, instead in terms()["never"].items():
        if word in text:
            yield f"says {word}; write {instead}"
    yield from _badly_set(text)


def _kept(message: str) -> Counter:
    """Code, numbers, names of the API, targets of links and emphasis, which have no language."""
    found: Counter = Counter()
    for token in paragraphs.INLINE.parseInline(message)[0].children or ():
        if token.type == "code_inline":
            found["code", token.content] += 1
        elif token.type in ("link_open", "image"):
            found["link", token.attrs.get("href") or token.attrs.get("src")] += 1
        elif token.type in ("strong_open", "em_open"):
            found["emphasis", token.tag] += 1
        elif token.type == "text":
            found.update(("number", number) for number in NUMBER.findall(token.content))
            found.update(("name", name) for name in NAME.findall(token.content))
            for mark in re.findall(r"\*+(?=\S)|\*\*|`", token.content):
                found["mark that Markdown does not understand", mark] += 1
    return found


def _misled(english: str, chinese: str) -> Iterator[str]:
    """Links that have changed places: the text of one leads where another should."""
    leads = _links(english)
    words = {term.replace(" ", "-"): words for term, words in terms()["words"].items()}
    for text, target in _links(chinese):
        if text in dict(leads) and (text, target) not in leads:
            yield f"leads from {text!r} to {target}; the English text to {dict(leads)[text]}"
        _, is_term, term = target.partition("glossary.md#")
        if is_term and not any(word in text.lower() for word in words.get(term, [""])):
            yield f"leads from {text!r} to the term {term!r}"


def _links(message: str) -> list[tuple[str, str]]:
    """The text of each link, and where it leads."""
    found: list[tuple[str, str]] = []
    is_open = False
    for token in paragraphs.INLINE.parseInline(message)[0].children or ():
        if token.type in ("link_open", "link_close"):
            is_open = token.type == "link_open"
            found += [("", str(token.attrs["href"]))] if is_open else []
        elif is_open:
            found[-1] = (found[-1][0] + token.content, found[-1][1])
    return found


def _flat(message: str) -> str:
    """As it is read, with one letter for each code span."""
    shown = {"code_inline": "x", "softbreak": " "}
    tokens = paragraphs.INLINE.parseInline(message)[0].children or ()
    return "".join(shown.get(token.type, token.content) for token in tokens)


def _badly_set(text: str) -> Iterator[str]:
    text = re.sub(rf"(?<!{HAN})[A-Za-z0-9_]*\([A-Za-z0-9_, *+/.-]*\)", "x", text)  # a formula
    for found in re.findall(rf"{HAN}[A-Za-z0-9]|[A-Za-z0-9%]{HAN}", text):
        yield f"needs a space in {found!r}"
    for found in re.findall(rf"{HAN} ?[,;:!?.(]|(?:[,;:!?.]|(?<!\()\)) ?{HAN}", text):
        yield f"needs a full-width mark in {found!r}"


def all_faults() -> list[str]:
    """Of all that is translated now. What is out of date is not looked at."""
    return [
        f"{english[:70]}: {fault}"
        for english, entry in catalogs.entries().items()
        if "%(" not in english
        for fault in faults(english, str(entry.string))
    ]
