"""A matrix as one HTML page that needs nothing else.

It has a table for each backend, filters, and the reason of every cell. A row is a form and a
reduction, a column a dtype. The page's frame, style and script are in report_page.html.
"""

from html import escape
from importlib import resources

from collectives.backends.claims import STATES
from collectives.matrix.measured import MARKS, UNAVAILABLE, by_column, is_measured

# Each state's (background, text) in the light and in the dark scheme. Not everyone can tell red
# from green: these colours differ in lightness and in blue, and the marks differ too. Each text has
# a contrast of at least 4.5 to its background.
LOOKS = {
    "works": (("#d3e8f8", "#06304f"), ("#123d5a", "#d6ecfb")),
    "refuses": (("#f5e6b0", "#463600"), ("#544510", "#f8ebbb")),
    "wrong": (("#a83a00", "#ffffff"), ("#ff9a5e", "#2b0d00")),
    "hangs": (("#6b3a9e", "#ffffff"), ("#cba8f2", "#22083f")),
    "crashes": (("#1c1c1c", "#ffffff"), ("#f4f4f4", "#101010")),
    UNAVAILABLE: (("#ffffff", "#5a636d"), ("#14171b", "#a3adb8")),
}


def page(matrix: dict) -> str:
    """The whole page as text."""
    columns = by_column(matrix["cells"])
    cells = [
        cell for column in columns.values() if any(map(is_measured, column)) for cell in column
    ]
    dtypes = _dtypes(cells)
    title = f"What works on torch {matrix['torch']}"
    parts = {
        "title": escape(title),
        "facts": _facts(matrix),
        "light": _colours(0),
        "dark": _colours(1),
        "states": "\n".join(
            f".{state} {{ background: var(--{state}); color: var(--{state}-text); }}"
            for state in LOOKS
        ),
        "filters": _filters(list(columns), cells, dtypes),
        "count": str(len(cells)),
        "tables": "\n".join(_section(where, column, dtypes) for where, column in columns.items()),
    }
    file = resources.files("collectives.matrix").joinpath("report_page.html")
    # subtle: the frame is split once, so that nothing in the data is taken for a placeholder.
    start, *pieces = file.read_text(encoding="utf-8").split("{{")
    return start + "".join(
        parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces)
    )


def _facts(matrix: dict) -> str:
    versions = [("NCCL", "nccl"), ("CUDA", "cuda"), ("MPI", "mpi")]
    facts = [
        f"torch {matrix['torch']}",
        *(f"{word} {matrix[name]}" for word, name in versions if matrix.get(name)),
    ]
    return escape(" · ".join([*facts, str(matrix.get("platform") or "")]).strip(" ·"))


def _colours(scheme: int) -> str:
    lines = []
    for state, schemes in LOOKS.items():
        background, text = schemes[scheme]
        lines.append(f"  --{state}: {background}; --{state}-text: {text};")
    return "\n".join(lines)


def _dtypes(cells: list[dict]) -> list[str]:
    """The columns in the order of the cells; first "-", for calls without a tensor."""
    found = dict.fromkeys(cell["dtype"] or "-" for cell in cells)
    return sorted(found, key=lambda dtype: dtype != "-")


def _head(dtype: str) -> str:
    return "no tensor" if dtype == "-" else escape(dtype)


def _name(backend: str, device: str, world_size: int) -> str:
    return f"{backend}/{device}, {world_size} rank{'s' * (world_size != 1)}"


def _filters(columns: list[tuple], cells: list[dict], dtypes: list[str]) -> str:
    counts = {
        state: sum(cell["state"] == state for cell in cells) for state in (*STATES, UNAVAILABLE)
    }
    places = dict.fromkeys(f"{backend}/{device}" for backend, device, _ in columns)
    backends = [(place, escape(place)) for place in places]
    states = [
        (state, f"{_mark(state)} {state} ({counts[state]})") for state in LOOKS if counts[state]
    ]
    heads = [(dtype, _head(dtype)) for dtype in dtypes]
    search = (
        "<fieldset><legend>form or reduction</legend>"
        '<label>contains <input id="form" type="search"></label></fieldset>'
    )
    boxes = [
        _boxes("backend", backends),
        _boxes("state", states),
        search,
        _boxes("dtype", heads),
    ]
    return "\n".join(boxes)


