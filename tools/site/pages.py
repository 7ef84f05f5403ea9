"""The source of the site: the pages of the repository at their places, and those made from lists.

Sphinx reads it. A page that did not change keeps its time, so that only what changed is built anew.
"""

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path

import collectives
from collectives.course import chapters
from tools import contents
from tools.markdown import table
from tools.site import exercise_pages, repository
from tools.site.repository import ROOT

HERE = Path(__file__).parent

# The pages of docs/ by what their readers want. One that is not named here comes under "Develop".
GROUPS = {
    "Look up": (
        *("glossary", "messages", "mistakes", "algorithms", "clusters", "machines"),
        *("card", "statements", "pytorch-docs", "which-nccl"),
    ),
    "Use": (
        "lessons",
        "your-script",
        "diagnosis",
        "launcher",
        "engines",
        "for-teachers",
        "for-infrastructure",
        "api",
    ),
    "Verify": ("verifying-a-backend", "backends", "matrix"),
}
WHAT_FOR = {
    "Look up": "What a word, a message or a call means, each on a page to search in.",
    "Use": "Install the package, run its lessons, and use its tools for programs of your own.",
    "Verify": "Check that a backend does what its calls promise.",
    "Develop": "How the project is made, and how to add to it.",
    "Play": "Pages on which you move the data yourself.",
}


