"""What Sphinx asks. pages.py writes the source that it reads, and build.py calls it."""

import html
import json
import posixpath
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinx import locale as sphinx_locale
from sphinx.addnodes import pending_xref
from sphinx.search.en import SearchEnglish
from sphinx.transforms import i18n
from sphinx.transforms.post_transforms import SphinxPostTransform

from collectives.course import chapters
from tools import contents
from tools.site import repository
from tools.site.repository import ROOT
from tools.translations import catalogs, paragraphs

HERE = Path(__file__).parent

project = "collectives"
author = copyright = "the collectives authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"

nb_execution_mode = "off"  # what is committed is shown
nb_merge_streams = True
nb_code_prompt_show = "Show the code of the cure"  # no other code is folded
nb_code_prompt_hide = "Hide the code of the cure"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# The docstrings are read as reStructuredText, but their single backticks are code.
default_role = "code"
add_module_names = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
maximum_signature_line_length = 80

# build.py says which language, and where its .po file for each page lies.
gettext_compact = False
translation_progress_classes = "untranslated"  # site.css marks what is not in Chinese any more
suppress_warnings = ["i18n.inconsistent_references"]  # a note has links of its own

# subtle: Sphinx gives a translated link what the English link to the same page has. Of two links to
# one page, both would lead to the anchor of the last. So a translated link keeps its own anchor.
i18n.EXCLUDED_PENDING_XREF_ATTRIBUTES += ("reftargetid",)

