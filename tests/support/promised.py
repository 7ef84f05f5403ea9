"""What docs/api.md promises: a line for each name, and for each module."""

import re

from repository import ROOT

LINES = dict(
    re.findall(r"^- `([\w.]+)`: (.*)$", (ROOT / "docs/api.md").read_text("utf-8"), re.MULTILINE)
)
MODULES = [name for name in LINES if name.startswith("collectives.")]
NAMES = [name for name in LINES if not name.startswith("collectives.")]
