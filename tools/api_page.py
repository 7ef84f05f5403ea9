"""docs/api.md: what `from collectives import ...` gives, from the signatures and docstrings."""

import ast
import inspect
import textwrap

import collectives


def sections() -> str:
    return "\n\n".join(_section(name, getattr(collectives, name)) for name in collectives.__all__)


def _section(name: str, value) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    lines = [f"## {name}"]
    if isinstance(node, ast.ClassDef):
        members = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        made = [one for one in members if one.name == "__init__"]
        fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
        if made or fields:
            lines.append(_code(name, _parameters(made[0]) if made else fields))
        lines.append(_prose(node))
        for member in members:
            if not member.name.startswith("_") and ast.get_docstring(member):
                lines += [_code(f"{name}.{member.name}", _parameters(member)), _prose(member)]
    else:
        assert isinstance(node, ast.FunctionDef)
        lines += [_code(name, _parameters(node)), _prose(node)]
    return "\n\n".join(lines)


def _parameters(node: ast.FunctionDef) -> list[str]:
    """Each as it stands in the source; the stars, too."""
    given, args = [], node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    given += [_parameter(*pair) for pair in zip(positional, defaults, strict=True)]
    if args.vararg:
        given.append("*" + ast.unparse(args.vararg))
    elif args.kwonlyargs:
        given.append("*")
    given += [_parameter(*pair) for pair in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        given.append("**" + ast.unparse(args.kwarg))
    return [one for one in given if one != "self"]


def _parameter(name: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(name)
    if default is None:
        return text
    equals = " = " if name.annotation else "="
    return f"{text}{equals}{ast.unparse(default)}"


def _code(name: str, parameters: list[str]) -> str:
    """In one line if there is room, else a line for each parameter."""
    line = f"{name}({', '.join(parameters)})"
    if len(line) > 90:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + ")"
    return f"```python\n{line}\n```".replace("'", '"')  # as ruff formats it


def _prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring. A paragraph becomes one line, because Markdown wraps it itself."""
    return "\n\n".join(
        paragraph if paragraph.startswith(("    ", "- ")) else " ".join(paragraph.split())
        for paragraph in (ast.get_docstring(node) or "").split("\n\n")
    )
