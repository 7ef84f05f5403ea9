"""A colour for each rank, the same in figures and in the terminal.

>>> colour_of(0), colour_of(8), edge(colour_of(0))
('#e69f00', '#e69f00', '#b87f00')
"""

# Okabe and Ito's palette, which colour-blind readers can tell apart. Dark grey replaces its black,
# which is for text.
PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#4d4d4d")
DARK, GREY, LIGHT = "#111111", "#555555", "#ffffff"
# What every picture stands on. It is opaque, so that a picture can be read on a dark page.
PAGE = "#f4f4f1"
WRONG = "#b00000"  # what failed, never returned or waits for ever


def colour_of(rank: int) -> str:
    """Beyond the eighth rank, colours come again."""
    return PALETTE[rank % len(PALETTE)]


def ink(background: str) -> str:
    """The colour of text that is easier to read on this background."""
    return max(DARK, LIGHT, key=lambda text: contrast(text, background))


def contrast(text: str, background: str) -> float:
    """The contrast ratio of two colours, from 1 to 21. WCAG 2 requires 4.5 for text."""
    dark, light = sorted((_luminance(text), _luminance(background)))
    return (light + 0.05) / (dark + 0.05)


def tint(colour: str) -> str:
    """A pale form of a colour."""
    return "#" + "".join(
        f"{round(0.3 * part + 0.7 * 255):02x}" for part in bytes.fromhex(colour[1:])
    )


def edge(colour: str) -> str:
    """The colour, darkened until its line can be seen on the page: WCAG 2 requires 3 for shapes."""
    parts = bytes.fromhex(colour[1:])
    for percent in range(100, 0, -5):
        found = "#" + "".join(f"{part * percent // 100:02x}" for part in parts)
        if contrast(found, PAGE) >= 3:
            return found
    return DARK


def _luminance(colour: str) -> float:
    parts = (part / 255 for part in bytes.fromhex(colour[1:]))
    linear = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
