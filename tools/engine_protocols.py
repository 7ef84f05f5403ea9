"""What requests and answers SGLang and vLLM declare, read out of their wheels without running them.

    pip download --no-deps --dest wheels sglang==0.5.20
    pip download --no-deps --dest wheels sglang==0.5.23
    pip download --no-deps --dest wheels vllm==0.33.0
    python -m tools.engine_protocols wheels/*.whl

It writes tests/examples/engine_protocols.json, with which a test compares protocols.py of
examples/weight_update_engines. For newer versions change READ, too.
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests" / "examples" / "engine_protocols.json"
SGLANG = {
    "sglang/srt/managers/io_struct.py": [
        "PauseGenerationReqInput",
        "ContinueGenerationReqInput",
        "InitWeightsUpdateGroupReqInput",
        "DestroyWeightsUpdateGroupReqInput",
        "BeginWeightUpdateReqInput",
        "EndWeightUpdateReqInput",
        "UpdateWeightsFromDistributedReqInput",
        "UpdateWeightsFromDistributedReqOutput",
        "UpdateWeightsFromTensorReqInput",
        "CheckWeightsReqInput",
        "GenerateReqInput",
    ],
}
TRANSFER = "vllm/distributed/weight_transfer"
READ = {  # classes, and functions whose arguments are fields
    "SGLang 0.5.20": SGLANG,
    "SGLang 0.5.23": SGLANG,
    "vLLM 0.33.0": {
        "vllm/entrypoints/rl/online/api_router.py": [
            "pause_generation",
            "init_weight_transfer_engine",
            "update_weights",
            "finish_weight_update",
            "weight_checker",
        ],
        f"{TRANSFER}/nccl_common.py": ["NCCLWeightTransferInitInfo"],
        f"{TRANSFER}/nccl_engine.py": ["NCCLWeightTransferUpdateInfo"],
        f"{TRANSFER}/ipc_engine.py": ["IPCWeightTransferInitInfo", "IPCWeightTransferUpdateInfo"],
        "vllm/entrypoints/openai/completion/protocol.py": ["CompletionRequest"],
        "vllm/entrypoints/serve/engine/protocol.py": ["ErrorInfo"],
    },
}
KNOWN: dict[str, ast.expr] = {}  # names that stand for something of another file of that wheel
NAMES = {
    "PauseMode": "vllm/v1/engine/__init__.py",
    "WeightTransferUpdatePayload": f"{TRANSFER}/base.py",
    "DEFAULT_PACKED_BUFFER_SIZE_BYTES": f"{TRANSFER}/packed_tensor.py",
    "DEFAULT_PACKED_NUM_BUFFERS": f"{TRANSFER}/packed_tensor.py",
}
ROUTES = [
    "sglang/srt/entrypoints/http_server.py",
    "vllm/entrypoints/rl/online/api_router.py",
    "vllm/entrypoints/openai/completion/api_router.py",
]


class Today(ast.NodeTransformer):
    """Today's words for a type: list for List, X | None for Optional[X], X for Annotated[X, 1]."""

    def visit_Name(self, node):
        if node.id in KNOWN:
            return KNOWN[node.id]
        return ast.Name({"List": "list", "Dict": "dict", "Tuple": "tuple"}.get(node.id, node.id))

    def visit_Subscript(self, node):
        if ast.unparse(node.value) == "Literal":
            return node
        inner = self.visit(node.slice)
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        match ast.unparse(node.value):
            case "Annotated":
                return parts[0]
            case "Optional":
                return ast.BinOp(inner, ast.BitOr(), ast.Constant(None))
            case "Union":
                joined = parts[0]
                for part in parts[1:]:
                    joined = ast.BinOp(joined, ast.BitOr(), part)
                return joined
        return ast.Subscript(self.visit(node.value), inner)


def in_order(kind: str) -> str:
    """A union whatever its order and brackets."""
    tree = ast.parse(kind, mode="eval").body
    parts = []

    def collect(node):
        if isinstance(node, ast.BinOp):
            collect(node.left)
            collect(node.right)
        else:
            parts.append(ast.unparse(node))

    collect(tree)
    return " | ".join(sorted(parts))


def default_of(node: ast.expr | None) -> str:
    """Of a field, or "required"."""
    if node is None:
        return "required"
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "Field"):
        found = {one.arg: one.value for one in node.keywords}
        if "default_factory" in found:
            return f"{ast.unparse(found['default_factory'])}()"
        return default_of(found.get("default", node.args[0] if node.args else None))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Query", "Body"):
        return default_of(node.args[0] if node.args else None)
    found = Today().visit(node)
    if isinstance(found, ast.BinOp):  # 1024 * 1024 * 1024
        return str(eval(ast.unparse(found), {"__builtins__": {}}))
    return ast.unparse(found)


def fields(node) -> dict[str, list[str]]:
    """Type and default of each field of a class, or of each argument that HTTP brings."""
    if isinstance(node, ast.ClassDef):
        lines = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        given = [(ast.unparse(one.target), one.annotation, one.value) for one in lines]
    else:
        names = [one for one in node.args.args if one.arg != "raw_request"]
        defaults = [None] * len(names) + node.args.defaults
        given = [
            (one.arg, one.annotation, default)
            for one, default in zip(names, defaults[-len(names) :], strict=True)
        ]
    return {
        name: [in_order(ast.unparse(Today().visit(kind))), default_of(default)]
        for name, kind, default in given
    }


def routes(tree) -> list[str]:
    """The first argument of each decorator that is a path."""
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", [])]
    first = [one.args[0] for one in decorators if isinstance(one, ast.Call) and one.args]
    texts = [one.value for one in first if isinstance(one, ast.Constant)]
    return [one for one in texts if isinstance(one, str) and one.startswith("/")]


def read(wheel: Path, wanted: dict) -> dict:
    found: dict = {"routes": []}
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()

        def tree_of(file):
            return ast.parse(archive.read(file))

        for name, file in NAMES.items():
            if file in files:
                for node in tree_of(file).body:
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                        KNOWN[name] = node.value
        for file in set(ROUTES) & set(files):
            found["routes"] += routes(tree_of(file))
        for file, names in wanted.items():
            defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            nodes = {node.name: node for node in tree_of(file).body if isinstance(node, defined)}
            found |= {name: fields(nodes[name]) for name in names if name in nodes}
    found["routes"].sort()
    return found


def main(wheels: list[str]) -> None:
    by_version = {"{} {}".format(*Path(one).name.split("-")[:2]): Path(one) for one in wheels}
    found = {version: read(by_version[version.lower()], wanted) for version, wanted in READ.items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