html_theme = "pydata_sphinx_theme"
html_title = "collectives"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = str(HERE / "static" / "favicon.svg")
templates_path = [str(HERE / "templates")]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["language.html", "theme-switcher"],
    "article_header_end": ["lesson.html"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

LESSONS = {
    f"notebooks/{lesson.name}": lesson
    for chapter in chapters.read().values()
    for lesson in chapter.lessons
}

# Lessons of the route lead to each other, past pages that come between them in their chapters.
ROUTE = [f"notebooks/{lesson.name}" for lesson in chapters.route()]


class Links(SphinxPostTransform):
    """Links that a code host follows and Sphinx does not: to folders and files beside the pages."""

    default_priority = 8  # before myst_parser's, which warns

    def run(self, **_) -> None:
        for link in list(self.document.findall(pending_xref)):
            if link.get("reftype") == "myst" and not link.get("refdomain"):
                self._resolve(link, *link["reftarget"].partition("#")[::2])

    def _resolve(self, link: pending_xref, path: str, anchor: str) -> None:
        folder = posixpath.dirname(link["refdoc"])
        place = posixpath.normpath(posixpath.join(folder, path))
        chapter = f"chapters/{posixpath.basename(place)}"
        slugs = self.env.metadata[link["refdoc"]].get("myst_slugs", {})
        if path.lower() in slugs:  # Jupyter keeps the capitals of a heading in its anchor
            uri = f"#{slugs[path.lower()][1]}"
        elif place.removesuffix(".html") in self.env.found_docs and place.endswith(".html"):
            # The anchor is what the page in the frame shows: it is no heading.
            uri = posixpath.relpath(place, folder) + (f"#{anchor}" if anchor else "")
        elif (Path(self.app.srcdir).parent / "files" / place).is_file():
            uri = posixpath.relpath(place, folder)
        elif place == "notebooks":
            uri = posixpath.relpath("docs/contents.html", folder)
        elif place.startswith(("notebooks/", "lessons/")) and chapter in self.env.found_docs:
            uri = posixpath.relpath(f"{chapter}.html", folder)
        elif (ROOT / place).is_dir():
            uri = repository.folder_link(self.config.repository_address, place)
        else:
            return
        new = nodes.reference("", "", *link.children, refuri=uri, internal=True)
        link.replace_self(new if uri else link.children)


HAN = "\u3400-\u9fff\uf900-\ufaff"


class Pairs(SearchEnglish):
    """Chinese by characters and by pairs of them, in index and query; the rest as in English.

    subtle: the class of Sphinx 9.0 for Chinese names a stemmer that its script does not have, so
    the search finds nothing and says nothing. The stemmer is called by `language_name`.
    """

    lang = "zh"
    js_splitter_code = r"""
const HAN = /[\u3400-\u9fff\uf900-\ufaff]+/g;
const pairsOf = run => run.length < 2 ? [run] : Array.from(run.slice(1), (end, i) => run[i] + end);
var splitQuery = query => [
  ...query.replace(HAN, " ").split(/[^\p{Letter}\p{Number}_]+/gu).filter(word => word),
  ...(query.replace(/[的了和与]/g, " ").match(HAN) ?? []).flatMap(pairsOf),
];
"""

    def split(self, text: str) -> list[str]:
        runs = re.findall(f"[{HAN}]+", text)
        pairs = [run[i : i + n] for run in runs for n in (1, 2) for i in range(len(run) - n + 1)]
        return [*super().split(re.sub(f"[{HAN}]+", " ", text)), *pairs]

    def word_filter(self, word: str) -> bool:
        return bool(re.match(f"[{HAN}]", word)) or super().word_filter(word)


def name_pictures(app, doctree) -> None:
    """myst-nb calls a picture by the name of its file. What it shows is said in the SVG."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg" and "jupyter_execute" in path.parts:
            label = re.search(r'aria-label="([^"]*)"', path.read_text(encoding="utf-8"))
            image["alt"] = html.unescape(label[1]) if label else ""


def translate_summaries(app, doctree, page: str) -> None:
    """What stands in HTML, of which Sphinx sees no words."""
    has, known = sphinx_locale.init(app.config.locale_dirs, app.config.language, page)[::-1]
    for raw in doctree.findall(nodes.raw) if has else ():
        text = paragraphs.SUMMARY.sub(lambda match: known.gettext(match[0]), raw.astext())
        if text != raw.astext():
            raw[:] = [nodes.Text(text)]


def mark_english(app, doctree, page: str) -> None:
    """The links of a Chinese page that lead to an English one: site.css says so behind them."""
    known = {"search", *catalogs.pages()}
    if app.config.language == catalogs.LANGUAGE and page in known:
        for link in doctree.findall(nodes.reference):
            parts = urlsplit(link.get("refuri", ""))
            path = "" if parts.netloc else parts.path
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
            if path.endswith(".html") and target.removesuffix(".html") not in known:
                link["classes"].append("in-english")


def describe(app, doctree) -> None:
    """Every page is described by its first paragraph: for search engines and for our own search."""
    if first := next(doctree.findall(nodes.paragraph), None):
        app.env.metadata[app.env.docname]["description"] = shortened(first.astext())


def shortened(text: str, most: int = 200) -> str:
    """Its first sentences, at least one, that are no longer than `most` letters."""
    first, *others = re.split(r"(?<=[.!?])(?= )|(?<=[。！？])", " ".join(text.split()))
    for sentence in others:
        if len(first) + len(sentence) > most:
            break
        first += sentence
    return first


def keep_old_anchor(app, doctree) -> None:
    """Of a lesson whose title was once its file's name alone."""
    if app.env.docname in LESSONS and (section := next(doctree.findall(nodes.section), None)):
        old = nodes.make_id(LESSONS[app.env.docname].path.stem)
        if old not in doctree.ids:
            section["ids"].append(old)
            doctree.ids[old] = section


def write_pages(app, error) -> None:
    """What our search shows and knows of every page, besides Sphinx's index."""
    if error is None and app.builder.name == "html":
        place = catalogs.FOLDER if app.config.language == catalogs.LANGUAGE else HERE
        also = tomllib.loads((place / "also_called.toml").read_text(encoding="utf-8"))
        pages = {
            name: {
                "about": app.env.metadata[name].get("description", ""),
                "also": also.get(name, ""),
            }
            for name in sorted(app.env.found_docs)
        }
        text = f"const PAGES = {json.dumps(pages, ensure_ascii=False, separators=(',', ':'))};\n"
        Path(app.outdir, "_static", "pages.js").write_text(text, encoding="utf-8")


def source_of(page: str) -> str:
    """The file of the repository that somebody edits to change this page."""
    if page.startswith("notebooks/"):
        return page.replace("notebooks/", "lessons/", 1) + ".py"
    for path in (f"{page}.md", f"{page}.py", f"{page}/task.py", f"tools/site/{page}.md"):
        if (ROOT / path).is_file():
            return path
    fronts = {"index": "front", "exercises/index": "exercises_front"}
    return f"tools/site/{fronts[page]}.md" if page in fronts else ""


def about_page(app, page: str, template: str, context: dict, doctree) -> None:
    address, source = app.config.repository_address, source_of(page)
    chinese = app.config.language == catalogs.LANGUAGE
    context["chinese"] = chinese
    context["untranslated"] = chinese and page not in catalogs.pages()
    context["other_language"], context["metatags"] = _languages(context, page, chinese)
    context["edit"] = repository.edit_link(address, source) if source else ""
    for one, following in pairwise(ROUTE):
        for key, here, there in (("next", one, following), ("prev", following, one)):
            if page == here:
                link = app.builder.get_relative_uri(page, there)
                context[key] = {"link": link, "title": app.env.titles[there].astext()}
    about = app.env.metadata[page].get("description") or "Distributed PyTorch, by running it."
    tag = f'<meta name="description" content="{html.escape(about)}">\n'
    context["metatags"] = context.get("metatags", "") + tag
    if page in LESSONS:
        reading, exercises = contents.in_all([LESSONS[page]])
        context["lesson"] = {
            "reading": reading,
            "exercises": exercises,
            "notebook": f"{page}.ipynb",
            "program": source,
            "colab": repository.colab_link(address, f"{page}.ipynb"),
        }


def _languages(context: dict, page: str, chinese: bool) -> tuple[str, str]:
    """Where the same page lies in the other language, and what tells a search engine so."""
    up = "../" * page.count("/")
    english = f"{up}../{page}.html" if chinese else f"{up}{page}.html"
    translated = f"{up}{page}.html" if chinese else f"{up}zh/{page}.html"
    link = '<link rel="alternate" hreflang="{}" href="{}">\n'.format
    both = link("en", english) + link("zh-CN", translated)
    return english if chinese else translated, context.get("metatags", "") + both


def setup(app) -> None:
    app.add_config_value("repository_address", "", "env")
    app.add_post_transform(Links)
    app.add_search_language(Pairs)
    app.connect("doctree-resolved", translate_summaries)
    app.connect("doctree-resolved", mark_english)
    app.connect("doctree-read", name_pictures)
    app.connect("doctree-read", describe)
    app.connect("doctree-read", keep_old_anchor)
    app.connect("html-page-context", about_page)
    app.connect("build-finished", write_pages)
