"""Parts of the README that commands make: each lies between two marks, and a test runs its command again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`module`: `python -m` of it makes the part anew."""

    name: str
    module: str

    @property
    def marks(self) -> tuple[str, str]:
        return (
            f"<!-- {self.name}: made by `python -m {self.module}`, do not edit -->",
            f"<!-- end of {self.name} -->",
        )

    def split(self, readme: str) -> tuple[str, str, str]:
        """What comes before, between and after the marks. ValueError if they are not there."""
        begin, end = self.marks
        before, found, rest = readme.partition(begin)
        text, also_found, after = rest.partition(end)
        if not (found and also_found):
            raise ValueError(
                f"the README lacks the lines {begin} and {end}, between which the {self.name} go."
            )
        return before, text.strip("\n"), after

    def updated(self, readme: str, text: str) -> str:
        before, _, after = self.split(readme)
        begin, end = self.marks
        return f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}"
