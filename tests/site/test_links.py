"""A link that leads nowhere is found, or elsewhere than in English, or to another machine."""

import pytest

from tools.site import links


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html#there">', None),
        ('<a href="https://example.org">', None),
        ('<img src="data:image/svg+xml,x">', None),
        ('<a href="framed.html#ring/4">', None),
        ('<a href="nowhere.html">', "there is no nowhere.html"),
        ('<a href="other.html#nowhere">', "there is no anchor other.html#nowhere"),
        ('<a href="#nowhere">', "there is no anchor #nowhere"),
        ('<a href="folder">', "there is no folder"),
        ('<img src="nowhere.png">', "there is no nowhere.png"),
        ('<script src="https://example.org/x.js">', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "there is no //example.org/x.css"),
    ],
)
def test_a_fault_is_named_with_its_page(body, fault, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.html").write_text('<p id="there">')
    (tmp_path / "framed.html").write_text('<iframe id="in-frame">')
    (tmp_path / "page.html").write_text(body)
    assert links.broken(tmp_path) == ([f"page.html: {fault}"] if fault else [])


def test_a_link_that_leads_elsewhere_in_chinese_is_named_with_its_page(tmp_path):
    (tmp_path / "zh").mkdir()
    page = '<a href="{}">menu</a><article><a href="#rank">rank</a><a href="#group">{}</a></article>'
    (tmp_path / "page.html").write_text(page.format("zh/page.html", "group"))
    (tmp_path / "zh/page.html").write_text(page.format("../page.html", "组"))
    assert links.lost(tmp_path) == []
    (tmp_path / "zh/page.html").write_text(page.replace("#rank", "#group"))
    assert links.lost(tmp_path) == ["zh/page.html: lacks a link to #rank"]
