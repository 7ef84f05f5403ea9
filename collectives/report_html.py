"""A matrix as one HTML page that needs nothing else: a table for each backend, filters, and the reason of every cell.

Forms and reductions go down, dtypes across. The page's frame, style and script stand in report_page.html.
"""

from html import escape
from importlib import resources

from collectives.recorded import STATES, UNAVAILABLE

# Each state's letter, and (background, text) in the light and in the dark scheme. Red and green are not told apart by everyone:
# these differ in lightness and in blue, the letters differ anyway, and each text has a contrast of at least 4.5 to its background.
LOOKS = {
    "works": ("W", ("#d3e8f8", "#06304f"), ("#123d5a", "#d6ecfb")),
    "refuses": ("R", ("#f5e6b0", "#463600"), ("#544510", "#f8ebbb")),
    "wrong": ("X", ("#a83a00", "#ffffff"), ("#ff9a5e", "#2b0d00")),
    "hangs": ("H", ("#6b3a9e", "#ffffff"), ("#cba8f2", "#22083f")),
    "crashes": ("C", ("#1c1c1c", "#ffffff"), ("#f4f4f4", "#101010")),
    UNAVAILABLE: ("U", ("#ffffff", "#5a636d"), ("#14171b", "#a3adb8")),
}


def page(matrix: dict) -> str:
    """The whole page as text."""
    cells = matrix["cells"]
    dtypes = _dtypes(cells)
    title = f"What works on torch {matrix['torch']}"
    parts = {
        "title": escape(title),
        "facts": _facts(matrix),
        "light": _colours(0),
        "dark": _colours(1),
        "states": "\n".join(f".{state} {{ background: var(--{state}); color: var(--{state}-text); }}" for state in LOOKS),
        "filters": _filters(cells, dtypes),
        "count": str(len(cells)),
        "tables": "\n".join(_table(where, its, dtypes) for where, its in _by_place(cells).items()),
    }
    text = resources.files("collectives").joinpath("report_page.html").read_text(encoding="utf-8")
    frame = text.split("{{")
    # Split once and joined: nothing in the data is taken for a placeholder.
    return frame[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in frame[1:]))


def _facts(matrix: dict) -> str:
    versions = [("NCCL", "nccl"), ("CUDA", "cuda"), ("MPI", "mpi")]
    facts = [f"torch {matrix['torch']}", *(f"{word} {matrix[name]}" for word, name in versions if matrix.get(name))]
    return escape(" · ".join([*facts, str(matrix.get("platform") or "")]).strip(" ·"))


def _colours(scheme: int) -> str:
    lines = []
    for state, (_, *schemes) in LOOKS.items():
        background, text = schemes[scheme]
        lines.append(f"  --{state}: {background}; --{state}-text: {text};")
    return "\n".join(lines)


def _dtypes(cells: list[dict]) -> list[str]:
    """The columns, in the order in which the cells bring them; "-" for calls without a tensor comes first."""
    found = dict.fromkeys(cell["dtype"] or "-" for cell in cells)
    return sorted(found, key=lambda dtype: dtype != "-")


def _column(dtype: str) -> str:
    return "no tensor" if dtype == "-" else escape(dtype)


def _by_place(cells: list[dict]) -> dict[tuple, list[dict]]:
    places: dict[tuple, list[dict]] = {}
    for cell in cells:
        places.setdefault((cell["backend"], cell["device"], cell["world_size"]), []).append(cell)
    return places


def _filters(cells: list[dict], dtypes: list[str]) -> str:
    counts = {state: sum(cell["state"] == state for cell in cells) for state in (*STATES, UNAVAILABLE)}
    places = dict.fromkeys(f"{cell['backend']}/{cell['device']}" for cell in cells)
    backends = [(place, escape(place)) for place in places]
    states = [(state, f"{_key(state)} {state} ({counts[state]})") for state in LOOKS if counts[state]]
    columns = [(dtype, _column(dtype)) for dtype in dtypes]
    search = '<fieldset><legend>form or reduction</legend><label>contains <input id="form" type="search"></label></fieldset>'
    return "\n".join([_boxes("backend", backends), _boxes("state", states), search, _boxes("dtype", columns)])


def _boxes(name: str, choices: list[tuple[str, str]]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="{name}" value="{escape(value)}" checked>{label}</label>' for value, label in choices
    )
    buttons = '<button type="button" value="all">all</button><button type="button" value="none">none</button>'
    return f"<fieldset><legend>{name}</legend>{boxes}{buttons if len(choices) > 1 else ''}</fieldset>"


def _key(state: str) -> str:
    return f'<span class="key {state}" aria-hidden="true">{LOOKS[state][0]}</span>'


def _table(where: tuple, cells: list[dict], dtypes: list[str]) -> str:
    """One backend at one world size."""
    backend, device, world_size = where
    place = f"{backend}/{device}"
    name = f"{place}, {world_size} rank{'s' * (world_size != 1)}"
    heads = "".join(f'<th scope="col" data-dtype="{escape(dtype)}"><span>{_column(dtype)}</span></th>' for dtype in dtypes)
    groups: dict[str, dict[tuple, dict[str, dict]]] = {}
    for cell in cells:
        row = groups.setdefault(cell["collective"], {}).setdefault((cell["form"], cell["op"]), {})
        row[cell["dtype"] or "-"] = cell
    reachable = iter(["0"])  # Tab comes to the first cell only: the page's script does the rest
    bodies = "".join(_group(collective, rows, dtypes, reachable) for collective, rows in groups.items())
    return (
        f'<section data-backend="{escape(place)}"><h2>{escape(name)}</h2><div class="scroll">'
        f'<table data-where="{escape(name)}"><caption>{len(cells)} cells on {escape(name)}: forms and reductions by dtype</caption>'
        f'<thead><tr><th scope="col">form and reduction</th>{heads}</tr></thead>{bodies}</table></div></section>'
    )


def _group(collective: str, rows: dict[tuple, dict[str, dict]], dtypes: list[str], reachable) -> str:
    head = f'<tr><th class="group" scope="rowgroup" colspan="{len(dtypes) + 1}">{escape(collective)}</th></tr>'
    lines = []
    for (form, op), row in rows.items():
        places = "".join(f"<td>{_cell(row[dtype], reachable)}</td>" if dtype in row else "<td></td>" for dtype in dtypes)
        lines.append(f'<tr><th scope="row">{escape(form)}{f" {escape(op)}" if op else ""}</th>{places}</tr>')
    return f"<tbody>{head}{''.join(lines)}</tbody>"


def _cell(cell: dict, reachable) -> str:
    state, why = cell["state"], cell["detail"] or ""
    seconds = "" if cell["seconds"] is None else f", {cell['seconds']:.3g} s"
    how = f"called torch.distributed.{cell['called'] or cell['form'].partition(':')[0]}{seconds}"
    tip = f"{state}: {why}" if why else state
    return (
        f'<button type="button" class="{state}" tabindex="{next(reachable, "-1")}" aria-pressed="false" aria-label="{state}" '
        f'title="{escape(tip)}" data-state="{state}" data-why="{escape(why)}" data-how="{escape(how)}">{LOOKS[state][0]}</button>'
    )
