"""Parts of the documentation that commands make: each stands between two marks in its page.

A test makes each part again, and fails if the page holds something else.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Part:
    """`path`: the page, from the repository's root. `module`: `python -m` of it makes the part."""

    name: str
    module: str
    path: str

    @property
    def marks(self) -> tuple[str, str]:
        return (
            f"<!-- {self.name}: made by `python -m {self.module}`, do not edit -->",
            f"<!-- end of {self.name} -->",
        )

    def split(self, page: str) -> tuple[str, str, str]:
        """What comes before, between and after the marks. ValueError if a mark is missing."""
        begin, end = self.marks
        before, found, rest = page.partition(begin)
        text, also_found, after = rest.partition(end)
        if not (found and also_found):
            raise ValueError(
                f"{self.path} lacks the lines {begin} and {end}, between which the {self.name} go."
            )
        return before, text.strip("\n"), after

    def updated(self, page: str, text: str) -> str:
        """The page with this text between the marks."""
        before, _, after = self.split(page)
        begin, end = self.marks
        return f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}"

    def read(self) -> str:
        """The part as it stands in the page."""
        return self.split((ROOT / self.path).read_text(encoding="utf-8"))[1]

    def write(self, text: str) -> None:
        page = ROOT / self.path
        page.write_text(self.updated(page.read_text(encoding="utf-8"), text), encoding="utf-8")
