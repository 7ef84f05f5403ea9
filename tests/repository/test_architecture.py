"""The rooms of the package, proved from its imports: their order, no circles, nothing dead."""

import ast
import functools
import re
from collections import Counter
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest
from repository import ROOT

from collectives.recording import launchers

# From the ground up: a room imports only itself and rooms that stand before it.
TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("| room |")[2].partition("\n\n")[0]
ROOMS = re.findall(r"^\| `(\w+)`", TABLE, re.MULTILINE)

# The files that are read for modules that are started by name, besides the package itself.
STARTERS = (
    *("Makefile", "conftest.py", "pyproject.toml", "*.md", "docs/*.md", "lessons/**/*.py"),
    *("exercises/**/*.py", "tools/*.py", "benchmarks/*.py"),
)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in (ROOT / "collectives").rglob("*.py")}


# Read by the tests, not while pytest collects.
@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}


@functools.cache
def exported() -> dict[str, str]:
    """Where the names come from that the package's own file imports: {"launch": module}."""
    return {
        alias.name: f"{node.module}"
        for node in ast.walk(trees()["collectives"])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def imports(name: str) -> set[str]:
    """The modules that one imports anywhere in its file: at the top, in a function, or lazily."""
    found = set()
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
            source = resolve_name("." * node.level + (node.module or ""), above)
            for alias in node.names:
                home = exported().get(alias.name, source) if source == "collectives" else source
                module = f"{source}.{alias.name}"
                found.add(module if module in FILES else home)
    return (found & FILES.keys()) - {name}


@functools.cache
def every_import() -> dict[str, set[str]]:
    return {name: imports(name) for name in FILES}


def room(module: str) -> int:
    """The place of its room in the list. The package's own two files stand above all, words below."""
    _, *parts = module.split(".")
    if parts == ["words"]:
        return -1
    return ROOMS.index(parts[0]) if parts and parts[0] in ROOMS else len(ROOMS)


def test_every_file_is_in_a_room_of_the_list_in_contributing():
    package = ROOT / "collectives"
    assert {path.name for path in package.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "words.py",
    }
    assert {path.parent.name for path in package.glob("*/*.py")} == set(ROOMS)


def test_no_room_imports_a_later_one():
    """And the rules of the diagnosis know nothing of the processes that are watched."""
    processes = ("collectives.diagnosis.watch", "collectives.diagnosis.run")
    assert [
        f"{name} imports {target}"
        for name, targets in every_import().items()
        for target in targets
        if room(target) > room(name)
        or (name.startswith("collectives.diagnosis.rules.") and target.startswith(processes))
    ] == []


def test_no_imports_form_a_circle():
    TopologicalSorter(every_import()).prepare()


LESSONS = sorted((ROOT / "lessons").rglob("*.py"))


@functools.cache
def imported(path: Path) -> set[str]:
    """The names of all that a file imports, wherever in it the import stands."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return found | {f"{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in LESSONS}), ids=lambda it: it.name
)
def test_no_files_of_a_chapter_import_each_other(folder):
    TopologicalSorter({path.stem: imported(path) for path in folder.glob("*.py")}).prepare()


def test_a_picture_that_one_chapter_alone_imports_lies_in_its_folder():
    everywhere = set.union(*every_import().values())
    for path in (ROOT / "collectives" / "pictures").glob("*.py"):
        name = module_of(path)
        users = {lesson.parent for lesson in LESSONS if name in imported(lesson)}
        assert len(users) != 1 or name in everywhere, f"{path.name} belongs in {users.pop()}"


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


# What the diagnosis needs to stand alone: its own two folders, and modules that need nothing else.
_DIAGNOSIS = ("collectives.recording", "collectives.diagnosis")
_BESIDE_IT = {
    "collectives.words",
    *(f"collectives.semantics.{name}" for name in ("calls", "on_import", "torch_names")),
}


def test_the_diagnosis_can_be_taken_out_of_the_package():
    others = {
        (name, target)
        for name, targets in every_import().items()
        if name.startswith(_DIAGNOSIS) or name in _BESIDE_IT
        for target in targets
        if not target.startswith(_DIAGNOSIS) and target not in _BESIDE_IT
    }
    assert others == set()


def test_the_variables_of_launchers_stand_in_one_table():
    """torchrun's RANK and WORLD_SIZE are everybody's words; those of the others are not."""
    names = {*launchers.MPICH, *launchers.OPEN_MPI, *launchers.SLURM, *launchers.PMIX}
    for name, path in FILES.items():
        if name != "collectives.recording.launchers":
            quoted = set(re.findall(r'"(\w+)"', path.read_text("utf-8")))
            assert not quoted & names, name


def named(text: str) -> set[str]:
    """What a text names in full; `from collectives.course import run` names two."""
    found = set(re.findall(r"\bcollectives(?:\.\w+)+", text))
    for source, names in re.findall(r"from (collectives(?:\.\w+)*) import ([\w, ]+)", text):
        found |= {f"{source}.{name.split()[0]}" for name in names.split(",") if name.strip()}
    return found


def test_every_module_is_imported_or_named_by_another_file():
    alive = set.union({"collectives.__main__"}, *every_import().values())
    alive |= {name.rpartition(".")[0] for name in FILES}
    for path in [*FILES.values(), *(path for one in STARTERS for path in ROOT.glob(one))]:
        alive |= named(path.read_text("utf-8")) - {module_of(path)}
    # Python finds this one by its name, in a folder that stands in PYTHONPATH.
    # pytest finds those of `verify` by their names, too.
    by_name = ("sitecustomize", "verify.test_")
    assert [name for name in FILES.keys() - alive if not any(x in name for x in by_name)] == []


def test_no_two_test_files_share_a_name():
    # pytest imports each of them by its bare name: of two, it would collect one and refuse the other.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
