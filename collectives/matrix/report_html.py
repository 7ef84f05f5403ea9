"""A matrix as one HTML page that needs nothing else: a table for each backend, filters, the reason of every cell, and its history.

Forms and reductions go down, dtypes across. The page's frame, style and script stand in report_page.html.
"""

from collections import Counter
from html import escape
from importlib import resources

from collectives.backends.claims import STATES
from collectives.matrix.history import contradicted, histories, story
from collectives.matrix.recorded import MARKS, UNAVAILABLE, key

# Each state's (background, text) in the light and in the dark scheme. Red and green are not told apart by everyone: these differ
# in lightness and in blue, the marks differ anyway, and each text has a contrast of at least 4.5 to its background.
LOOKS = {
    "works": (("#d3e8f8", "#06304f"), ("#123d5a", "#d6ecfb")),
    "refuses": (("#f5e6b0", "#463600"), ("#544510", "#f8ebbb")),
    "wrong": (("#a83a00", "#ffffff"), ("#ff9a5e", "#2b0d00")),
    "hangs": (("#6b3a9e", "#ffffff"), ("#cba8f2", "#22083f")),
    "crashes": (("#1c1c1c", "#ffffff"), ("#f4f4f4", "#101010")),
    UNAVAILABLE: (("#ffffff", "#5a636d"), ("#14171b", "#a3adb8")),
}

# What the recorded versions say of a cell: the filter's word for it.
PASTS = {
    "same": "the same in all",
    "changed": "changed",
    "unlike": "not as recorded",
    "none": "not recorded",
}


def page(matrix: dict, recorded: tuple[dict, ...] = ()) -> str:
    """The whole page as text. `recorded` are the matrices of other versions of torch, oldest first: the cells' history."""
    places = _by_place(matrix["cells"])
    cells = [cell for its in places.values() if not _away(its) for cell in its]
    pasts = _pasts(cells, matrix["torch"], recorded)
    dtypes = _dtypes(cells)
    title = f"What works on torch {matrix['torch']}"
    parts = {
        "title": escape(title),
        "facts": _facts(matrix),
        "recorded": _recorded(recorded),
        "light": _colours(0),
        "dark": _colours(1),
        "states": "\n".join(
            f".{state} {{ background: var(--{state}); color: var(--{state}-text); }}"
            for state in LOOKS
        ),
        "filters": _filters(list(places), cells, dtypes, pasts),
        "count": str(len(cells)),
        "tables": "\n".join(_section(where, its, dtypes, pasts) for where, its in places.items()),
    }
    text = (
        resources.files("collectives.matrix")
        .joinpath("report_page.html")
        .read_text(encoding="utf-8")
    )
    frame = text.split("{{")
    # Split once and joined: nothing in the data is taken for a placeholder.
    return frame[0] + "".join(
        parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in frame[1:])
    )


def _facts(matrix: dict) -> str:
    versions = [("NCCL", "nccl"), ("CUDA", "cuda"), ("MPI", "mpi")]
    facts = [
        f"torch {matrix['torch']}",
        *(f"{word} {matrix[name]}" for word, name in versions if matrix.get(name)),
    ]
    return escape(" · ".join([*facts, str(matrix.get("platform") or "")]).strip(" ·"))


def _recorded(recorded: tuple[dict, ...]) -> str:
    """Which versions and columns the history comes from."""
    measured = (
        cell for matrix in recorded for cell in matrix["cells"] if cell["state"] != UNAVAILABLE
    )
    places = dict.fromkeys(
        _name(cell["backend"], cell["device"], cell["world_size"]) for cell in measured
    )
    if not places:
        return ""
    versions = ", ".join(dict.fromkeys(matrix["torch"] for matrix in recorded))
    known = f"History: recorded matrices of torch {versions}, for {'; '.join(places)}."
    return escape(f"{known} Nothing is known of other columns, nor of the versions between.")


def _pasts(
    cells: list[dict], version: str, recorded: tuple[dict, ...]
) -> dict[tuple, tuple[str, str]]:
    """By the cells' keys: one of PASTS, and the history in words."""
    found = {}
    known = histories(cells, recorded)
    for cell in cells:
        runs = known[key(cell)]
        kind, words = "changed" if len(runs) > 1 else "same" if runs else "none", story(runs)
        if old := contradicted(cell, version, runs):
            kind, words = (
                "unlike",
                f"{words}. Here: {cell['state']}, unlike the recorded torch {old.span}",
            )
        found[key(cell)] = kind, words
    return found


def _colours(scheme: int) -> str:
    lines = []
    for state, schemes in LOOKS.items():
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


def _name(backend: str, device: str, world_size: int) -> str:
    return f"{backend}/{device}, {world_size} rank{'s' * (world_size != 1)}"


