"""What Sphinx asks. pages.py writes the source that it reads, and build.py calls it."""

import html
import posixpath
import re
from itertools import pairwise
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform

from collectives.course import chapters
from tools import contents
from tools.site import repository
from tools.site.repository import ROOT

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

# Another language is a .po file for each page.
locale_dirs = [str(HERE / "locale")]
gettext_compact = False
gettext_uuid = gettext_location = False

html_theme = "pydata_sphinx_theme"
html_title = "collectives"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_favicon = str(HERE / "static" / "favicon.svg")
templates_path = [str(HERE / "templates")]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
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


def name_pictures(app, doctree) -> None:
    """myst-nb calls a picture by the name of its file. What it shows is said in the SVG."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg" and "jupyter_execute" in path.parts:
            label = re.search(r'aria-label="([^"]*)"', path.read_text(encoding="utf-8"))
            image["alt"] = html.unescape(label[1]) if label else ""


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
    context["edit"] = repository.edit_link(address, source) if source else ""
    for one, following in pairwise(ROUTE):
        for key, here, there in (("next", one, following), ("prev", following, one)):
            if page == here:
                link = app.builder.get_relative_uri(page, there)
                context[key] = {"link": link, "title": LESSONS[there].path.stem}
    if page in LESSONS:
        summary = html.escape(LESSONS[page].summary.replace("`", ""))
        context["metatags"] = (
            f'{context.get("metatags", "")}<meta name="description" content="{summary}">\n'
        )
        reading, exercises = contents.in_fives([LESSONS[page]])
        context["lesson"] = {
            "reading": reading,
            "exercises": exercises,
            "notebook": f"{page}.ipynb",
            "program": source,
            "colab": repository.colab_link(address, f"{page}.ipynb"),
        }


def setup(app) -> None:
    app.add_config_value("repository_address", "", "env")
    app.add_post_transform(Links)
    app.connect("doctree-read", name_pictures)
    app.connect("html-page-context", about_page)
