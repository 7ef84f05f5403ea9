"""Sizes as one types them: 4, 64KiB, 16M."""

import re

import typer

# A letter alone counts in powers of 1024, as in nccl-tests.
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= dict.fromkeys(("K", "KIB"), 2**10)
_UNITS |= dict.fromkeys(("M", "MIB"), 2**20)
_UNITS |= dict.fromkeys(("G", "GIB"), 2**30)


def size_in_bytes(text: str) -> int:
    """16MiB as a number. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-zA-Z]*)", text.strip())
    if not found or found[2].upper() not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size: write 4, 64KiB, 16MiB or 1GiB.")
    return int(float(found[1]) * _UNITS[found[2].upper()])
