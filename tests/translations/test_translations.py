"""What a translation must keep, and what happens to it when its English changes."""

import re

import pytest
from repository import ROOT

pytest.importorskip("babel", reason="needs the extra site: make site")

from tools.translations import catalogs, checks, paragraphs

ENGLISH = (
    "On 4 ranks, `all_reduce` takes 31.5 ms; see [backends](../docs/backends.md) and all_gather. "
    "**A collective** is asynchronous, and no process hangs."
)
CHINESE = (
    "在 4 个 rank 上，`all_reduce` 要 31.5 ms；见[后端](../docs/backends.md)和 all_gather。"
    "**集合通信**是异步的，没有进程卡住。"
)


def test_a_faithful_paragraph_has_no_fault():
    assert list(checks.faults(ENGLISH, CHINESE)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("31.5", "31", "lacks the number '31.5'"),
        ("在 4 个", "在几个", "lacks the number '4'"),
        ("要 31.5", "第 2 次要 31.5", "adds the number '2'"),
        ("`all_reduce`", "`all_gather`", "adds the code 'all_gather'"),
        ("`all_reduce`", "它", "lacks the code 'all_reduce'"),
        ("和 all_gather", "和全收集", "lacks the name 'all_gather'"),
        ("../docs/backends.md", "docs/backends.md", "adds the link 'docs/backends.md'"),
        ("**集合通信**", "集合通信", "lacks the emphasis 'strong'"),
        ("**集合通信**是", "**集合通信。**是", "that Markdown does not understand"),
        ("集合通信", "调用", "has none of 集合通信 for 'collective'"),
        ("rank 上", "进程上", "has none of rank for 'ranks'"),
        ("异步", "不等", "has none of 异步"),
        ("卡住", "挂起", "says 挂起; write 卡住"),
        ("没有进程", "您没有进程", "says 您; write 你"),
        ("4 个", "4个", "needs a space in '4个'"),
        ("个 rank", "个rank", "needs a space in '个r'"),
        ("上，", "上,", "needs a full-width mark in '上,'"),
        ("。", ".", "needs a full-width mark"),
    ],
)
def test_a_planted_fault_is_found(old, new, fault):
    assert CHINESE.replace(old, new) != CHINESE
    assert fault in "\n".join(checks.faults(ENGLISH, CHINESE.replace(old, new)))


LINKED = "A [rank](glossary.md#rank) of a [group](glossary.md#group), see [gather](gather.ipynb)."


@pytest.mark.parametrize(
    ("chinese", "fault"),
    [
        ("[组](glossary.md#group)里的 [rank](glossary.md#rank)，见 [gather](gather.ipynb)。", ""),
        (
            "[组](glossary.md#rank)里的 [rank](glossary.md#group)，见 [gather](gather.ipynb)。",
            "leads from '组' to the term 'rank'",
        ),
        (
            "[组](gather.ipynb)里的 [rank](glossary.md#rank)，见 [gather](glossary.md#group)。",
            "leads from 'gather' to glossary.md#group; the English text to gather.ipynb",
        ),
    ],
    ids=["another order", "a term", "a page"],
)
def test_links_that_have_changed_places_are_found(chinese, fault):
    found = list(checks.faults(LINKED, chinese))
    assert fault in found if fault else found == []


def test_no_committed_translation_has_a_fault():
    """What is out of date is shown in English, and is no fault."""
    assert catalogs.entries()
    assert checks.all_faults() == []


def test_each_word_of_the_glossary_that_is_translated_is_a_term_or_stays_as_it_is():
    known = catalogs.entries()
    headings = {term.capitalize(): words for term, words in checks.terms()["words"].items()}
    translated = [heading for heading in headings if heading in known]
    assert len(translated) > 20
    for heading in translated:
        assert any(word in str(known[heading].string) for word in headings[heading]), heading


PAGE = """\
# A title

A first paragraph
on two lines.

- an item
- another one

| a head | a cell of two words |
| --- | --- |
| 4 | a pipe \\| inside |

:::{container} use
Inside of a container.
:::

<details><summary>Answer</summary>

> It is quoted.

</details>

```python
print("no message")
```

    no message either

```{toctree}
A page </other>
```
"""


