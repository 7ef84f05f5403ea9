"""The matrix as tables of text: measured cells in, tables out.

Each table is narrower than 120 columns, and can be read without colour.
"""

from rich.table import Column, Table
from rich.text import Text

from collectives.backends.claims import BROKEN
from collectives.matrix.measured import MARKS, UNAVAILABLE, Measured
from collectives.semantics import values

STYLES = {
    "works": "green",
    "refuses": "yellow",
    "wrong": "bold white on red",
    "hangs": "bold white on magenta",
    "crashes": "bold white on red",
    UNAVAILABLE: "dim",
}
_WORDS = {UNAVAILABLE: "unavailable here"}
_VARIANTS = (
    "",
    "uneven",
    "noncontiguous",
    "lazy",
    "empty",
    "scalar",
    "async",
    "subgroup",
    "any_source",
    "tag",
)
# The width of the first column: one name is longer, and takes two lines.
_LABEL = 32
_SHORT = {
    "float8_": "",
    "bfloat": "bf",
    "complex": "c",
    "float": "f",
    "uint": "u",
    "int": "i",
    "fnuz": "z",
    "fnu": "",
    "fn": "",
}


def legend() -> Text:
    words = (
        Text.assemble((MARKS[state], style), f" {_WORDS.get(state, state)}")
        for state, style in STYLES.items()
    )
    return Text("  ").join(words)


def by_dtype(cells: list[Measured]) -> Table | None:
    """The plain forms; a row for each reduction where several were tried."""
    plain = [cell for cell in cells if cell.dtype and not _variant(cell)]
    ops: dict[str, set] = {}
    for cell in plain:
        ops.setdefault(cell.form, set()).add(cell.op)
    entries = []
    for cell in plain:
        op = f" {cell.op}" if len(ops[cell.form]) > 1 else ""
        entries.append((_label(cell) + op, _short(str(cell.dtype)), cell.state))
    tried = {cell.dtype for cell in plain}
    return _table([_short(dtype) for dtype in values.DTYPES if dtype in tried], entries)


def by_variant(cells: list[Measured]) -> Table | None:
    """Variants, and the forms that take no tensor. An entry has each state that its dtypes have."""
    rest = [cell for cell in cells if _variant(cell) or not cell.dtype]
    tried = {_variant(cell) for cell in rest}
    roots = (variant for variant in tried if variant.startswith("root"))
    columns = [*_VARIANTS, *sorted(roots, key=lambda variant: int(variant.removeprefix("root")))]
    return _table(
        [column or "plain" for column in columns if column in tried],
        [(_label(cell), _variant(cell) or "plain", cell.state) for cell in rest],
    )


def reasons(cells: list[Measured]) -> list[str]:
    """What is broken: a line for each state and reason, with the first cell and their number."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for cell in cells:
        if cell.state in BROKEN:
            groups.setdefault((cell.state, cell.detail), []).append(cell)
    lines = []
    for (state, detail), same in groups.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(f"{state}: {short_name(same[0])}{more}: {detail}")
    return lines


def short_name(cell: Measured) -> str:
    """As in "all_reduce int64 SUM gloo/cpu 2 ranks"."""
    words = (cell.form, cell.dtype, cell.op, cell.place, f"{cell.world_size} ranks")
    return " ".join(word for word in words if word)


def counts(cells: list[Measured]) -> str:
    numbers = {state: sum(cell.state == state for cell in cells) for state in STYLES}
    return ", ".join(
        f"{number} {_WORDS.get(state, state)}" for state, number in numbers.items() if number
    )


def _label(cell: Measured) -> str:
    return cell.name.replace("_functional_collectives", "fn")


def _variant(cell: Measured) -> str:
    return cell.form.partition(":")[2]


def _short(dtype: str) -> str:
    for long, short in _SHORT.items():
        dtype = dtype.replace(long, short)
    return dtype


def _table(columns: list[str], entries: list[tuple[str, str, str]]) -> Table | None:
    """A table of marks. Each entry is a row, a column and a state; one place may have several."""
    if not entries:
        return None
    rows: dict[str, dict[str, set]] = {}
    for row, column, state in entries:
        rows.setdefault(row, {}).setdefault(column, set()).add(state)
    first = Column(overflow="fold", min_width=min(_LABEL, max(map(len, rows))), max_width=_LABEL)
    rest = (Column(column, no_wrap=True) for column in columns)
    table = Table(first, *rest, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row, states in rows.items():
        table.add_row(row, *(_marks(states.get(column, set())) for column in columns))
    return table


def _marks(states: set[str]) -> Text:
    return Text.assemble(*((MARKS[state], STYLES[state]) for state in STYLES if state in states))
