"""The page on which people step through the algorithms: in a real browser it shows the schedules."""

import itertools
import json
import re

import pytest
from browser import browse, needs_browser, text_of
from repository import ROOT

from collectives.algorithms import count, table
from collectives.algorithms.lockstep import play
from tools import steps_page

PAGE = ROOT / "docs/steps.html"

RUNS = [
    (collective, name, n)
    for collective, known in table.ALGORITHMS.items()
    for name in known
    for n in range(1, 17)
    if name in table.names(collective, n)
]


class Parts(tuple):
    """The ranks whose data are summed up in a piece."""

    def __add__(self, other):
        return Parts(sorted((*self, *other)))


def before(collective, n, pieces):
    """What every rank holds before the first step."""
    rule = {
        "broadcast": lambda rank, piece: Parts([0]) if rank == 0 else None,
        "scatter": lambda rank, piece: Parts([0]) if rank == 0 else None,
        "all_gather": lambda rank, piece: Parts([rank]) if rank == piece else None,
        "gather": lambda rank, piece: Parts([rank]) if rank == piece else None,
        "all_to_all": lambda rank, piece: Parts([f"{rank}→{piece}"]) if piece < n else None,
    }.get(collective, lambda rank, piece: Parts([rank]))
    return [[rule(rank, piece) for piece in range(pieces)] for rank in range(n)]


def held(collective, name, n):
    """What every rank holds before each step, and after the last one: in a barrier, of whom it has
    heard.
    """
    pieces = steps_page.pieces(collective, name, n) * (2 if collective == "all_to_all" else 1)
    found = steps_page.steps(collective, name, n)
    if collective == "barrier":
        found = [[message._replace(reduce=True) for message in step] for step in found]
    memory = before(collective, n, pieces)
    heard = [memory, *play(found, memory)]
    only_once = collective == "barrier"
    return [
        [[sorted(set(one)) if only_once else one for one in row] for row in memory]
        for memory in heard
    ]


def traffic(collective, name, n):
    """Messages and bytes until each step."""
    per_node = steps_page.per_machine(n)
    sized = count.sized_messages(collective, name, n, steps_page.NBYTES, per_node)
    sizes = [[size for _, size in step] for step in sized]
    return [[sum(map(len, sizes[:k])), sum(map(sum, sizes[:k]))] for k in range(len(sizes) + 1)]