def _boxes(name: str, choices: list[tuple[str, str]]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="{name}" value="{escape(value)}" checked>'
        f"{label}</label>"
        for value, label in choices
    )
    buttons = (
        '<button type="button" value="all">all</button>'
        '<button type="button" value="none">none</button>'
    )
    return (
        f"<fieldset><legend>{name}</legend>{boxes}{buttons if len(choices) > 1 else ''}</fieldset>"
    )


def _mark(state: str) -> str:
    return f'<span class="key {state}" aria-hidden="true">{MARKS[state]}</span>'


def _section(where: tuple, cells: list[dict], dtypes: list[str]) -> str:
    """One backend at one world size: its table, or why there is none."""
    name = _name(*where)
    if any(map(is_measured, cells)):
        content = f'<div class="scroll">{_table(name, cells, dtypes)}</div>'
    else:
        reasons = "; ".join(dict.fromkeys(cell["detail"] for cell in cells))
        content = f"<p>Not measured here, {len(cells)} cells: {escape(reasons)}.</p>"
    backend = escape(f"{where[0]}/{where[1]}")
    return f'<section data-backend="{backend}"><h2>{escape(name)}</h2>{content}</section>'


def _table(name: str, cells: list[dict], dtypes: list[str]) -> str:
    heads = "".join(
        f'<th scope="col" data-dtype="{escape(dtype)}"><span>{_head(dtype)}</span></th>'
        for dtype in dtypes
    )
    groups: dict[str, dict[tuple, dict[str, str]]] = {}
    for number, cell in enumerate(cells):
        row = groups.setdefault(cell["collective"], {}).setdefault((cell["form"], cell["op"]), {})
        row[cell["dtype"] or "-"] = _cell(cell, reachable=number == 0)
    bodies = "".join(_group(collective, rows, dtypes) for collective, rows in groups.items())
    return (
        f'<table data-where="{escape(name)}">'
        f"<caption>{len(cells)} cells on {escape(name)}: forms and reductions by dtype</caption>"
        f'<thead><tr><th scope="col">form and reduction</th>{heads}</tr></thead>{bodies}</table>'
    )


def _group(collective: str, rows: dict[tuple, dict[str, str]], dtypes: list[str]) -> str:
    head = (
        f'<tr><th class="group" scope="rowgroup" colspan="{len(dtypes) + 1}">'
        f"{escape(collective)}</th></tr>"
    )
    lines = []
    for (form, op), row in rows.items():
        label = escape(f"{form} {op}" if op else form)
        cells = "".join(f"<td>{row.get(dtype, '')}</td>" for dtype in dtypes)
        lines.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return f"<tbody>{head}{''.join(lines)}</tbody>"


def _cell(cell: dict, reachable: bool) -> str:
    """One cell as a button.

    Only the first one of a table is `reachable` with Tab: the page's script moves on from there.
    """
    state, why = cell["state"], cell["detail"] or ""
    seconds = "" if cell["seconds"] is None else f", {cell['seconds']:.3g} s"
    how = f"called torch.distributed.{cell['called'] or cell['form'].partition(':')[0]}{seconds}"
    tip = f"{state}: {why}" if why else state
    return (
        f'<button type="button" class="{state}" tabindex="{0 if reachable else -1}" '
        f'aria-pressed="false" aria-label="{state}" title="{escape(tip)}" data-state="{state}" '
        f'data-why="{escape(why)}" data-how="{escape(how)}">{MARKS[state]}</button>'
    )
