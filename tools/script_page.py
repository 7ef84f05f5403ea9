"""The lines of a training script that docs/your-script.md goes through, from faults.toml."""

import difflib
import tomllib

from collectives.course import chapters

BLOG = chapters.folder().parent / "examples" / "blog"
FAULTS = tomllib.loads((BLOG / "faults.toml").read_text(encoding="utf-8"))
_FAULTY = """A training script as blogs show it, with six faults: docs/your-script.md names them.

Start it by `torchrun --nproc-per-node 2 faulty.py`. Nothing on the screen says what is wrong.
"""
KEPT = FAULTS.pop("keep")


def planted(*names: str) -> str:
    """cured.py with these faults."""
    text = (BLOG / "cured.py").read_text(encoding="utf-8")
    for name in names:
        for right, wrong in FAULTS[name]["change"]:
            if text.count(right) != 1:
                raise ValueError(f"{name}: {right!r} stands {text.count(right)} times in cured.py.")
            text = text.replace(right, wrong)
    return text


# Those of faulty.py.
AT_ONCE = (
    "no_set_epoch",
    "device_by_rank",
    "each_decides_to_resume",
    "same_dropout_everywhere",
    "padded_metric",
    "left_over_micro_batch",
)


def faulty() -> str:
    text = planted(*AT_ONCE)
    start = text.index('"""', 3) + 3
    return f'"""{_FAULTY}"""{text[start:]}'


def page() -> str:
    rows = [f"| `{one['line']}` | {one['why']} |" for one in KEPT]
    parts = ["### Keep", "\n".join(["| line | why it stays |", "| --- | --- |", *rows])]
    for does in ("change", "delete"):
        parts.append(f"### {does.title()}")
        for name, fault in FAULTS.items():
            if fault["does"] == does:
                parts += [f"#### {name}", fault["shows"], f"```diff\n{_difference(name)}\n```"]
                told = f"`collectives check-training` says: *{fault['told']}*"
                link = f"[{fault['lesson']}](../notebooks/{fault['lesson']}.ipynb)"
                parts.append(f"{told}. What to write: {fault['write']}. {link} explains it.")
    return "\n\n".join(parts)


def _difference(name: str) -> str:
    """What blogs write, with a minus, and what cured.py has in its place."""
    wrong, right = planted(name).splitlines(), planted().splitlines()
    _, _, _, *lines = difflib.unified_diff(wrong, right, lineterm="", n=1)
    return "\n".join("  ..." if line.startswith("@@") else line for line in lines)
