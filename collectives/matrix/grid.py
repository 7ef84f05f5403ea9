"""The matrix as text: answers in, tables out. Each table is narrower than 120 columns, and can be read without colour."""

from rich.table import Column, Table
from rich.text import Text

from collectives.backends.claims import BROKEN
from collectives.matrix.recorded import MARKS, UNAVAILABLE
from collectives.matrix.run import Answer
from collectives.spec import values

_STYLES = {
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
        (MARKS[state], style, f" {_WORDS.get(state, state)}") for state, style in _STYLES.items()
    )
    return Text("  ").join(Text.assemble((mark, style), word) for mark, style, word in words)


def by_column(answers: list[Answer]) -> dict[tuple[str, str, int], list[Answer]]:
    """The answers of each backend, device and world size."""
    found: dict[tuple[str, str, int], list[Answer]] = {}
    for answer in answers:
        found.setdefault(
            (answer.cell.backend, answer.cell.device, answer.cell.world_size), []
        ).append(answer)
    return found


def by_dtype(answers: list[Answer]) -> Table | None:
    """The plain forms; a row for each reduction where several were tried."""
    plain = [answer for answer in answers if answer.cell.dtype and not answer.cell.variant]
    ops = {
        form: len({answer.cell.op for answer in plain if answer.cell.form == form})
        for form in {a.cell.form for a in plain}
    }
    rows = [
        (_label(answer) + (f" {answer.cell.op}" if ops[answer.cell.form] > 1 else ""), answer)
        for answer in plain
    ]
    tried = {answer.cell.dtype for answer in plain}
    columns = [dtype for dtype in values.DTYPES if dtype in tried]
    return _table(
        [_short(dtype) for dtype in columns],
        [(row, _short(one.cell.dtype), one) for row, one in rows],
    )


def by_variant(answers: list[Answer]) -> Table | None:
    """Variants, and the forms that take no tensor. A place shows each state that its dtypes have."""
    rest = [answer for answer in answers if answer.cell.variant or not answer.cell.dtype]
    variants = [answer.cell.form.partition(":")[2] for answer in rest]
    columns = [
        *_VARIANTS,
        *sorted(
            {variant for variant in variants if variant.startswith("root")},
            key=lambda name: int(name[4:]),
        ),
    ]
    columns = [column for column in columns if column in variants]
    places = [
        (_label(one), variant or "plain", one) for one, variant in zip(rest, variants, strict=True)
    ]
    return _table([column or "plain" for column in columns], places)


def reasons(answers: list[Answer]) -> list[tuple[str, int, str, str]]:
    """What went badly: the state, how many cells have the same reason, the first of them, and the reason."""
    found: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        if answer.state in BROKEN:
            found.setdefault((answer.state, answer.detail), []).append(answer)
    return [(state, len(same), name(same[0]), detail) for (state, detail), same in found.items()]


def name(answer: Answer) -> str:
    cell = answer.cell
    words = (
        cell.form,
        cell.dtype,
        cell.op,
        f"{cell.backend}/{cell.device}",
        f"{cell.world_size} ranks",
    )
    return " ".join(word for word in words if word)


def counts(answers: list[Answer]) -> str:
    numbers = {state: sum(answer.state == state for answer in answers) for state in _STYLES}
    return ", ".join(
        f"{number} {_WORDS.get(state, state)}" for state, number in numbers.items() if number
    )


def _label(answer: Answer) -> str:
    return answer.cell.name.replace("_functional_collectives", "fn")


def _short(dtype: str) -> str:
    for long, short in _SHORT.items():
        dtype = dtype.replace(long, short)
    return dtype


def _table(columns: list[str], places: list[tuple[str, str, Answer]]) -> Table | None:
    if not places:
        return None
    marks: dict[str, dict[str, set]] = {}
    for row, column, answer in places:
        marks.setdefault(row, {}).setdefault(column, set()).add(answer.state)
    first = Column(overflow="fold", min_width=min(_LABEL, max(map(len, marks))), max_width=_LABEL)
    rest = (Column(column, no_wrap=True) for column in columns)
    table = Table(first, *rest, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row, found in marks.items():
        texts = (
            Text.assemble(
                *(
                    (MARKS[state], _STYLES[state])
                    for state in _STYLES
                    if state in found.get(column, ())
                )
            )
            if column in found
            else ""
            for column in columns
        )
        table.add_row(row, *texts)
    return table
