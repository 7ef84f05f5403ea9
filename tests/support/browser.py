"""A real browser, without a window."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium or Chrome on the PATH: apt-get install chromium"
)

# It asks nobody for updates, and works in a container as root.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def driven() -> Iterator:
    """A Browser of playwright, for pages on which a test types and clicks."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield browser
        browser.close()


def browse(page: Path, folder: Path, fragment: str = "", *options: str) -> tuple[str, str]:
    """The document after its scripts have run, and what came out on the console.

    `fragment` is the end of the address, with its #. The browser's files go to `folder`.
    """
    command = [BROWSER, "--headless", *FLAGS, "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900", *options]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri() + fragment],
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout, "\n".join(re.findall(r".*CONSOLE.*", done.stderr))


def text_of(document: str, name: str) -> str:
    """The text of the element with this id, whose end is the next tag of its kind."""
    kind, text = re.search(rf'<(\w+)[^>]* id="{name}"[^>]*>(.*)', document, re.DOTALL).groups()
    return unescape(re.sub(r"<[^>]*>", "", text.partition(f"</{kind}>")[0]))