def _away(cells: list[dict]) -> bool:
    """Whether nothing of a column could be measured."""
    return all(cell["state"] == UNAVAILABLE for cell in cells)


def _filters(places: list[tuple], cells: list[dict], dtypes: list[str], pasts: dict) -> str:
    counts = {
        state: sum(cell["state"] == state for cell in cells) for state in (*STATES, UNAVAILABLE)
    }
    backends = [
        (place, escape(place))
        for place in dict.fromkeys(f"{backend}/{device}" for backend, device, _ in places)
    ]
    states = [
        (state, f"{_key(state)} {state} ({counts[state]})") for state in LOOKS if counts[state]
    ]
    columns = [(dtype, _column(dtype)) for dtype in dtypes]
    kinds = Counter(kind for kind, _ in pasts.values())
    history = [(kind, f"{words} ({kinds[kind]})") for kind, words in PASTS.items() if kinds[kind]]
    search = '<fieldset><legend>form or reduction</legend><label>contains <input id="form" type="search"></label></fieldset>'
    boxes = [
        _boxes("backend", backends),
        _boxes("state", states),
        _boxes("history", history),
        search,
        _boxes("dtype", columns),
    ]
    return "\n".join(boxes)


def _boxes(name: str, choices: list[tuple[str, str]]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="{name}" value="{escape(value)}" checked>{label}</label>'
        for value, label in choices
    )
    buttons = '<button type="button" value="all">all</button><button type="button" value="none">none</button>'
    return (
        f"<fieldset><legend>{name}</legend>{boxes}{buttons if len(choices) > 1 else ''}</fieldset>"
    )


def _key(state: str) -> str:
    return f'<span class="key {state}" aria-hidden="true">{MARKS[state]}</span>'


def _section(where: tuple, cells: list[dict], dtypes: list[str], pasts: dict) -> str:
    """One backend at one world size: its table, or why there is none."""
    name = _name(*where)
    if _away(cells):
        reasons = "; ".join(dict.fromkeys(cell["detail"] for cell in cells))
        content = f"<p>Not measured here, {len(cells)} cells: {escape(reasons)}.</p>"
    else:
        content = f'<div class="scroll">{_table(name, cells, dtypes, pasts)}</div>'
    return f'<section data-backend="{escape(f"{where[0]}/{where[1]}")}"><h2>{escape(name)}</h2>{content}</section>'


def _table(name: str, cells: list[dict], dtypes: list[str], pasts: dict) -> str:
    heads = "".join(
        f'<th scope="col" data-dtype="{escape(dtype)}"><span>{_column(dtype)}</span></th>'
        for dtype in dtypes
    )
    groups: dict[str, dict[tuple, dict[str, str]]] = {}
    for number, cell in enumerate(cells):
        row = groups.setdefault(cell["collective"], {}).setdefault((cell["form"], cell["op"]), {})
        row[cell["dtype"] or "-"] = _cell(cell, *pasts[key(cell)], reachable=number == 0)
    bodies = "".join(_group(collective, rows, dtypes) for collective, rows in groups.items())
    return (
        f'<table data-where="{escape(name)}"><caption>{len(cells)} cells on {escape(name)}: forms and reductions by dtype</caption>'
        f'<thead><tr><th scope="col">form and reduction</th>{heads}</tr></thead>{bodies}</table>'
    )


def _group(collective: str, rows: dict[tuple, dict[str, str]], dtypes: list[str]) -> str:
    head = f'<tr><th class="group" scope="rowgroup" colspan="{len(dtypes) + 1}">{escape(collective)}</th></tr>'
    lines = []
    for (form, op), row in rows.items():
        places = "".join(f"<td>{row.get(dtype, '')}</td>" for dtype in dtypes)
        lines.append(
            f'<tr><th scope="row">{escape(form)}{f" {escape(op)}" if op else ""}</th>{places}</tr>'
        )
    return f"<tbody>{head}{''.join(lines)}</tbody>"


def _cell(cell: dict, past: str, history: str, reachable: bool) -> str:
    """`reachable` with Tab is the first cell of a table only: the page's script does the rest."""
    state, why = cell["state"], cell["detail"] or ""
    seconds = "" if cell["seconds"] is None else f", {cell['seconds']:.3g} s"
    how = f"called torch.distributed.{cell['called'] or cell['form'].partition(':')[0]}{seconds}"
    tip = f"{state}: {why}" if why else state
    label = f"{state}, {PASTS[past]}" if past in ("changed", "unlike") else state
    return (
        f'<button type="button" class="{state} {past}" tabindex="{"0" if reachable else "-1"}" aria-pressed="false" '
        f'aria-label="{label}" title="{escape(tip)}" data-state="{state}" data-why="{escape(why)}" data-how="{escape(how)}" '
        f'data-past="{past}" data-history="{escape(history)}">{MARKS[state]}</button>'
    )
