"""What the text of the program says of a call: the names of its buffers, and what it is for."""

import ast
import functools
import linecache

from collectives.recording.call import Call
from collectives.semantics.calls import BY_NAME

_LONGEST = 18  # letters of a name on a picture


def buffer_name(call: Call, parameter: str | None) -> str:
    """The variable that the program passes for a parameter; empty if that is another expression."""
    places = [buffer.parameter for buffer in BY_NAME[call.name].buffers]
    for node in _nodes("".join(linecache.getlines(call.file))):
        if not isinstance(node, ast.Call) or _called(node) != call.name:
            continue
        if not node.lineno <= call.line <= (node.end_lineno or 0):
            continue
        given = dict(zip(places, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        name = _name(given.get(parameter or ""))
        return name if len(name) <= _LONGEST else ""
    return ""


def padding(call: Call, name: str) -> float | None:
    """The value with which the program last filled up this variable; None if it did not."""
    found = None
    for node in _nodes("".join(linecache.getlines(call.file))):
        if not isinstance(node, ast.Assign) or node.lineno >= call.line:
            continue
        if ast.unparse(node.targets[0]) == name:
            found = _fill(node.value)
    return found


def _fill(value: ast.AST) -> float | None:
    if not isinstance(value, ast.Call) or _called(value) != "pad":
        return None
    fills = [word.value for word in value.keywords if word.arg == "value"]
    try:
        return ast.literal_eval(fills[0]) if fills else 0
    except ValueError:  # the program computes it
        return None


def is_for_the_proof(call: Call) -> bool:
    """Whether the program makes it below a comment `# proof`, in the same function."""
    for line in reversed(linecache.getlines(call.file)[: max(0, call.line - 1)]):
        if line.lstrip().startswith("# proof"):
            return True
        if line.lstrip().startswith("def "):
            return False
    return False


@functools.lru_cache(4)
def _nodes(text: str) -> list[ast.AST]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell of a notebook may hold a %magic
        return []
    return [*ast.walk(tree)]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _name(node: ast.AST | None) -> str:
    if isinstance(node, ast.IfExp):  # pieces if rank == 0 else None
        return _name(node.body) or _name(node.orelse)
    if isinstance(node, ast.Call) and _called(node) == "view":
        return ast.unparse(node)
    is_name = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    return ast.unparse(node) if node and is_name else ""
