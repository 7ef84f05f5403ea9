"""The built site in a real browser: on a desk and on a phone, by day and by night."""

import functools
import http.server
import importlib.util
import re
import threading
import tomllib
from collections import defaultdict

import pytest
from browser import driven, needs_browser
from repository import ROOT

SITE = ROOT / "site"
SOURCES = (
    "notebooks",
    "lessons",
    "docs",
    "exercises",
    "examples",
    "records",
    "tools",
    "translations",
)

PAGES = (
    *("index", "notebooks/all_reduce", "README", "docs/contents", "chapters/training"),
    *("notebooks/mistakes/order", "exercises/calls/weighted_mean", "docs/api", "docs/steps"),
    "search",
)

# What a screen reader would have no name for.
NAMELESS = """() => [...document.querySelectorAll("a[href], button, input, select, img, iframe, summary")]
  .filter(one => one.checkVisibility())
  .filter(one => !one.matches("img[alt='']") && !(one.getAttribute("aria-label") || one.title || one.alt
    || one.placeholder || one.labels?.length || one.getAttribute("aria-labelledby")
    || one.textContent.trim() || one.querySelector("img[alt]")))
  .map(one => one.outerHTML.slice(0, 200))"""


def is_built() -> bool:
    page = SITE / "index.html"
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.*")]
    files += [*ROOT.glob("*.md"), *(ROOT / "collectives").rglob("*.py")]
    newest = max(path.stat().st_mtime for path in files if path.suffix != ".pyc")
    return page.is_file() and page.stat().st_mtime >= newest


pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None or not is_built(),
        reason="needs the extra site: make site",
    ),
]


@pytest.fixture(scope="module")
def browser():
    with driven() as browser:
        yield browser


