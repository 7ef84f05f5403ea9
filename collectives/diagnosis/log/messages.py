"""The messages that `messages.toml` explains."""

import functools
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

_ANYTHING = "..."


@dataclass(frozen=True)
class Message:
    """A line of logs, and what it means. See messages.toml for the fields."""

    name: str
    message: str
    means: str
    rank: str
    cure: str
    lesson: str
    program: str = ""
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    torchrun: bool = False
    source: str = ""

    @property
    def parts(self) -> list[bytes]:
        """What stands in a log as it is."""
        return [part.encode() for part in self.message.split(_ANYTHING) if part]

    @functools.cached_property
    def pattern(self) -> re.Pattern[bytes]:
        first, *others = map(re.escape, self.parts)
        # subtle: atomic, because a line made for it would keep a pattern busy that goes back.
        return re.compile(
            first + b"".join(rb"(?>[^\n]{0,500}?%b)" % part for part in others), re.IGNORECASE
        )


@functools.cache
def table() -> tuple[Message, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Message(name, **fields) for name, fields in tomllib.loads(text).items())
