"""The table of claims (claims.toml): what we say that each backend cannot do, and why."""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Claim:
    """One row: on `backend` with tensors on `device`, `form` does not work, for `reason`; so `steps` of lessons are skipped."""

    backend: str
    device: str
    form: str
    state: str
    reason: str
    steps: tuple[str, ...] = ()


@functools.cache
def table() -> tuple[Claim, ...]:
    text = resources.files("collectives").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(Claim(**row | {"steps": tuple(row.get("steps", ()))}) for row in tomllib.loads(text).get("claim", ()))


def refusal(step: str, backend: str, device: str) -> str | None:
    """Why this step of a lesson cannot run on this backend; None if it can."""
    for claim in table():
        if (claim.backend, claim.device) == (backend, device) and step in claim.steps:
            return f"{backend} on {device}: {claim.reason}"
    return None
