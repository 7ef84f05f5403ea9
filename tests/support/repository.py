"""The checkout whose tests run, and the headings of its pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests/support"


def anchors(path: Path) -> set[str]:
    """The names that a code host gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
