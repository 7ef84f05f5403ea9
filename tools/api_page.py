"""docs/api.md: what the package promises, from the signatures and docstrings."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap

import collectives

# What lessons, exercises and programs may import besides. All other modules are private.
MODULES = (
    "collectives.algorithms",
    "collectives.algorithms.calls",
    "collectives.algorithms.count",
    "collectives.algorithms.links",
    "collectives.algorithms.lockstep",
    "collectives.algorithms.schedule",
    "collectives.algorithms.simulate",
    "collectives.algorithms.table",
    "collectives.backends.register",
    "collectives.course.practice.data",
    "collectives.course.practice.exercise",
    "collectives.course.practice.process_group",
    "collectives.lab.slurm",
    "collectives.pictures.cables",
    "collectives.pictures.colours",
    "collectives.pictures.memory_bars",
    "collectives.pictures.page",
    "collectives.process_groups.by_hand.choice",
    "collectives.semantics.late_peer",
)


def sections() -> str:
    return "\n\n".join(_section(name, getattr(collectives, name)) for name in collectives.__all__)


def modules() -> str:
    """What each module is for, with an example, and what else it has, a line each."""
    return "\n\n".join(_module(name) for name in MODULES)


def _module(name: str) -> str:
    tree = ast.parse(inspect.getsource(importlib.import_module(name)))
    rows = [
        f"- `{node.name}`: {(ast.get_docstring(node) or '').partition(chr(10) * 2)[0]}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node)
    ]
    return "\n\n".join(
        [f"### {name}", _prose(tree), "\n".join(" ".join(row.split()) for row in rows)]
    )


def _section(name: str, value) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    lines = [f"## {name}"]
    if isinstance(node, ast.ClassDef):
        members = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        made = [one.args for one in members if one.name == "__init__"]
        fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
        if made or fields:
            lines.append(_code(name, ast.unparse(made[0]) if made else ", ".join(fields)))
        lines.append(_prose(node))
        for member in members:
            if not member.name.startswith("_") and ast.get_docstring(member):
                is_property = "property" in map(ast.unparse, member.decorator_list)
                heading = f"{name}.{member.name}"
                code = (
                    f"```python\n{heading}\n```"
                    if is_property
                    else _code(heading, ast.unparse(member.args))
                )
                lines += [code, _prose(member)]
    else:
        assert isinstance(node, ast.FunctionDef)
        lines += [_code(name, ast.unparse(node.args)), _prose(node)]
    return "\n\n".join(lines)


def _code(name: str, parameters: str) -> str:
    """As ruff formats it."""
    given = re.sub("^self(, )?", "", parameters)
    definition = f"def {name.replace('.', '_')}({given}): ..."
    ruff = [sys.executable, "-m", "ruff", "format", "-"]
    done = subprocess.run(ruff, input=definition, capture_output=True, text=True, check=True)
    signature = done.stdout.strip().removesuffix(": ...")[len("def " + name) :]
    return f"```python\n{name}{signature}\n```"


def _prose(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> str:
    """The docstring. A paragraph becomes one line, because Markdown wraps it itself."""
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return "\n\n".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text.replace('  # doctest: +SKIP', '')}\n```"
    is_list_or_code = text.startswith(("    ", "- "))
    return text if is_list_or_code else " ".join(text.split())
