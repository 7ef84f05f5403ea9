"""The table of claims (claims.toml): what we say that each backend can do, what it cannot, and why.

`expected` says what we claim of a cell of the matrix (judgement.py compares that with a measurement), and `refusal` why a step of a
lesson is skipped. Nothing here needs torch.
"""

import functools
import importlib.metadata
import re
import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

from collectives.spec.calls import OPS

# From the best answer to the worst: a clear error is better than a dead process, and silence about a wrong answer is the worst.
STATES = ("works", "refuses", "crashes", "hangs", "wrong")
BROKEN = STATES[2:]  # what no backend should do


@dataclass(frozen=True)
class Claim:
    """One row: on `backend` with tensors on `device`, each `form` with these `dtypes` and `ops` (none named: all) is in `state`.

    A form without a variant speaks of its variants too. `torch` limits the claim to some versions (">=2.12,<2.14"), `world_size` to
    some numbers of ranks (">=2"). `steps` are the steps of lessons that are skipped for it. `source` is the file that it stands in,
    which counts only where two files disagree.
    """

    backend: str
    device: str
    state: str
    reason: str = ""
    form: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    torch: str = ""
    world_size: str = ""
    steps: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        kind = "; ".join(", ".join(names) for names in (self.ops, self.dtypes) if names)
        what = ", ".join(self.form or self.steps) + (f" ({kind})" if kind else "")
        return f"{self.backend}/{self.device}: {what} {self.state}"

    def speaks_of(self, cell: dict) -> bool:
        """Whether this cell is one of those claimed, in whatever version of torch and at whatever world size."""
        return (
            (self.backend, self.device) == (cell["backend"], cell["device"])
            and (cell["form"] in self.form or base(cell["form"]) in self.form)
            and (not self.dtypes or cell["dtype"] in self.dtypes)
            and (not self.ops or cell["op"] in self.ops)
        )

    def rank(self, cell: dict) -> tuple[int, bool, bool]:
        """How closely the claim describes the cell: by op and dtype first, then by the very variant, then by the version."""
        return bool(self.ops) + bool(self.dtypes), cell["form"] in self.form, bool(self.torch)


def base(form: str) -> str:
    """The form without its variants."""
    return form.partition(":")[0]


@functools.cache
def table() -> tuple[Claim, ...]:
    """Our own claims."""
    return parse(
        resources.files("collectives.backends").joinpath("claims.toml").read_text(encoding="utf-8"),
        "claims.toml",
    )


def load(extra: str | Path | None = None) -> tuple[Claim, ...]:
    """Our claims, followed by those in the file `extra`, which win over ours where both speak as closely of a cell."""
    if extra is None:
        return table()
    try:
        return table() + parse(Path(extra).read_text(encoding="utf-8"), str(extra))
    except OSError as error:
        raise ValueError(f"{extra} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{extra} is not a file of claims: it is not text.") from None


def parse(text: str, source: str) -> tuple[Claim, ...]:
    """The claims of a TOML text. ValueError names the row that cannot be right, and says why."""
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is not a file of claims: {error}.") from None
    if set(rows) - {"claim"} or not isinstance(rows.get("claim", []), list):
        raise ValueError(
            f"{source} is not a file of claims: it should hold [[claim]] rows and nothing else."
        )
    return tuple(
        _claim(row, f"{source}, claim {number}", source)
        for number, row in enumerate(rows.get("claim", []), 1)
    )


def _claim(row, where: str, source: str) -> Claim:
    known = {field.name: field.type for field in fields(Claim) if field.name != "source"}
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no table of names and values.")
    if unknown := sorted(set(row) - set(known)):
        raise ValueError(f"{where}: {', '.join(unknown)} is not known; use {', '.join(known)}.")
    values = {}
    for name, value in row.items():
        if known[name] is not str and isinstance(value, str):
            value = [value]
        if known[name] is str and not isinstance(value, str):
            raise ValueError(f"{where}: {name} = {value!r} should be text.")
        if known[name] is not str and not (
            isinstance(value, list) and value and all(isinstance(one, str) for one in value)
        ):
            raise ValueError(f"{where}: {name} = {value!r} should be a list of names, not empty.")
        values[name] = value if isinstance(value, str) else tuple(value)
    if missing := [name for name in ("backend", "device", "state") if not values.get(name)]:
        raise ValueError(f"{where} lacks {', '.join(missing)}.")
    claim = Claim(**values, source=source)
    if claim.state not in STATES:
        raise ValueError(f"{where}: state = {claim.state!r} is not one of {', '.join(STATES)}.")
    if unknown := [op for op in claim.ops if op not in OPS]:
        raise ValueError(f"{where}: {unknown[0]!r} is no reduction; use {', '.join(OPS)}.")
    if not claim.form and not claim.steps:
        raise ValueError(
            f"{where} speaks of nothing: name a form (of the matrix) or steps (of lessons)."
        )
    if claim.state != "works" and not claim.reason.strip():
        raise ValueError(f"{where} gives no reason: say in one sentence why it {claim.state}.")
    for limits in (claim.torch, claim.world_size):
        holds(limits, "2")  # raises if they cannot be read
    return claim


def holds(limits: str, version: str) -> bool:
    """Whether a version ("2.13.0+cpu"), or a whole number, is one of ">=2.11,<2.14"; an empty text means every one."""
    whole = number(version)
    for part in filter(None, (part.strip() for part in limits.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)", part)
        if not match:
            raise ValueError(
                f'"{limits}" is not understood: write it like ">=2.11" or ">=2.11,<2.14".'
            )
        wanted = number(match[2])
        mine = whole[: len(wanted)]  # "<=2.13" and "==2.13" mean 2.13.1 as well
        truth = {
            ">=": mine >= wanted,
            "<=": mine <= wanted,
            "==": mine == wanted,
            "!=": mine != wanted,
        }
        if not truth.get(match[1], mine < wanted if match[1] == "<" else mine > wanted):
            return False
    return True


def number(version: str) -> tuple[int, ...]:
    """(2, 13, 0), of 2.13.0+cpu."""
    found = re.match(r"\d+(?:\.\d+)*", str(version))
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def expected(
    cell: dict, torch_version: str, claims: tuple[Claim, ...] | None = None
) -> Claim | None:
    """What is claimed of a cell: the claim that describes it most closely; None where no claim speaks of it.

    ValueError if two claims of one file describe it as closely and disagree.
    """
    speaking = [
        one
        for one in (table() if claims is None else claims)
        if one.speaks_of(cell)
        and holds(one.torch, torch_version)
        and holds(one.world_size, str(cell["world_size"]))
    ]
    if not speaking:
        return None
    closest = max(one.rank(cell) for one in speaking)
    speaking = [one for one in speaking if one.rank(cell) == closest]
    speaking = [one for one in speaking if one.source == speaking[-1].source]
    if rival := next((one for one in speaking if one.state != speaking[0].state), None):
        raise ValueError(
            f"two claims contradict each other: {speaking[0]}, and {rival}: name the op, dtype or variant in one of them."
        )
    return speaking[0]


def refusal(step: str, backend: str, device: str) -> str | None:
    """Why this step of a lesson cannot run on this backend, in the installed torch; None if it can."""
    torch = importlib.metadata.version("torch")
    for claim in table():
        if (
            (claim.backend, claim.device) == (backend, device)
            and step in claim.steps
            and holds(claim.torch, torch)
        ):
            return f"{backend} on {device}: {claim.reason}"
    return None
