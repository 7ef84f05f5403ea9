"""What `run` shows in a notebook: what was printed, the pictures below it, and a note meanwhile.

A page shows the best form of a picture that it trusts. JupyterLab shows no SVG that somebody else
has made, so each picture is a PNG and a text as well.
"""

from __future__ import annotations

import base64
import contextlib
import sys
import threading
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from IPython.display import DisplayHandle, display
from rich.console import Group

from collectives.course import rich_console
from collectives.course.console import print_text
from collectives.course.results import StepReport
from collectives.course.show import WIDTH, drawable, figures
from collectives.pictures import illustration, text
from collectives.pictures.page import take_caption
from collectives.words import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTHING = {"text/html": "", "text/plain": ""}


@contextlib.contextmanager
def note_after(seconds: float, words: str) -> Iterator[None]:
    """After so many seconds these words stand under the cell, until the block ends."""
    shown: list[DisplayHandle] = []
    timer = threading.Timer(
        seconds, lambda: shown.append(display({"text/plain": words}, raw=True, display_id=True))
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for note in shown:
            note.update(_NOTHING, raw=True)


def show(report: StepReport, folded: bool) -> None:
    """Under the cell, or behind a click, because the reader is asked to say it before."""
    drawn = _drawn(report)
    words = _words(report, drawn)
    if folded:
        display(_fold(printable(report.text), drawn, words), raw=True)
        return
    print_text(report.text, end="")
    for figure, plain in zip(drawn, words, strict=True):
        caption = take_caption(figure)
        alt = {"image/png": {"alt": figure.get_label()}}  # an SVG has its own
        display(_forms(figure) | {"text/plain": plain}, raw=True, metadata=alt)
        if paragraph := _paragraph(*caption):
            said = ". ".join(filter(None, caption))
            display({"text/html": paragraph, "text/plain": said}, raw=True)


def _drawn(report: StepReport) -> list[Figure]:
    try:
        from collectives.pictures import picture  # noqa: F401

        return figures(report)
    except ImportError as error:  # no matplotlib
        print(error, file=sys.stderr)
        return []


def _fold(printed: str, drawn: list[Figure], words: list[str]) -> dict[str, str]:
    # The font is named because nbconvert's page sets another one.
    shown = f'<pre style="font-family: monospace">{escape(printed)}</pre>'
    images = [part for figure in drawn for part in _captioned(figure)]
    page = "\n".join(["<details><summary>Output</summary>", shown, *images, "</details>"])
    return {"text/html": page, "text/plain": "\n".join([printed, *words])}


def _words(report: StepReport, drawn: list[Figure]) -> list[str]:
    """The picture that a terminal shows; where it has none, what each picture shows."""
    if drawn and not drawable(report) and (panels := illustration.data(report.calls or [])):
        return [rich_console.plain(Group(*map(text.text, panels)), WIDTH)]
    return [str(figure.get_label()) for figure in drawn]


def _forms(figure: Figure) -> dict[str, str]:
    from collectives.pictures import picture

    png = base64.b64encode(picture.png(figure)).decode()
    # A notebook keeps each line of a text as a string of its own, so one line is smaller.
    svg = picture.svg(figure).decode().replace("\n", " ")
    return {"image/svg+xml": svg, "image/png": png}


def _captioned(figure: Figure) -> tuple[str, str]:
    paragraph = _paragraph(*take_caption(figure))  # before the image is made: it has none then
    return _image(figure), paragraph


def _paragraph(title: str, below: str) -> str:
    """The caption in letters of the page: those of a drawing shrink with it on a small screen.

    Empty if there is none, as for a figure of somebody else.
    """
    if not (title or below):
        return ""
    return f"<p><b>{escape(title)}.</b> {escape(below)}</p>".replace(" </p>", "</p>")


def _image(figure: Figure) -> str:
    from collectives.pictures import picture

    # subtle: not the <svg> itself. Jupyter drops it from a notebook that is not trusted yet.
    source = quote(picture.svg(figure).decode(), safe=" !$&()*+,/:;=?@[]'")
    label = escape(str(figure.get_label()))
    return f'<img alt="{label}" src="data:image/svg+xml,{escape(source)}">'
