"""Text of somebody else's program or file, made harmless for a terminal."""

import re

# All control characters but tab and newline; marks that turn the direction of text; and lone
# surrogates, which no encoding can write.
_NOT_SHOWN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""The text, with \x1b where it would have an escape character."""
    return _NOT_SHOWN.sub(lambda found: ascii(found[0])[1:-1], str(text))
