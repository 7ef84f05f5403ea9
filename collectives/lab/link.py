"""What a cable of the lab does to what it carries: its rate, its delay, its loss."""

import re

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# tbf sends up to this many seconds' worth at once. It has to be awake that often.
_BURST = 4e-3
# A frame of Ethernet and some more; the least that tbf lets pass.
_LEAST_BURST = 4096


def words(rate: str | None, delay: str | None, loss: str | None) -> list[str]:
    """RATE BURST DELAY LOSS, as cable.sh takes them, from "200mbit", "2ms", "1%".

    An empty word stands for what is left as it is. Raises ValueError.
    """
    settings = {"rate": "", "burst": "", "delay": "", "loss": ""}
    if rate is not None:
        bits = _number("rate", rate, _RATES, "200mbit")  # per second, in each direction
        settings["rate"] = f"{bits:.0f}bit"
        settings["burst"] = f"{max(_LEAST_BURST, bits / 8 * _BURST):.0f}"
    if delay is not None:  # in seconds, from one machine to another
        settings["delay"] = str(_number("delay", delay, _TIMES, "2ms"))
    if loss is not None:
        share = _number("loss", loss, {"%": 0.01}, "1%")
        if share >= 1:
            raise ValueError(f"loss={loss!r}: nothing would arrive. Use less than 100%.")
        if share < 1e-5:
            raise ValueError(f"loss={loss!r}: use 0.001% or more.")
        settings["loss"] = f"{share * 100_000:.0f}"  # of 100,000 packets
    return list(settings.values())


def _number(name: str, text: str, units: dict[str, float], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(\D+)", text)
    if not found or found[2] not in units or not float(found[1]):
        raise ValueError(
            f"{name}={text!r} is not understood: write a number and a unit "
            f"({', '.join(units)}), as in {example}."
        )
    return float(found[1]) * units[found[2]]
