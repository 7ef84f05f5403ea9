"""Does the diagnosis leave real clients of torch.distributed alone, and find a bug in each?

    python -m tools.real_clients                  # all of tools/clients/clients.toml: an hour
    python -m tools.real_clients fsdp2 lightning  # these, and the other rows stay as they are

The clients lie in an environment of their own, `.venv-clients`, with the tested torch: put its CPU
build there first, if it is not what pip installs. Each healthy program runs without and with
`collectives diagnose`: output and status must be the same, and the verdict ok. Then the program
runs with its bug. The results become rows of the table in docs/diagnosis.md.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from tools import markdown

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tools" / "clients"
CLIENTS = tomllib.loads((PROGRAMS / "clients.toml").read_text(encoding="utf-8"))
BIN = ROOT / ".venv-clients" / "bin"
HEADS = ["client", "healthy", "its bug", "the report of the bug begins", "right line", "run on"]
# A healthy program takes seconds; this is for a busy machine.
LIMIT = 300


def table(made: dict[str, list[str]] | None = None, before: str = "") -> str:
    """With the rows `made`, or those of all clients. Others stay as they are in `before`."""
    lines = {line.split("`")[1]: line for line in before.splitlines() if line.startswith("| `")}
    for name, cells in (made or {name: row(name) for name in CLIENTS}).items():
        lines[name] = f"| {' | '.join(cells)} |"
    return "\n".join(
        [markdown.table(HEADS, []), *(lines[name] for name in CLIENTS if name in lines)]
    )


def row(name: str) -> list[str]:
    client = CLIENTS[name]
    cells = [f"`{name}`", "", client["bug"], "", "", datetime.now(UTC).date().isoformat()]
    needs = client.get("needs", ["torch"])
    if failed := install(needs):
        cells[1] = f"not installed: {failed}"
        return cells
    cells[0] += f" {version(needs[0])}"
    cells[1] = healthy(name)
    said = diagnosed(name, "bug")[1]["says"].replace(f"{PROGRAMS}/", "")
    source = (PROGRAMS / f"with_{name}.py").read_text(encoding="utf-8").splitlines()
    (here,) = (number for number, line in enumerate(source, 1) if line.endswith("# here"))
    right = re.search(client["says"].replace("LINE", rf"{here}\b"), said)
    cells[3] = f"`{textwrap.shorten(said.splitlines()[0], 100, placeholder=' ...')}`".replace(
        "|", r"\|"
    )
    cells[4] = "yes" if right else "**no**"
    print(f"{name}: {cells[1]}, right line: {cells[4]}\n{said}", file=sys.stderr)
    return cells


def healthy(name: str) -> str:
    """What the diagnosis does to the healthy program: "left alone", or the difference."""
    alone = run([*command(name), "healthy"])
    beside, verdict = diagnosed(name, "healthy")
    if alone.returncode != 0:
        return f"**fails without us: status {alone.returncode}**"
    if verdict["verdict"] != "ok":
        return f"**{verdict['says'].splitlines()[0]}**"
    same = (alone.returncode, sorted(alone.stdout.splitlines())) == (
        beside.returncode,
        sorted(beside.stdout.splitlines()),
    )
    return "left alone" if same else "**another output or status**"


def diagnosed(name: str, argument: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "verdict.json")
        diagnose = ["collectives", "diagnose", "--timeout", str(LIMIT), "--json", str(file), "--"]
        done = run([*diagnose, *command(name), argument])
        return done, json.loads(file.read_text(encoding="utf-8"))


def command(name: str) -> list[str]:
    start = CLIENTS[name].get("command", "torchrun --nproc-per-node 2")
    return [*start.split(), str(PROGRAMS / f"with_{name}.py")]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    # A program that stands still gets SIGTERM, upon which torchrun ends its ranks: status 124.
    limited = ["timeout", "--kill-after", "30", str(2 * LIMIT), *command]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(limited, env=env, cwd=folder, capture_output=True, text=True)


def install(needs: list[str]) -> str:
    """The end of what pip says if it fails; "" if all is there."""
    python = BIN / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", BIN.parent], check=True)
    if version(needs[0]) and version("torch-collectives"):
        return ""
    tested = re.findall(r"^torch==.+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pip = [python, "-m", "pip", "install", "-q", *tested, "-e", ROOT, *needs]
    done = subprocess.run(pip, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def version(package: str) -> str:
    """What `.venv-clients` has of it, "" if nothing."""
    name = package.partition("[")[0]
    show = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run(
        [BIN / "python", "-c", show], capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    from tools.docs import SECTIONS

    section = SECTIONS["clients"]
    for name in sys.argv[1:] or CLIENTS:
        made = {name: row(name)}
        section.write(table(made, section.read()))
