"""The rooms of the package, proved from its imports: their order, no circles, nothing dead."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up: a room imports only itself and rooms that stand before it.
ROOMS = (
    *("semantics", "recording", "algorithms", "process_groups", "backends", "diagnosis"),
    *("pictures", "launcher", "lab", "course", "matrix", "bench", "cli"),
)

# The files that are read for modules that are started by name, besides the package itself.
STARTERS = (
    *("Makefile", "conftest.py", "pyproject.toml", "*.md", "docs/*.md", "lessons/**/*.py"),
    *("tools/*.py", "benchmarks/*.py"),
)


class Package:
    """The package `collectives` below a folder: its modules, and what each of them imports."""

    def __init__(self, root: Path):
        self.root = root
        self.files = {
            _module(path.relative_to(root)): path for path in (root / "collectives").rglob("*.py")
        }
        self.trees = {name: ast.parse(path.read_text("utf-8")) for name, path in self.files.items()}
        top = ast.walk(self.trees["collectives"])
        nodes = [node for node in top if isinstance(node, ast.ImportFrom)]
        # Where the names come from that the package's own file imports: {"launch": module}.
        self.exported = {alias.name: node.module for node in nodes for alias in node.names}
        self.imports = {name: self._imports(name) for name in self.files}

    def _imports(self, name: str) -> set[str]:
        """The modules that one imports anywhere in its file: at the top, in a function, or lazily."""
        found = set()
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                is_package = self.files[name].name == "__init__.py"
                above = name if is_package else name.rpartition(".")[0]
                source = resolve_name("." * node.level + (node.module or ""), above)
                found.update(self._home(source, alias.name) for alias in node.names)
        return {one for one in found if one in self.files and one != name}

    def _home(self, source: str, name: str) -> str:
        """The module that `from source import name` loads for this name."""
        if f"{source}.{name}" in self.files:
            return f"{source}.{name}"
        if source == "collectives" and name in self.exported:
            return self.exported[name]
        return source


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str) -> str | None:
    """The room of a module; None for the package's own two files."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else None


def loose_files(package: Path) -> list[str]:
    found = {path.name for path in (package / "collectives").glob("*.py")}
    rooms = {path.parent.name for path in (package / "collectives").glob("*/*.py")}
    loose = [
        f"collectives/{name} stands in no room" for name in found - {"__init__.py", "__main__.py"}
    ]
    return loose + [f"collectives/{room}/ is no room" for room in rooms - set(ROOMS)]


def upward_imports(package: Package) -> list[str]:
    return [
        f"{name} imports {target}, which stands in a later room"
        for name, targets in package.imports.items()
        for target in targets
        if _room(name) and (not _room(target) or _is_later(_room(target), _room(name)))
    ]


def _is_later(room: str, than: str) -> bool:
    return room in ROOMS and than in ROOMS and ROOMS.index(room) > ROOMS.index(than)


def impure_rules(package: Package) -> list[str]:
    """The rules of the diagnosis are pure: they know nothing of the processes that are watched."""
    return [
        f"{name} imports {target}, which knows processes"
        for name, targets in package.imports.items()
        for target in targets
        if name.startswith("collectives.diagnosis.rules.")
        and target.startswith(("collectives.diagnosis.watch", "collectives.diagnosis.run"))
    ]


def circles(package: Package) -> list[str]:
    try:
        TopologicalSorter(package.imports).prepare()
    except CycleError as error:
        return [f"a circle of imports: {' -> '.join(reversed(error.args[1]))}"]
    return []


def dead_modules(package: Package) -> list[str]:
    """Modules that neither an import nor a name in a command leads to."""
    todo, alive = {"collectives", "collectives.__main__"} & set(package.files), set()
    for pattern in STARTERS:
        for path in package.root.glob(pattern):
            todo |= _named(package, path.read_text("utf-8"))
    while todo:
        name = todo.pop()
        alive.add(name)
        above = {name.rpartition(".")[0]} & set(package.files)
        strings = _named(package, package.files[name].read_text("utf-8"))
        todo |= (package.imports[name] | strings | above) - alive
    # Python finds this one by its name, in a folder that stands in PYTHONPATH.
    dead = {name for name in package.files if name not in alive and "sitecustomize" not in name}
    return [f"{name} is imported by nobody" for name in sorted(dead)]


def _named(package: Package, text: str) -> set[str]:
    """The modules whose full names stand in a text; `from collectives.course import run` names one."""
    found = set(re.findall(r"\bcollectives(?:\.\w+)+", text))
    for source, names in re.findall(r"from (collectives(?:\.\w+)*) import ([\w, ]+)", text):
        found |= {f"{source}.{name.split()[0]}" for name in names.split(",") if name.strip()}
    return found & set(package.files)


CHECKS = (upward_imports, impure_rules, circles, dead_modules)


def faults(root: Path) -> list[str]:
    package = Package(root)
    return loose_files(root) + [fault for check in CHECKS for fault in check(package)]


def test_the_package_has_no_fault():
    assert faults(ROOT) == []


# A package with one fault of each kind, by the check that must find it: {file: text}.
GOOD = {
    "__init__.py": "from collectives.launcher.launch import launch\n",
    "semantics/calls.py": "CALLS = {}\n",
    "launcher/launch.py": "def launch():\n    from collectives.semantics import calls\n",
    "cli/commands.py": "from collectives import launch\n",
    "__main__.py": "from collectives.cli import commands\n",
}
PLANTED = [
    (upward_imports, {"semantics/calls.py": "from collectives.launcher import launch\n"}),
    (
        upward_imports,
        {"semantics/calls.py": "def late():\n    import collectives.launcher.launch\n"},
    ),
    (upward_imports, {"semantics/calls.py": "from collectives import launch\n"}),
    (upward_imports, {"semantics/calls.py": "from ..launcher import launch\n"}),
    (
        impure_rules,
        {
            "diagnosis/rules/judge.py": "from collectives.diagnosis.watch import job\n",
            "diagnosis/watch/job.py": "",
        },
    ),
    (
        circles,
        {
            "semantics/calls.py": "from collectives.semantics import form\n",
            "semantics/form.py": "def late():\n    from collectives.semantics import calls\n",
        },
    ),
    (dead_modules, {"semantics/forgotten.py": "x = 1\n"}),
]


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "collectives" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return folder


def test_a_good_package_passes(tmp_path):
    assert faults(make(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("check", "planted"), PLANTED, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_planted_fault_turns_it_red(tmp_path, check, planted):
    assert check(Package(make(tmp_path, GOOD | planted))) != []


@pytest.mark.parametrize("name", ["helpers.py", "odds/ends.py"])
def test_a_loose_file_turns_it_red(tmp_path, name):
    assert loose_files(make(tmp_path, GOOD | {name: ""})) != []
