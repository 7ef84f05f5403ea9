"""Which backends are asked, at which world sizes, and how a test notes what they answered."""

import pytest

from collectives.backends import availability

# The property of a test that the grids are made of: the title of a grid, its row and column, how
# often which outcome, and whether it is red.
ASKED = "asked of a backend"
# The property of a test with what a backend without claims refused, and why.
REFUSED = "refused by a backend"

# The property of a test with its answers, of which the certificate is made.
ANSWERS = "answered by a backend"

# What a test takes that asks a backend.
WORLD = ("backend", "device", "world_size")


def world_sizes(config, default: tuple[int, ...]) -> tuple[int, ...]:
    """Those of --world-sizes. ValueError if they cannot be read."""
    if not (text := config.getoption("world_sizes")):
        return default
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(
            f"--world-sizes {text}: write whole numbers with commas between, as in 2,4"
        ) from None
    if min(sizes) < 1:
        raise ValueError(f"--world-sizes {text}: a world has at least one rank")
    return sizes


def worlds(config, default: tuple[int, ...], quick: dict[str, tuple[int, ...]]) -> list:
    """The worlds that a test runs in, as pytest's parameters; those not in `quick` are slow.

    Where a backend is absent at every world size, one skip says so.
    """
    found, sizes = [], world_sizes(config, default)
    for backend in config.getoption("backend") or availability.BACKENDS:
        for device in availability.devices_of(backend):
            reason = availability.unavailable(backend, device, min(sizes))
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            for size in [min(sizes)] if reason else sizes:
                slow = [] if reason or size in quick.get(backend, ()) else [pytest.mark.slow]
                name = f"{backend}-{device}-w{size}"
                found.append(pytest.param(backend, device, size, id=name, marks=[*marks, *slow]))
    return found