def test_the_page_has_every_algorithm_at_every_size_and_needs_nothing_else():
    text = PAGE.read_text("utf-8")
    assert len(text) < 2**20
    assert set(re.findall(r"https?://[^\"'\s]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"\b(?:src|href)=|@import|fetch\(|url\((?!#)", text)
    data = json.loads(re.search(r"^const DATA = (.*);$", text, re.MULTILINE)[1])
    found = {
        (collective, name, int(n))
        for collective, known in data.items()
        for name, one in known.items()
        for n in one["ranks"]
    }
    assert found == set(RUNS)


@pytest.mark.parametrize("n", range(1, 17))
def test_one_rank_of_each_machine_sends_to_others(n):
    machines = steps_page.machines(n)
    assert sorted(itertools.chain(*machines)) == list(range(n))
    home = {rank: number for number, ranks in enumerate(machines) for rank in ranks}
    messages = itertools.chain(*steps_page.steps("all_reduce", "hierarchical", n))
    leaving = {one.source for one in messages if home[one.source] != home[one.to]}
    assert sorted(home[rank] for rank in leaving) == (list(range(len(machines))) if n > 1 else [])
    assert steps_page.per_machine(n) == len(machines[0])


def shown(parts, n):
    """The text of a cell: more than six ranks are shortened, such as 0 to 3, 6, 7."""
    if n < 7 or not parts or len(parts) == 1:
        return "+".join(map(str, parts or ()))
    runs = [
        [rank for _, rank in run]
        for _, run in itertools.groupby(enumerate(parts), lambda one: one[1] - one[0])
    ]
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def rows(document):
    """The texts of the cells, by rank."""
    lines = re.findall(r'<tr><th scope="row">(.*?)</tr>', document)
    return [re.findall(r'<span class="who">(.*?)</span>', line) for line in lines]


@needs_browser
@pytest.mark.parametrize(
    ("collective", "name", "n", "step"),
    [
        ("all_reduce", "ring", 5, 3),
        ("all_reduce", "hierarchical", 8, 3),
    ],
)
def test_an_address_shows_its_step(collective, name, n, step, tmp_path):
    document, console = browse(PAGE, tmp_path, f"#{collective}/{name}/{n}/{step}")
    assert console == ""
    memory = held(collective, name, n)[step]
    assert rows(document) == [[shown(one, n) for one in row] for row in memory]
    messages = steps_page.steps(collective, name, n)[step - 1] if step else []
    listed = re.findall(r"<li>(\d+) (?:→ (\d+)|copies)", document)
    assert [(int(a), int(b or a)) for a, b in listed] == [(one.source, one.to) for one in messages]
    numbers = [int(x.replace(",", "")) for x in re.findall(r"\d[\d,]*", text_of(document, "count"))]
    steps = len(held(collective, name, n)) - 1
    assert numbers == [*([step] if step else []), steps, *traffic(collective, name, n)[step]]
    arrows = re.findall(r'<path class="arrow', document)
    assert len(arrows) == sum(one.source != one.to for one in messages)
    boxes = [re.findall(r">rank (\d+)<", body) for body in document.split("<tbody>")[1:]]
    machines = steps_page.machines(n) if name == "hierarchical" else [list(range(n))]
    assert [list(map(int, box)) for box in boxes] == machines
    assert document.count('class="machine"') == (len(machines) if name == "hierarchical" else 0)


# A script that is added to the page: it writes into the title what the page's own functions find.
EVERY_STEP = """<script>addEventListener("load", () => {
  const found = [];
  for (const [collective, algorithm, n] of RUNS) {
    choose(collective, algorithm, n, 0);
    const steps = [...Array(run.steps.length + 1).keys()];
    found.push([steps.map(held), steps.map(traffic)]);
  }
  document.title = JSON.stringify(found);
})</script>"""


def with_script(script, folder):
    page = folder / "page.html"
    page.write_text(PAGE.read_text("utf-8").replace("</body>", f"{script}</body>"), "utf-8")
    return page


def title(document):
    return re.search(r"<title>(.*?)</title>", document, re.DOTALL)[1]


@needs_browser
@pytest.mark.slow
def test_the_page_finds_what_lockstep_finds_in_every_step_of_every_algorithm(tmp_path):
    page = with_script(EVERY_STEP.replace("RUNS", json.dumps(RUNS)), tmp_path)
    # The address changes hundreds of times a second here.
    document, console = browse(page, tmp_path, "", "--disable-ipc-flooding-protection")
    assert console == ""
    for run, (memories, counts) in zip(
        RUNS, json.loads(title(document).replace("&gt;", ">")), strict=True
    ):
        expected = [[[list(x) if x else None for x in row] for row in one] for one in held(*run)]
        assert (run, memories) == (run, expected)
        assert (run, counts) == (run, traffic(*run))


# For every call and algorithm at 7 to 16 ranks: the narrowest part of a cell, and whether a cell or
# the table is too narrow for what it holds.
CELLS = """<script>addEventListener("load", () => {
  const found = [];
  for (const [collective, algorithm, n] of RUNS) {
    choose(collective, algorithm, n, 99);
    const all = selector => [...document.querySelectorAll(selector)];
    const tight = all("table:not(.dense) td").some(cell => cell.scrollWidth > cell.clientWidth);
    const scroll = document.querySelector(".scroll");
    found.push([Math.min(...all("td i").map(part => part.getBoundingClientRect().width)), tight,
                scroll.scrollWidth > scroll.clientWidth]);
  }
  document.title = JSON.stringify(found);
})</script>"""


@needs_browser
@pytest.mark.slow
def test_cells_can_be_read_from_seven_ranks_on(tmp_path):
    """On a page of 850 pixels only an all_to_all, of twice as many columns, must be scrolled."""
    runs = [run for run in RUNS if run[2] in (7, 8, 13, 16)]
    page = with_script(CELLS.replace("RUNS", json.dumps(runs)), tmp_path)
    options = "--window-size=850,1300", "--disable-ipc-flooding-protection"
    document, console = browse(page, tmp_path, "", *options)
    assert console == ""
    for run, (part, tight, scrolled) in zip(runs, json.loads(title(document)), strict=True):
        assert (run, part >= 3.5, tight) == (run, True, False)
        assert not scrolled or run[0] == "all_to_all", run


KEYS = """<script>addEventListener("load", () => {
  const seen = [], note = () => seen.push(location.hash);
  const press = (key, target = document.body) => {
    target.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); note();
  };
  note();
  press("ArrowRight"); press("ArrowRight"); press("ArrowLeft"); press("End"); press("ArrowRight");
  press("Home"); press("ArrowLeft");
  press("ArrowRight", document.getElementById("n"));
  for (const id of ["next", "last", "back", "first"]) { document.getElementById(id).click(); note(); }
  const change = (id, value) => {
    const one = document.getElementById(id);
    one.value = value; one.dispatchEvent(new Event("change")); note();
  };
  change("n", "7"); change("collective", "all_gather"); change("algorithm", "recursive_doubling");
  location.hash = "#broadcast/nothing/99/99"; dispatchEvent(new Event("hashchange")); note();
  location.hash = "#x/y/z/-1"; dispatchEvent(new Event("hashchange")); note();
  choose("all_to_all", "pairwise", 16, 2);
  seen.push("#" + document.documentElement.scrollWidth);
  choose("all_reduce", "ring", 3, 1);
  document.getElementById("play").click();
  document.title = JSON.stringify(seen.map(one => one.slice(1)));
})</script>"""


@needs_browser
@pytest.mark.slow
def test_keys_buttons_and_lists_lead_through_the_steps(tmp_path):
    """At last the page is as narrow as its window, and plays to the end."""
    page, options = (
        with_script(KEYS, tmp_path),
        ("--window-size=500,800", "--virtual-time-budget=20000"),
    )
    document, console = browse(page, tmp_path, "#all_reduce/ring/4/0", *options)
    assert console == ""
    ring = "all_reduce/ring/4/"
    *addresses, width = json.loads(title(document))
    assert addresses == [
        *(ring + str(step) for step in (0, 1, 2, 1, 6, 6, 0, 0, 0, 1, 6, 5, 0)),
        "all_reduce/ring/7/0",
        "all_gather/ring/7/0",
        "all_gather/recursive_doubling/4/0",
        "broadcast/direct/16/15",
        ring + "0",
    ]
    assert int(width) <= 500
    assert text_of(document, "count").startswith("After step 4 of 4:")
    assert text_of(document, "play") == "Play"
