"""Build the site into site/: `make site`. It executes nothing, and a warning is an error.

Open site/index.html afterwards.
"""

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from tools.site import links, repository
from tools.site.pages import Source
from tools.site.repository import ROOT

# Sphinx's own files, which make the next build quick; what is published lies in site/ alone.
WORK = ROOT / ".site"
SITE = ROOT / "site"
LEFT_OUT = ".buildinfo", "objects.inv", "webpack-macros.html", "jupyter_execute"


def build(site: Path = SITE, work: Path = WORK, address: str | None = None) -> int:
    """The exit status: 1 if Sphinx warns, or a link leads nowhere."""
    address = repository.address() if address is None else address
    if _is_older_than_the_tools(work / "html" / "index.html"):
        shutil.rmtree(work, ignore_errors=True)
    source = Source(work / "source", address)
    source.write()
    out = work / "html"
    files = f"-Dhtml_extra_path={source.files}"
    options = ["-q", "-W", "--keep-going", "-c", str(Path(__file__).parent), files]
    options += [f"-Drepository_address={address}", "-d", str(work / "doctrees")]
    if sphinx([*options, str(source.pages), str(out)]):
        return 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(out, site, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (site / "index.html").touch()  # tests compare its time with those of the sources
    broken = links.broken(site)
    print("\n".join(broken) or f"{site}/index.html", file=sys.stderr if broken else sys.stdout)
    return bool(broken)


def _is_older_than_the_tools(page: Path) -> bool:
    """Sphinx does not see that a module of conf.py has changed."""
    tools = list(Path(__file__).parent.rglob("*.py"))
    return page.exists() and page.stat().st_mtime < max(path.stat().st_mtime for path in tools)


if __name__ == "__main__":
    sys.exit(build())
