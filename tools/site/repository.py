"""Where the project is public: what the site offers only if that is known.

The setting is the line Repository below [project.urls] in pyproject.toml, "https://github.com/me/it".
"""

import json
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
BRANCH = "main"
PAGES_BRANCH = "gh-pages"  # where .github/workflows/site.yml puts the site

COLAB = "https://colab.research.google.com/github/"
GITHUB = "https://github.com/"

# What a machine that has only torch needs before a lesson runs.
INSTALL = """\
# Needed where collectives is not installed, in Colab for example.
from importlib.util import find_spec

if find_spec("collectives") is None:
    %pip install -q "{name}[training] @ {source}\""""


def address() -> str:
    """ "" if it is not known."""
    return _project().get("urls", {}).get("Repository", "").removesuffix("/")


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def edit_link(address: str, file: str) -> str:
    return f"{address}/edit/{BRANCH}/{file}" if address else ""


def folder_link(address: str, folder: str) -> str:
    return f"{address}/tree/{BRANCH}/{folder}" if address else ""


def colab_link(address: str, notebook: str) -> str:
    """Colab opens notebooks of GitHub alone. Those of the site have the cell that installs."""
    if not address.startswith(GITHUB):
        return ""
    return f"{COLAB}{address.removeprefix(GITHUB)}/blob/{PAGES_BRANCH}/{notebook}"


def install_cell(source: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(
        INSTALL.format(name=_project()["name"], source=source), id="install"
    )


def notebook_to_download(path: Path, address: str) -> str:
    """The committed notebook, with the cell that installs if it is known where from."""
    text = path.read_text(encoding="utf-8")
    if not address:
        return text
    notebook = nbformat.reads(text, as_version=4)
    title, *others = notebook.cells
    notebook.cells = [title, install_cell(f"git+{address}"), *others]
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
