"""What a cable of the lab does to what it carries: its rate, its delay, its loss."""

import re
from dataclasses import dataclass

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# tbf sends up to this many seconds' worth at once. It has to be awake that often.
_BURST = 4e-3
# A frame of Ethernet and some more; the least that tbf lets pass.
_LEAST_BURST = 4096


@dataclass(frozen=True)
class Link:
    """The cable of each machine. `None` stands for what is left as it is.

    `rate` is in bits per second, for each direction; `delay` in seconds, from one machine to
    another; `loss` the share of packets, from 0 to 1, that does not arrive.
    """

    rate: float | None = None
    delay: float | None = None
    loss: float | None = None

    def words(self) -> list[str]:
        """RATE BURST DELAY LOSS, as cable.sh takes them."""
        rate = burst = delay = loss = ""
        if self.rate is not None:
            rate, burst = f"{self.rate:.0f}bit", f"{max(_LEAST_BURST, self.rate / 8 * _BURST):.0f}"
        if self.delay is not None:
            delay = str(self.delay)
        if self.loss is not None:
            loss = f"{self.loss * 100_000:.0f}"  # of 100,000 packets
        return [rate, burst, delay, loss]


def read(rate: str | None, delay: str | None, loss: str | None) -> Link:
    """From words as `tc` takes them: "200mbit", "2ms", "1%". Raises ValueError."""
    share = None
    if loss is not None:
        share = _number("loss", loss, {"%": 0.01}, "1%")
        if share >= 1:
            raise ValueError(f"loss={loss!r}: nothing would arrive. Use less than 100%.")
        if 0 < share < 1e-5:
            raise ValueError(f"loss={loss!r}: use 0.001% or more.")
    return Link(
        None if rate is None else _number("rate", rate, _RATES, "200mbit"),
        None if delay is None else _number("delay", delay, _TIMES, "2ms"),
        share,
    )


def _number(name: str, text: str, units: dict[str, float], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(\D+)", text)
    if not found or found[2] not in units or not float(found[1]):
        raise ValueError(
            f"{name}={text!r} is not understood: write a number and a unit "
            f"({', '.join(units)}), as in {example}."
        )
    return float(found[1]) * units[found[2]]
