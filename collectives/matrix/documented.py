"""Where PyTorch's documentation of its backends and a measurement differ.

documented.toml holds the facts: rows of the documented tables, and statements in docstrings. Most
are about forms of the matrix; for the others `try_calls` makes the call that the docstring
describes.
"""

import functools
import importlib
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from collectives.backends.claims import STATES
from collectives.matrix.compare import Difference, Expectation, compare_all
from collectives.matrix.measured import is_measured, name, outcome, place


@dataclass(frozen=True)
class Statement:
    """What a docstring says, and the state that the cells or the call must then be in.

    See documented.toml for the fields.
    """

    function: tuple[str, ...]
    mark: str
    says: str
    state: str
    backend: tuple[str, ...] = ()
    form: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    call: str = ""

    def is_about(self, cell: dict) -> bool:
        return (
            cell["form"] in (*self.form, self.call)
            and (not self.backend or place(cell) in self.backend)
            and (not self.dtypes or cell["dtype"] in self.dtypes)
            and (not self.ops or cell["op"] in self.ops)
        )

    def is_made(self) -> bool:
        """Whether a docstring of the installed torch makes the statement."""
        mark = " ".join(self.mark.split())
        return any(mark in " ".join(_docstring(name).split()) for name in self.function)


@dataclass(frozen=True)
class Table:
    """A documented table of backends.

    For each form, a row has what stands in each column ("gloo/cpu"): "yes", "no" or "?".
    """

    name: str
    torch: str
    link: str
    rows: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Documented(Expectation):
    """What the documentation says of a backend and device.

    `source` is the name of a table or the docstring of a function. `measured` is what to print of
    the cells that differ, with the fields that `describe` fills in.
    """

    kind: str = "undocumented"
    place: str = ""
    source: str = ""
    says: str = ""
    measured: str = ""

    def describe(self, kind: str, different: list[dict], cells: list[dict]) -> str:
        first = different[0]
        measured = self.measured.format(
            count=len(different), all=len(cells), name=name(first), outcome=outcome(first)
        )
        return f"{self.place}: {self.source}: {self.says}. Measured: {measured}."


@functools.cache
def _facts() -> dict:
    file = resources.files("collectives.matrix").joinpath("documented.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


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
    def as_tuple(value: str | list[str]) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    lists = ("function", "backend", "form", "dtypes", "ops")
    return [
        Statement(**row | {field: as_tuple(row.get(field, ())) for field in lists})
        for row in _facts()["statement"]
    ]


def differences(matrix: dict, tried: list[dict] = ()) -> list[Difference]:
    """How a measured matrix differs from the documentation: first the tables, then the docstrings.

    `tried` is what `try_calls` found; without it the statements that need a call are left out.
    """
    cells = list(filter(is_measured, matrix["cells"]))
    return compare_all([*_expected_by_tables(cells), *_expected_by_docstrings([*cells, *tried])])


def _expected_by_tables(cells: list[dict]) -> Iterator[tuple[Documented, list[dict]]]:
    fails = tuple(state for state in STATES if state != "works")
    for table in tables():
        source = f"{table.name} (torch {table.torch})"
        for form, row in table.rows.items():
            for where, says in row.items():
                about = [cell for cell in cells if cell["form"] == form and place(cell) == where]
                words = {"place": where, "source": source, "says": f"{form}: {says}"}
                if says == "yes":
                    measured = "none of {all} cells works; {name} {outcome}"
                    yield (
                        Documented(("works",), one_is_enough=True, measured=measured, **words),
                        about,
                    )
                elif says == "no":
                    yield Documented(fails, measured="{count} of {all} cells work", **words), about


def _expected_by_docstrings(cells: list[dict]) -> Iterator[tuple[Documented, list[dict]]]:
    for statement in filter(Statement.is_made, statements()):
        about = [cell for cell in cells if statement.is_about(cell)]
        measured = "{count} of {all} cells otherwise; {name} {outcome}"
        words = {
            "source": f"docstring of {statement.function[0]}",
            "says": statement.says,
            "measured": "{outcome}" if statement.call else measured,
        }
        for where in dict.fromkeys(map(place, about)):
            here = [cell for cell in about if place(cell) == where]
            yield Documented((statement.state,), place=where, **words), here


def try_calls(places: list[tuple[str, str]], timeout: float = 30.0) -> list[dict]:
    """Make the calls of `documented_calls` on each (backend, device), in worlds of 2 ranks.

    Returns a measured cell for each call; its form is the name of the call.
    """
    from collectives.matrix import documented_calls

    found = []
    for backend, device in places:
        for statement in filter(Statement.is_made, statements()):
            if statement.call:
                step = getattr(documented_calls, statement.call)
                state, detail = _try(step, backend, device, timeout)
                found.append(
                    {
                        "form": statement.call,
                        "backend": backend,
                        "device": device,
                        "dtype": None,
                        "op": None,
                        "world_size": 2,
                        "state": state,
                        "detail": detail,
                    }
                )
    return found


def _try(step: Callable, backend: str, device: str, timeout: float) -> tuple[str, str]:
    from collectives.launcher.failure import LaunchError
    from collectives.launcher.launch import launch

    try:
        right = launch(step, 2, backend=backend, device=device, timeout=timeout)
    except LaunchError as error:
        state = {"raised": "refuses", "hung": "hangs"}.get(error.kind, "crashes")
        return state, str(error).splitlines()[0].removeprefix(f"rank {error.rank} raised ")
    if all(right):
        return "works", ""
    return "wrong", f"rank {right.index(False)} did not get what the docstring says"


def _docstring(function: str) -> str:
    """The docstring of a dotted name under torch.distributed; empty if there is none."""
    module, _, attribute = f"torch.distributed.{function}".rpartition(".")
    for path in (module, "torch.distributed.distributed_c10d"):
        try:
            found = getattr(importlib.import_module(path), attribute, None)
        except ImportError:
            continue
        if getattr(found, "__doc__", None):
            return found.__doc__
    return ""