class Source:
    """The folder that Sphinx reads, and the folder of what is only copied beside the pages."""

    def __init__(self, folder: Path, address: str):
        self.folder, self.address = folder, address
        self.pages, self.files = folder / "pages", folder / "files"
        self._written: set[Path] = set()

    def write(self) -> None:
        self._notebooks()
        self._documentation()
        self._chapters()
        self._exercises()
        self._examples()
        self._interactive()
        self._front()
        self._linked_files()
        for old in [path for path in self.folder.rglob("*") if path.is_file()]:
            if old not in self._written:
                old.unlink()

    def put(self, path: str, text: str) -> None:
        """A page."""
        self._write(self.pages / path, text)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        self._written.add(path)

    def copy(self, path: str, to: str = "") -> None:
        """A file of the repository that is no page."""
        target = self.files / (to or path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
        self._written.add(target)

    def _notebooks(self) -> None:
        for chapter in chapters.read().values():
            for lesson in chapter.lessons:
                name = f"notebooks/{lesson.name}.ipynb"
                self.put(name, _with_folds(ROOT / name))
                download = repository.notebook_to_download(ROOT / name, self.address)
                self._write(self.files / name, download)
                self.copy(f"lessons/{lesson.name}.py")

    def _documentation(self) -> None:
        folders = [ROOT / "docs", ROOT / "records"]
        below = sorted(path for folder in folders for path in folder.rglob("*.md"))
        at_top = [path for path in sorted(ROOT.glob("*.md")) if path.name != "README.zh-CN.md"]
        for path in [*at_top, *below]:
            text = path.read_text(encoding="utf-8")
            if path.parent == ROOT:  # a switch on every page leads to the Chinese one
                text = text.replace("[中文](README.zh-CN.md)\n\n", "")
            if path.name == "api.md":
                text = _with_docstrings(text)
            if path.name == "contents.md":
                known = [f"{_title(name)} </chapters/{name}>" for name in chapters.read()]
                text = f"{text}\n{_tree(known, hidden=True)}"
            self.put(path.relative_to(ROOT).as_posix(), text)
        for path in (ROOT / "docs").rglob("*.svg"):
            self.put(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        groups = {name: [f"/docs/{page}" for page in group] for name, group in GROUPS.items()}
        groups["Use"].append("/examples/index")
        placed = {"/README", "/docs/contents", "/docs/exercises"}.union(*groups.values())
        every = [f"/{path.relative_to(ROOT).with_suffix('')}" for path in [*at_top, *below]]
        groups["Develop"] = [page for page in every if page not in placed]
        groups["Use"].insert(0, "Install and run </README>")
        for name, group in groups.items():
            text = f"# {name}\n\n{WHAT_FOR[name]}\n\n{_tree(group)}"
            self.put(f"groups/{_file(name)}.md", text)

    def _chapters(self) -> None:
        for chapter in chapters.read().values():
            about = (HERE / "chapters" / f"{chapter.name}.md").read_text(encoding="utf-8")
            rows = [
                [
                    f"[{lesson.title}](../notebooks/{lesson.name}.ipynb)",
                    lesson.summary,
                    *contents.in_all([lesson]),
                ]
                for lesson in chapter.lessons
            ]
            heads = ["lesson", "what happens", "minutes to read", "of exercises"]
            lessons = _tree([f"/notebooks/{name}" for name in chapter.names], hidden=True)
            self.put(f"chapters/{chapter.name}.md", f"{about}\n{table(heads, rows)}\n\n{lessons}")

    def _exercises(self) -> None:
        for path, text in exercise_pages.pages():
            self.put(f"{path}.md", text)
        about = (HERE / "exercises_front.md").read_text(encoding="utf-8")
        commands = (ROOT / "exercises/README.md").read_text(encoding="utf-8")
        commands = commands.replace("# Exercises", "## The commands", 1)
        trees = [
            _tree(entries, hidden=True, caption=chapter)
            for chapter, entries in exercise_pages.by_chapter().items()
        ]
        tree = _tree(["/docs/exercises"], hidden=True, caption="About")
        parts = [about, exercise_pages.by_lesson(), commands, *trees, tree]
        self.put("exercises/index.md", "\n\n".join(parts))

    def _examples(self) -> None:
        paths = sorted((ROOT / "examples").glob("*.py"))
        for path in paths:
            self.copy(f"examples/{path.name}")
            program = path.read_text(encoding="utf-8").strip()
            about = (ast.get_docstring(ast.parse(program)) or "").partition("\n\n")[0]
            link = f"[Download]({path.name}) it."
            text = f"# {path.name}\n\n{about}\n\n{link}\n\n```python\n{program}\n```\n"
            self.put(f"examples/{path.stem}.md", text)
        tree = _tree([f"/examples/{path.stem}" for path in paths])
        self.put("examples/index.md", f"# Examples\n\nPrograms to start from.\n\n{tree}")

    def _interactive(self) -> None:
        """A page of its own script stays as it is, in a frame: see static/site.js."""
        frame = (HERE / "templates/frame.md").read_text(encoding="utf-8")
        inside = (HERE / "templates/inside_frame.html").read_text(encoding="utf-8")
        pages = sorted((ROOT / "docs").glob("*.html"))
        for path in pages:
            text = path.read_text(encoding="utf-8")
            text = text.replace("../lessons/{}.py", "../notebooks/{}.html")
            title = unescape(re.findall("<title>(.*?)</title>", text)[0])
            about = unescape(re.findall('<meta name="description" content="(.*?)"', text)[0])
            self._write(
                self.files / "play" / path.name, text.replace("</body>", f"{inside}</body>")
            )
            for beside in (ROOT / "docs" / path.stem).rglob("*.*"):
                self.copy(
                    beside.relative_to(ROOT).as_posix(),
                    f"play/{beside.relative_to(ROOT / 'docs').as_posix()}",
                )
            page = frame.replace("{title}", title).replace("{label}", escape(title))
            page = page.replace("{about}", about)
            self.put(f"docs/{path.stem}.md", page.replace("{file}", path.name))
        self.copy("docs/calls.svg", "play/calls.svg")  # seen where scripts do not run
        tree = _tree([f"/docs/{path.stem}" for path in pages])
        self.put("groups/play.md", f"# Play\n\n{WHAT_FOR['Play']}\n\n{tree}")

    def _front(self) -> None:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = readme.replace("](#", "](README.md#")
        readme = readme.replace("](README.md#the-course)", "](#the-route)")
        text = (HERE / "front.md").read_text(encoding="utf-8")
        text = text.replace("{you come with}", _section(readme, "You come with ..."))
        route = readme.partition("<!-- lessons")[2].partition("-->\n")[2]
        route = route.partition("<!-- end")[0].strip()
        route = re.sub(r"docs/contents\.md#(\w+)", r"chapters/\1.md", route)
        text = text.replace("{route}", route)
        for name, still in _stills(readme).items():
            text = text.replace(f"{{{name}}}", f"```console\n{still}\n```")
        groups = ["Course </docs/contents>", "Exercises </exercises/index>"]
        groups += [f"/groups/{_file(name)}" for name in ("Play", *GROUPS, "Develop")]
        self.put("index.md", f"{text}\n{_tree(groups, hidden=True)}")

    def _linked_files(self) -> None:
        """Programs and data that a page links to."""
        for page in [path for path in self._written if path.suffix in (".md", ".ipynb")]:
            if self.pages not in page.parents:
                continue
            folder = ROOT / page.relative_to(self.pages).parent
            for link in re.findall(r"\]\(([^)#:\s]+)", page.read_text(encoding="utf-8")):
                file = Path(folder, link).resolve()
                if file.is_file() and ROOT in file.parents:
                    path = file.relative_to(ROOT).as_posix()
                    if file.suffix not in (".md", ".ipynb", ".svg", ".html"):
                        self.copy(path)


def _with_folds(path: Path) -> str:
    """Jupyter hides the source of a cell by a mark that myst-nb does not know."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"]["tags"] = ["hide-input"]
    return json.dumps(notebook, ensure_ascii=False, indent=1)


def _with_docstrings(text: str) -> str:
    """Behind the lines of docs/api.md on a subject, the whole docstrings of the same names."""
    subjects = [
        "\n\n".join([subject, *map(_docstrings, re.findall(r"^- `([\w.]+)`: ", subject, re.M))])
        for subject in text.split("\n## ")
    ]
    return "\n\n## ".join(subjects)


def _docstrings(name: str) -> str:
    """Of a function or a class; of a module and all that it has."""
    if name.startswith("collectives."):
        return f"### {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```"
    kind = "class" if isinstance(getattr(collectives, name), type) else "function"
    return f"```{{eval-rst}}\n.. auto{kind}:: collectives.{name}\n```"


def _stills(readme: str) -> dict[str, str]:
    """What a terminal shows behind each door of the front page. The README, a notebook and the
    committed certificate hold what runs have printed; of the certificate it is the beginning.
    """
    first, hang = re.findall(r"```(?:console|text)\n(\$ .*?)\n```", readme, re.DOTALL)[:2]
    notebook = json.loads((ROOT / "notebooks/route/two_copies.ipynb").read_text(encoding="utf-8"))
    pages = [
        "".join(output["data"]["text/html"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    ]
    learn = unescape(re.findall("<pre[^>]*>(.*?)</pre>", pages[0], re.DOTALL)[0]).rstrip()
    certificate = (ROOT / "docs/certificates/gloo.certificate.md").read_text(encoding="utf-8")
    causes = re.findall(r"^\d+\. (.*)", certificate, re.MULTILINE)
    wrapped = textwrap.wrap(causes[0], 76, initial_indent="- ", subsequent_indent="  ")
    check = [*wrapped[:3], "- ...", f"{len(causes)} wrong; gloo.certificate.md"]
    return {
        "first training": first,
        "learn": f"$ python lessons/route/two_copies.py\n{learn}",
        "hang": hang,
        "check": "\n".join(["$ collectives verify gloo", *check]),
    }


def _section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0].strip()


def _title(chapter: str) -> str:
    return chapter.replace("_", " ").capitalize()


def _file(name: str) -> str:
    return name.lower().replace(" ", "-")


def _tree(pages: Iterable[str], hidden: bool = False, caption: str = "") -> str:
    options = [":maxdepth: 1", *([":hidden:"] if hidden else [])]
    options += [f":caption: {caption}"] if caption else []
    lines = ["```{toctree}", *options, "", *pages, "```"]
    return "\n".join(lines) + "\n"