def test_a_page_with_the_same_words_is_the_same_page_and_code_stays():
    found = [one.message for one in paragraphs.find(PAGE)]
    again = paragraphs.replaced(PAGE, str)
    assert [one.message for one in paragraphs.find(again)] == found
    upper = paragraphs.replaced(PAGE, str.upper)
    assert [one.message for one in paragraphs.find(upper)] == [one.upper() for one in found]
    assert 'print("no message")' in upper
    assert "    no message either" in upper
    assert ":::{container} use" in upper


def test_the_messages_are_those_that_sphinx_asks_for(tmp_path):
    from sphinx.cmd.build import main as sphinx

    (tmp_path / "index.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("# Other\n")
    conf = "extensions = ['myst_parser']\nmyst_enable_extensions = ['colon_fence']\n"
    (tmp_path / "conf.py").write_text(conf)
    assert sphinx(["-q", "-b", "gettext", str(tmp_path), str(tmp_path / "out")]) == 0
    asked = re.findall(r'^msgid "(.+)"$', (tmp_path / "out/index.pot").read_text(), re.MULTILINE)
    found = set(paragraphs.of_page(tmp_path / "index.md"))
    assert found == {*(one.replace(r"\\", "\\") for one in asked), "Answer"}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes the English page `notebooks/new` and brings its catalog up to it."""
    monkeypatch.setattr(catalogs, "FOLDER", tmp_path / "zh_CN")
    (tmp_path / "zh_CN/notebooks").mkdir(parents=True)
    (tmp_path / "zh_CN/notebooks/new.po").touch()
    (tmp_path / "notebooks").mkdir()

    def write(text: str) -> str:
        (tmp_path / "notebooks/new.md").write_text(text)
        catalogs.update(tmp_path)
        return (tmp_path / "zh_CN/notebooks/new.po").read_text()

    write.folder = tmp_path
    return write


def missing(page) -> list[tuple[str, str]]:
    found = catalogs.missing(page.folder)
    return [(message, why) for name, message, why in found if name != catalogs.WORDS]


def test_a_paragraph_whose_english_changed_is_shown_in_english_with_a_mark(page):
    first, second = "Every rank waits for the sum.", "`x` becomes the mean."
    empty = page(f"{first}\n\n{second}\n")
    assert missing(page) == [(first, "new"), (second, "new")]
    filled = empty.replace('msgstr ""', 'msgstr "每个 rank 都等着求和。"', 1)
    filled = filled.replace('msgstr ""', 'msgstr "`x` 变成平均值。"', 1)
    (page.folder / "zh_CN/notebooks/new.po").write_text(filled)
    assert missing(page) == []

    changed = "Every rank waits for the sum of all."
    assert catalogs.translated(f"{changed}\n\n{second}", catalogs.entries()).startswith(
        catalogs.CHANGED
    )
    assert missing(page) == []  # nobody has looked yet
    assert "#, fuzzy" in page(f"{changed}\n\n{second}\n")
    assert missing(page) == [(changed, "changed")]
    shown = catalogs.translated(f"{changed}\n\n{second}", catalogs.entries())
    assert shown == f"{catalogs.CHANGED} {changed}\n\n`x` 变成平均值。"
    catalogs.stage(page.folder, page.folder / "staged")
    staged = (page.folder / "staged/zh_CN/LC_MESSAGES/notebooks/new.po").read_text()
    assert "等着" not in staged
    assert "变成平均值" in staged


def test_a_note_for_chinese_readers_follows_its_paragraph(page):
    text = page("gloo moves the data.").replace('msgstr ""', 'msgstr "数据由 gloo 搬。"')
    text = text.replace("msgid", "# note: 别的后端也一样，见 `x`。\nmsgid")
    (page.folder / "zh_CN/notebooks/new.po").write_text(text)
    page("gloo moves the data.")
    assert (
        catalogs.translated("gloo moves the data.", catalogs.entries())
        == "数据由 gloo 搬。别的后端也一样，见 `x`。"
    )


def test_a_changed_paragraph_has_the_mark_that_the_readme_has():
    style = (ROOT / "tools/site/static/site.css").read_text("utf-8")
    assert f'content: "{catalogs.CHANGED} "' in style


def test_what_is_made_of_the_catalogs_is_as_they_are():
    """If not: make docs ARGS=translations."""
    assert catalogs.README.read_text("utf-8") == catalogs.readme()
    assert (ROOT / "exercises/zh.json").read_text("utf-8") == catalogs.tasks()
