"""In a real browser every notebook shows all its pictures, without an error on the console."""

import json
import re
from html import unescape
from pathlib import Path

import nbformat
import pytest
from browser import browse, needs_browser
from nbconvert import HTMLExporter

NOTEBOOKS = sorted(Path(__file__).parent.parent.glob("notebooks/*.ipynb"))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    needs_browser,
]

# Nothing on the page needs these, and a test is not to fetch them.
WITHOUT_A_NETWORK = {
    "mathjax_url": "data:,",
    "require_js_url": "data:,",
    "jquery_url": "data:,",
    "mermaid_js_url": "data:,",
}
FIRST = "<script>var problems = []; addEventListener('error', e => problems.push(e.message || e.target.outerHTML), true)</script>"
LAST = """<script>addEventListener("load", () => {
    const box = picture => { const box = picture.getBoundingClientRect(); return [picture.naturalWidth, box.height] }
    const pictures = [...document.querySelectorAll(".jp-RenderedSVG img")].map(box)
    document.title = JSON.stringify({problems, pictures})
})</script>"""


def shown(page: str, folder: Path) -> tuple[dict, str]:
    """What the page says of itself when it has loaded, and what came out on the console."""
    file = folder / "page.html"
    file.write_text(
        page.replace("<head>", f"<head>{FIRST}", 1).replace("</body>", f"{LAST}</body>", 1)
    )
    document, console = browse(file, folder)
    title = re.search(r"<title>(.*?)</title>", document, re.DOTALL)[1]
    return json.loads(unescape(title)), console


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_every_picture_is_seen_and_the_console_stays_empty(path, tmp_path):
    cells = nbformat.read(path, as_version=4).cells
    drawn = [
        output
        for cell in cells
        for output in cell.get("outputs", ())
        if "image/svg+xml" in output.get("data", ())
    ]
    found, console = shown(HTMLExporter(**WITHOUT_A_NETWORK).from_filename(path)[0], tmp_path)
    assert (found["problems"], console) == ([], "")
    assert len(found["pictures"]) == len(drawn)
    for own_width, height in found["pictures"]:
        assert own_width > 100, "the browser could not read it"
        assert height > 50


def test_a_broken_page_is_noticed(tmp_path):
    broken = '<script>nothing.here()</script><div class="jp-RenderedSVG"><img src="data:image/svg+xml,<svg"></div>'
    found, console = shown(f"<html><head></head><body>{broken}</body></html>", tmp_path)
    assert "nothing is not defined" in found["problems"][0]
    assert "nothing is not defined" in console
    assert found["pictures"][0][0] == 0
