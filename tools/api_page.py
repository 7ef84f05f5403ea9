"""docs/api.md: what `from collectives import ...` gives, from the signatures and docstrings."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap

import collectives


def sections() -> str:
    return "\n\n".join(_section(name, getattr(collectives, name)) for name in collectives.__all__)


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
                lines += [_code(f"{name}.{member.name}", ast.unparse(member.args)), _prose(member)]
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


def _prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring. A paragraph becomes one line, because Markdown wraps it itself."""
    return "\n\n".join(
        paragraph if paragraph.startswith(("    ", "- ")) else " ".join(paragraph.split())
        for paragraph in (ast.get_docstring(node) or "").split("\n\n")
    )
