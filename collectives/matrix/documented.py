"""Where PyTorch's documentation of its backends and a measurement differ.

documented.toml holds the facts: rows of the documented tables, and statements in docstrings. Most are about forms of the matrix;
for the others `try_calls` makes the call that the docstring describes.
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from collectives.matrix.recorded import UNAVAILABLE, name, told


@dataclass(frozen=True)
class Statement:
    """What a docstring says, and in which state the cells or the call that it speaks of must then be; see documented.toml."""

    function: tuple[str, ...]
    mark: str
    says: str
    state: str
    backend: tuple[str, ...] = ()
    form: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    call: str = ""

    def speaks_of(self, cell: dict) -> bool:
        return (
            cell["form"] in self.form
            and (not self.backend or _place(cell) in self.backend)
            and (not self.dtypes or cell["dtype"] in self.dtypes)
            and (not self.ops or cell["op"] in self.ops)
        )

    def is_said(self) -> bool:
        """Whether the docstring of the torch at hand says so."""
        return any(
            " ".join(self.mark.split()) in " ".join(_docstring(one).split())
            for one in self.function
        )


@dataclass(frozen=True)
class Table:
    """A documented table of backends: for each function, what stands in each column ("gloo/cpu": "yes", "no" or "?")."""

    name: str
    torch: str
    link: str
    rows: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Difference:
    """One thing that is not as documented. `where` is a backend and device, `source` a table's name or a function's docstring."""

    where: str
    source: str
    documented: str
    measured: str

    def __str__(self) -> str:
        return f"{self.where}: {self.source}: {self.documented}. Measured: {self.measured}."


@functools.cache
def _facts() -> dict:
    return tomllib.loads(
        resources.files("collectives.matrix")
        .joinpath("documented.toml")
        .read_text(encoding="utf-8")
    )


def tables() -> list[Table]:
    found = []
    for table in _facts()["table"]:
        rows = {
            form: dict(zip(table["columns"], row, strict=True))
            for form, row in table["rows"].items()
        }
        found.append(Table(table["name"], table["torch"], table["link"], rows))
    return found


def statements() -> list[Statement]:
    def several(row: dict, field: str) -> tuple[str, ...]:
        return (row[field],) if isinstance(row.get(field), str) else tuple(row.get(field, ()))

    lists = ("function", "backend", "form", "dtypes", "ops")
    return [
        Statement(**row | {field: several(row, field) for field in lists})
        for row in _facts()["statement"]
    ]


def against_docs(
    matrix: dict, tried: dict[tuple[str, str], tuple[str, str]] | None = None
) -> list[Difference]:
    """All differences: first the tables', then the docstrings'.

    `tried` holds what `try_calls` found out; without it the statements that need a call of their own are left out.
    """
    cells = [cell for cell in matrix["cells"] if cell["state"] != UNAVAILABLE]
    found = [difference for table in tables() for difference in _table_differences(table, cells)]
    for statement in statements():
        if statement.is_said():
            found += _statement_differences(statement, cells)
            found += _call_differences(statement, tried or {})
    return found


def _table_differences(table: Table, cells: list[dict]) -> list[Difference]:
    found = []
    for form, row in table.rows.items():
        for where, documented in row.items():
            its = [cell for cell in cells if cell["form"] == form and _place(cell) == where]
            working = [cell for cell in its if cell["state"] == "works"]
            measured = None
            if documented == "yes" and its and not working:
                measured = f"none of {len(its)} cells works; {name(its[0])} {told(its[0])}"
            elif documented == "no" and working:
                measured = f"{len(working)} of {len(its)} cells work"
            if measured:
                found.append(
                    Difference(
                        where,
                        f"{table.name} (torch {table.torch})",
                        f"{form}: {documented}",
                        measured,
                    )
                )
    return found


def _statement_differences(statement: Statement, cells: list[dict]) -> list[Difference]:
    its = [cell for cell in cells if statement.speaks_of(cell)]
    found = []
    for where in dict.fromkeys(_place(cell) for cell in its):
        here = [cell for cell in its if _place(cell) == where]
        other = [cell for cell in here if cell["state"] != statement.state]
        if other:
            measured = (
                f"{len(other)} of {len(here)} cells otherwise; {name(other[0])} {told(other[0])}"
            )
            found.append(_difference(statement, where, measured))
    return found


def _call_differences(
    statement: Statement, tried: dict[tuple[str, str], tuple[str, str]]
) -> list[Difference]:
    found = []
    for (call, where), (state, detail) in tried.items():
        if (
            call == statement.call
            and state != statement.state
            and (not statement.backend or where in statement.backend)
        ):
            found.append(_difference(statement, where, f"{state} ({detail})" if detail else state))
    return found


def _difference(statement: Statement, where: str, measured: str) -> Difference:
    return Difference(where, f"docstring of {statement.function[0]}", statement.says, measured)


def try_calls(
    places: list[tuple[str, str]], timeout: float = 30.0
) -> dict[tuple[str, str], tuple[str, str]]:
    """Make the calls of `documented_calls` on each (backend, device) in worlds of 2 ranks: (call, place) -> (state, detail)."""
    from collectives.matrix import documented_calls

    found = {}
    for backend, device in places:
        for statement in statements():
            if statement.call and statement.is_said():
                step = getattr(documented_calls, statement.call)
                found[statement.call, f"{backend}/{device}"] = _try(step, backend, device, timeout)
    return found


def _try(step: Callable, backend: str, device: str, timeout: float) -> tuple[str, str]:
    from collectives.launcher.failure import LaunchError
    from collectives.launcher.launch import launch

    try:
        right = launch(step, 2, backend=backend, device=device, timeout=timeout)
    except LaunchError as error:
        state = {"raised": "refuses", "hung": "hangs"}.get(error.kind, "crashes")
        return state, str(error).splitlines()[0].removeprefix(f"rank {error.rank} raised ")
    return (
        ("works", "")
        if all(right)
        else ("wrong", f"rank {right.index(False)} did not get what the docstring says")
    )


def _place(cell: dict) -> str:
    return f"{cell['backend']}/{cell['device']}"


def _docstring(function: str) -> str:
    """The docstring of something under torch.distributed, by its dotted name; empty if there is none."""
    import importlib

    module, _, attribute = f"torch.distributed.{function}".rpartition(".")
    for place in (module, "torch.distributed.distributed_c10d"):
        try:
            found = getattr(importlib.import_module(place), attribute, None)
        except ImportError:
            continue
        if getattr(found, "__doc__", None):
            return found.__doc__
    return ""
