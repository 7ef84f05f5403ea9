"""Build the site into site/: `make site`. It executes nothing, and a warning is an error.

Open site/index.html afterwards. The Chinese pages lie in site/zh/, at the same places.
"""

import json
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from tools.site import links, repository
from tools.site.pages import Source
from tools.site.repository import ROOT
from tools.translations import catalogs

# Sphinx's own files, which make the next build quick; what is published lies in site/ alone.
WORK = ROOT / ".site"
SITE = ROOT / "site"
LEFT_OUT = ".buildinfo", "objects.inv", "webpack-macros.html", "jupyter_execute"


def build(site: Path = SITE, work: Path = WORK, address: str | None = None) -> int:
    """The exit status: 1 if Sphinx warns, or a link leads nowhere."""
    address = repository.address() if address is None else address
    if _is_older_than_the_tools(work / "en" / "html" / "index.html"):
        shutil.rmtree(work, ignore_errors=True)
    source = Source(work / "source", address)
    source.write()
    catalogs.stage(source.pages, work / "locale")
    shutil.rmtree(work / "translated", ignore_errors=True)
    known = catalogs.entries()
    for page in [page for page in catalogs.pages() if page.startswith("notebooks/")]:
        _translate(source.files / f"{page}.ipynb", work / "translated" / f"{page}.ipynb", known)
    options = ["-q", "-W", "--keep-going", "-c", str(Path(__file__).parent)]
    options += [f"-Drepository_address={address}", f"-Dlocale_dirs={work / 'locale'}"]
    for language, files in (
        ("en", [source.files]),
        (catalogs.LANGUAGE, [source.files, work / "translated"]),
    ):
        own = [f"-Dlanguage={language}", f"-Dhtml_extra_path={','.join(map(str, files))}"]
        own += ["-d", str(work / language / "doctrees")]
        if sphinx([*options, *own, str(source.pages), str(work / language / "html")]):
            return 1
    shutil.rmtree(site, ignore_errors=True)
    for language, folder in (("en", site), (catalogs.LANGUAGE, site / "zh")):
        out = work / language / "html"
        shutil.copytree(out, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (site / "index.html").touch()  # tests compare its time with those of the sources
    broken = links.broken(site) + links.lost(site)
    print("\n".join(broken) or f"{site}/index.html", file=sys.stderr if broken else sys.stdout)
    return bool(broken)


def _translate(notebook: Path, target: Path, known: dict) -> None:
    """A notebook to download: what runs in it, and its output, stay as they are."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = catalogs.translated("".join(cell["source"]), known)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _is_older_than_the_tools(page: Path) -> bool:
    """Sphinx does not see that a module of conf.py has changed."""
    tools = list(Path(__file__).parent.rglob("*.py"))
    return page.exists() and page.stat().st_mtime < max(path.stat().st_mtime for path in tools)


if __name__ == "__main__":
    sys.exit(build())