@pytest.fixture
def page(browser):
    """An empty page that notes, in `faults`, errors and what it asks another machine for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(100_000)  # milliseconds: the machine may be busy
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("requestfailed", lambda request: was_left(request) or page.faults.append(request.url))
    page.on("console", lambda said: said.type == "error" and page.faults.append(said.text))
    page.on("request", lambda request: is_outside(request.url) and page.faults.append(request.url))
    yield page
    context.close()
    assert page.faults == []


def was_left(request) -> bool:
    """Whether it failed because the browser went on to another page."""
    return request.failure == "net::ERR_ABORTED"


def is_outside(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))


def open_page(page, name: str) -> None:
    page.goto(
        f"{(SITE / name.partition('#')[0]).as_uri()}.html{name[len(name.partition('#')[0]) :]}"
    )


def in_every_size(page, name: str, schemes=("light",)) -> None:
    open_page(page, name)
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        for width in (1280, 420):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate(NAMELESS) == [], (name, width)
    assert page.faults == [], name


@needs_browser
@pytest.mark.parametrize(
    "name", [*PAGES[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in PAGES[2:])]
)
def test_a_page_fits_and_everything_on_it_has_a_name(page, name):
    in_every_size(page, name, ("light", "dark"))
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("main").count() == 1
    assert page.locator("h1").count() == 1


# One page of each kind, and the rules of axe that it breaks: Sphinx sets the parts of a signature as
# a list of definitions that holds more than terms and definitions.
KINDS = {
    "index": [],
    "notebooks/all_reduce": [],
    "docs/backends": [],
    "docs/card": [],
    "docs/api": ["definition-list"],
    "docs/ranks": [],
    "play/ranks": [],
    "play/steps": [],
    "chapters/training": [],
    "exercises/calls/weighted_mean": [],
    "search": [],
    "zh/notebooks/start": [],
}


@needs_browser
@pytest.mark.slow
def test_axe_finds_nothing_on_any_kind_of_page_by_day_and_by_night(page):
    from axe_playwright_python.sync_playwright import Axe

    quick = {"preload": False, "resultTypes": ["violations"]}
    for scheme, names in (("light", list(KINDS)), ("dark", list(KINDS)[:2])):
        page.emulate_media(color_scheme=scheme)
        found = {}
        for name in names:
            open_page(page, name)
            page.wait_for_timeout(
                500
            )  # milliseconds: until colours have faded into those of the night
            broken = Axe().run(page, options=quick).response["violations"]
            found[name] = [rule["id"] for rule in broken]
        assert found == {name: KINDS[name] for name in names}, scheme


@needs_browser
@pytest.mark.slow
def test_the_card_is_one_sheet(page):
    open_page(page, "docs/card")
    sheet = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page[^s]", sheet)) == 1


@needs_browser
def test_a_long_table_is_searched_on_its_page(page):
    open_page(page, "docs/backends")
    field = page.get_by_placeholder("Only rows with ...").first
    rows = page.locator(".find-row + * tbody tr:visible").first
    rows.wait_for()
    before = page.locator("table tbody tr:visible").count()
    field.fill("all_to_all_single")
    assert 0 < page.locator("table tbody tr:visible").count() < before - 20


@needs_browser
@pytest.mark.slow
def test_every_page_fits_a_desk_and_a_phone(page):
    """In Chinese, those that are translated: the others have the same text as the English ones."""
    for path in sorted(SITE.rglob("*.html")):
        is_ours = not {"_static", "play"} & {*path.relative_to(SITE).parts}
        if is_ours and "no-translation" not in path.read_text(encoding="utf-8"):
            in_every_size(page, path.relative_to(SITE).with_suffix("").as_posix())


@needs_browser
def test_the_search_finds_a_lesson_and_its_keys_work(page):
    open_page(page, "index")
    page.keyboard.press("Control+k")
    page.keyboard.type("reduce_scatter")
    page.keyboard.press("Enter")
    found = page.locator(".search li a")
    found.first.wait_for()
    assert found.first.get_attribute("href").startswith("notebooks/reduce_scatter.html")


OF_OTHERS = tomllib.loads((ROOT / "tests/site/queries.toml").read_text("utf-8"))["query"]

# The pages that the search finds, best first, each once.
FOUND = """query => {
  Search.query(query);
  const links = [...document.querySelectorAll(".search li a")].map(one => one.getAttribute("href"));
  return [...new Set(links.map(link => link.replace(/\\.html.*/, "")))];
}"""


@needs_browser
def test_of_forty_queries_of_others_each_has_its_page_among_the_first_three(page):
    open_page(page, "search")
    page.goto(f"{page.url}?q=rank")
    page.locator(".search li a").first.wait_for()
    missed = {
        query["words"]: found[:3]
        for query in OF_OTHERS
        for found in [page.evaluate(FOUND, query["words"])]
        if not {*query["pages"]} & {*found[:3]}
    }
    assert missed == {}
    assert len(OF_OTHERS) == 40


@needs_browser
def test_a_page_that_is_found_says_what_it_is_about_and_the_index_is_loaded_for_a_search_alone(
    page,
):
    open_page(page, "notebooks/all_reduce")
    assert page.locator("script[src*=searchindex]").count() == 0
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=all_reduce")
    about = page.locator(".search li .context").first
    about.wait_for()
    assert (
        about.text_content()
        == "all_reduce adds up one tensor of every rank, and every rank gets the sum."
    )


@needs_browser
def test_the_front_page_offers_the_lesson_that_was_open_last(page):
    open_page(page, "index")
    assert page.locator(".continue").count() == 0
    open_page(page, "notebooks/route/one_mean")
    open_page(page, "index")
    page.get_by_role("link", name="Continue where you were: one_mean").click()
    page.wait_for_url("**/notebooks/route/one_mean.html")


def test_every_page_has_a_description_of_its_own():
    found = defaultdict(list)
    for path in SITE.rglob("*.html"):
        of_sphinx = path.stem in ("genindex", "py-modindex", "search")
        if not of_sphinx and not {"_static", "play"} & set(path.relative_to(SITE).parts):
            said = re.findall('<meta name="description" content="([^"]+)"', path.read_text("utf-8"))
            place = path.relative_to(SITE).as_posix()
            found[place.startswith("zh/"), "".join(said)].append(place)
    assert {said for _, said in found if not said} == set()
    assert {said: pages for (_, said), pages in found.items() if len(pages) > 1} == {}


@needs_browser
def test_the_switch_leads_to_the_same_page_in_the_other_language(page):
    open_page(page, "notebooks/start")
    page.get_by_role("link", name="中文").first.click()
    page.wait_for_url("**/zh/notebooks/start.html")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert "分布式" in page.locator("article").text_content()
    english = {link.get_attribute("href") for link in page.locator("article a.in-english").all()}
    assert "launching.html" in english
    assert not any("route/" in link or "glossary" in link for link in english)
    page.get_by_role("link", name="English").first.click()
    page.wait_for_url("**/site/notebooks/start.html")


CHINESE = tomllib.loads((ROOT / "tests/site/queries_zh.toml").read_text("utf-8"))["query"]


@needs_browser
def test_of_twenty_queries_in_chinese_each_has_its_page_among_the_first_three(page):
    open_page(page, "zh/search")
    page.goto(f"{page.url}?q=集合通信")
    page.locator(".search li a").first.wait_for()
    missed = {
        query["words"]: found[:3]
        for query in CHINESE
        for found in [page.evaluate(FOUND, query["words"])]
        if not {*query["pages"]} & {*found[:3]}
    }
    assert missed == {}
    assert len(CHINESE) == 20


@needs_browser
def test_the_first_key_leads_to_the_text_and_enter_opens_an_answer(page):
    open_page(page, "notebooks/all_reduce")
    page.keyboard.press("Tab")
    assert "main content" in page.evaluate("document.activeElement.textContent")
    answer = page.locator("details").first
    answer.locator("summary").focus()
    page.keyboard.press("Enter")
    assert answer.evaluate("one => one.open")


@needs_browser
def test_previous_and_next_lead_through_the_route(page):
    open_page(page, "notebooks/route/two_copies")
    for key, name in (("prev", "start"), ("next", "two_copies"), ("next", "one_mean")):
        page.locator(f"a[class*={key}]").click()
        page.wait_for_url(f"**/{name}.html")


@needs_browser
def test_the_keys_of_a_page_in_a_frame_work_and_its_state_is_in_the_address(page):
    open_page(page, "docs/steps#all_reduce/ring/5/1")
    page.frame_locator("iframe").get_by_text("After step 1 of 8").wait_for()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**#all_reduce/ring/5/2")
    page.emulate_media(color_scheme="dark")
    inside = page.frames[1]
    dark = "getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 27)'"
    inside.wait_for_function(dark)
    page.emulate_media(color_scheme="light")
    inside.wait_for_function(f"!({dark})")
    height = page.locator("iframe").evaluate("one => one.clientHeight")
    assert abs(height - inside.evaluate("document.documentElement.offsetHeight")) <= 1


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """The address of a server that has the site in a folder of a folder."""
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "folder").symlink_to(SITE)
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/folder"
        server.shutdown()


@needs_browser
def test_it_works_in_any_folder_of_a_server(page, server):
    page.goto(f"{server}/index.html")
    page.get_by_role("link", name="wrapped_in_ddp", exact=True).first.click()
    page.wait_for_url("**/some/folder/notebooks/route/wrapped_in_ddp.html")
    page.goto(f"{server}/search.html?q=reduce_scatter")
    page.locator(".search li a").first.wait_for()
    page.goto(f"{server}/docs/steps.html")
    page.frame_locator("iframe").get_by_text("Before the first of 6 steps").wait_for()
