"""The table of claims (claims.toml): what each backend can do, what it cannot do, and why.

`expected` is the claim about a cell of the matrix (matrix/claimed.py compares it with a
measurement). `refusal` is the reason why a step of a lesson is skipped. Nothing here needs torch.
"""

import functools
import importlib.metadata
import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.version import InvalidVersion, Version

from collectives.recording.call import Call
from collectives.semantics.calls import BY_NAME, OPS
from collectives.semantics.cell import Cell

# From best to worst: a clear error is better than a dead process, and a wrong answer without an
# error is the worst.
STATES = ("works", "refuses", "crashes", "hangs", "wrong")
BROKEN = STATES[2:]  # what no backend should do

# So begin variants of calls that do not match on the ranks ("other_length"). The matrix has no
# cells of them: `collectives verify` tells what comes of them, and judges what a claim names.
MISMATCHED = "other_"

OURS = resources.files("collectives.backends").joinpath("claims.toml")


@dataclass(frozen=True)
class Claim:
    """One row: with `backend` on `device`, each `form` with these `dtypes` and `ops` is in `state`.

    No dtypes or no ops means all of them. A form without a variant includes its variants. `torch`
    limits the claim to some versions (">=2.13,<2.15"), `world_size` to some numbers of ranks
    (">=2"). `steps` are the lessons' steps that are skipped. `read` is where it was read, if nobody
    has run it. `source` is the file that has the row; it matters only if two files disagree.
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
    read: str = ""
    source: str = ""

    def __str__(self) -> str:
        kind = "; ".join(", ".join(names) for names in (self.ops, self.dtypes) if names)
        what = ", ".join(self.form or self.steps) + (f" ({kind})" if kind else "")
        return f"{self.backend}/{self.device}: {what} {self.state}"

    def speaks_of(self, cell: Cell) -> bool:
        """Whether the claim is about this cell, in some version of torch and at some world size."""
        return (
            (self.backend, self.device) == (cell.backend, cell.device)
            and (cell.form in self.form or cell.name in self.form)
            and (not self.dtypes or cell.dtype in self.dtypes)
            and (not self.ops or cell.op in self.ops)
        )

    def rank(self, cell: Cell) -> tuple[int, bool, bool]:
        """How closely the claim describes the cell: by op and dtype, then variant, then version."""
        return bool(self.ops) + bool(self.dtypes), cell.form in self.form, bool(self.torch)


# The fields of a row that hold several names. One may stand there by itself.
_LISTS = {field.name for field in fields(Claim) if field.type is not str}


def base(form: str) -> str:
    """The form without its variants."""
    return form.partition(":")[0]


@functools.cache
def table() -> tuple[Claim, ...]:
    """Our own claims, which a test checks: nobody waits for that who runs a step."""
    rows = tomllib.loads(OURS.read_text(encoding="utf-8"))["claim"]
    for row in rows:
        for name in _LISTS & row.keys():
            row[name] = (row[name],) if isinstance(row[name], str) else tuple(row[name])
    return tuple(Claim(**row, source=OURS.name) for row in rows)


def load(extra: str | Path | None = None) -> tuple[Claim, ...]:
    """Our claims, followed by those in the file `extra`.

    The latter win if both describe a cell equally closely. Raises ValueError for a faulty file.
    """
    if extra is None:
        return table()
    try:
        return table() + parse(Path(extra).read_text(encoding="utf-8"), str(extra))
    except OSError as error:
        raise ValueError(f"{extra} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{extra} is not a file of claims: it is not text.") from None


def parse(text: str, source: str) -> tuple[Claim, ...]:
    """The claims of a TOML text. Raises ValueError, which names a faulty row and says why."""
    try:
        rows = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
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
    values: dict[str, Any] = {}
    for name, value in row.items():
        read = _text if known[name] is str else _names
        values[name] = read(value, f"{where}: {name} = {value!r}")
    if missing := [name for name in ("backend", "device", "state") if not values.get(name)]:
        raise ValueError(f"{where} lacks {', '.join(missing)}.")
    claim = Claim(**values, source=source)
    _check(claim, where)
    return claim


def _text(value, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} should be text.")
    return value


def _names(value, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{where} should be a list of names, not empty.")
    return tuple(names)


def _check(claim: Claim, where: str) -> None:
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


def holds(limits: str, version: str) -> bool:
    """Whether a version ("2.13.0+cpu") or a whole number is within `limits` (">=2.13,<2.15").

    "<=2.13" and "==2.13" mean 2.13.1 as well, and 2.15 its previews. Every version is within empty
    limits. Raises ValueError if `limits` cannot be read.
    """
    release = Version(version).release
    return all(
        specifier.contains(".".join(map(str, release[:length])))
        for specifier, length in _specifiers(limits)
    )


@functools.cache
def _specifiers(limits: str) -> list[tuple[Specifier, int]]:
    """Each with how many numbers its version has: "<=2.13" has two."""
    try:
        found = [Specifier(part) for part in limits.split(",") if part.strip()]
        return [(one, len(Version(one.version).release)) for one in found]
    except (InvalidSpecifier, InvalidVersion):
        raise ValueError(
            f'"{limits}" is not understood: write it like ">=2.13" or ">=2.13,<2.15".'
        ) from None


def expected(
    cell: Cell, torch_version: str, claims: tuple[Claim, ...] | None = None
) -> Claim | None:
    """The claim that describes the cell most closely; None if no claim is about it.

    Raises ValueError if two claims of one file describe it equally closely and disagree.
    """
    applicable = [
        claim
        for claim in (table() if claims is None else claims)
        if claim.speaks_of(cell)
        and holds(claim.torch, torch_version)
        and holds(claim.world_size, str(cell.world_size))
    ]
    if not applicable:
        return None
    closest = max(claim.rank(cell) for claim in applicable)
    applicable = [claim for claim in applicable if claim.rank(cell) == closest]
    first, *others = [claim for claim in applicable if claim.source == applicable[-1].source]
    for other in others:
        if other.state != first.state:
            raise ValueError(
                f"two claims contradict each other: {first}, and {other}: name the op, dtype or "
                "variant in one of them."
            )
    return first


def refusal(step: str, backend: str, device: str) -> str | None:
    """Why this step of a lesson cannot run on this backend with the installed torch, or None."""
    torch = importlib.metadata.version("torch")
    for claim in table():
        if (
            (claim.backend, claim.device) == (backend, device)
            and step in claim.steps
            and holds(claim.torch, torch)
        ):
            return f"{backend} on {device}: {claim.reason}"
    return None


def wrong_with_gaps(call: Call) -> str:
    """Why this call gives wrong results if its tensor has gaps; "" if it does not."""
    name = BY_NAME[call.name].name
    cell = Cell(
        collective=name,
        form=f"{name}:noncontiguous",
        backend=call.backend,
        device=call.device,
        dtype=call.tensors[0].dtype,
        op=call.op,
        world_size=len(call.members),
    )
    claim = expected(cell, importlib.metadata.version("torch"))
    return claim.reason if claim is not None and claim.state == "wrong" else ""
