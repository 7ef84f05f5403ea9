"""The rules that the text of a lesson keeps. Each yields what is wrong with it, in words."""

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import jupytext
import torch.distributed as dist

from collectives.lesson.chapters import CHAPTERS, Chapter
from collectives.spec.calls import CALLS

ROOT = Path(__file__).parents[2]
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed."
MOST_CODE_LINES = 130
TERMS = {
    "rank": "ranks?",
    "world size": "n",
    "root": "root",
    "group": "groups?",
    "backend": "backends?|gloo|NCCL",
}
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
EVIDENCE = ("    run(", "# ```console\n", "(documented)", "](../notebooks/")
# How the answer to a prediction begins: as text, or, in these chapters, folded.
ANSWERS = {"start": "<details><summary>Answer</summary>\n\n"}
LIST_MARKER = re.compile(r"([-*+]|\d+\.) ")


class Source:
    """The text of a lesson, and its parts."""

    def __init__(self, chapter: Chapter, name: str, text: str):
        self.chapter, self.name, self.text = chapter, name, text
        self.tree = ast.parse(text)
        self.title = ast.get_docstring(self.tree) or ""
        self.cells = jupytext.reads(text, fmt="py:percent").cells
        self.code = [cell.source for cell in self.cells if cell.cell_type == "code"]
        prose = [cell.source for cell in self.cells if cell.cell_type == "markdown"]
        self.prose = "\n".join(prose)

    @cached_property
    def steps(self) -> list[str]:
        """The names in STEPS, in order."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STEPS":
                return [element.id for element in node.value.elts]
        return []

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def section(self, name: str) -> str:
        """The prose below a heading; empty if the lesson does not have it."""
        return self.prose.partition(f"## {name}\n")[2].partition("\n## ")[0]

    @property
    def proposals(self) -> list[str]:
        """What a reader is asked to change and try, one line each."""
        items = re.split(r"^\d\. ", self.section("Change and try"), flags=re.MULTILINE)[1:]
        return [" ".join(item.split()) for item in items]


def faults(source: Source) -> list[str]:
    rules = list(EVERY_LESSON)
    if not source.chapter.isolated:
        rules += PROVED_LESSON
    for section, rule in OF_SECTION.items():
        if section in source.chapter.sections:
            rules.append(rule)
    if "Verdict" in source.chapter.paragraphs:
        rules.append(verdicts)
    return [fault for rule in rules for fault in rule(source)]


# Rules for every lesson.


def title(source: Source) -> Iterator[str]:
    if not source.title.startswith(f"# {source.name}\n"):
        yield f"the title is not '# {source.name}'"
    path = Path("lessons", source.chapter.folder, f"{source.name}.py")
    commands = f"    python {path}\n    torchrun --nproc-per-node 4 {path}\n"
    if commands not in source.title:
        yield "the title does not say how to run it with python and torchrun"
    if "make tour" not in source.title.splitlines()[-1]:
        yield "the title does not end with the installation by `make tour`"
    if "You will see" not in source.title:
        yield "the title does not say what you will see"


def top_level(source: Source) -> Iterator[str]:
    for node in source.tree.body[1:]:
        # An empty list can show that ranks do not share it.
        is_steps = isinstance(node, ast.Assign) and (
            ast.unparse(node.targets[0]) == "STEPS" or ast.unparse(node.value) == "[]"
        )
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        if not (isinstance(node, DEFINITIONS) or is_steps or is_guard):
            yield f"the top level holds more than definitions: {ast.unparse(node)}"


def imports(source: Source) -> Iterator[str]:
    """The server of the ranks starts while the lesson itself imports torch."""
    lines = [
        ast.unparse(node)
        for node in source.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    ours = [line for line in lines if re.match(r"from collectives.lesson import .*\brun$", line)]
    if (
        not ours
        or "import torch" not in lines
        or lines.index(ours[0]) > lines.index("import torch")
    ):
        yield "`from collectives.lesson import run` does not stand before `import torch`"
    if "import torch.distributed as dist" not in lines:
        yield "torch.distributed is not imported as dist"


def steps(source: Source) -> Iterator[str]:
    if source.steps != [name for name in source.functions if name in source.steps]:
        yield "STEPS is not in reading order, or names what is not there"
    for name in source.steps:
        step = source.functions.get(name, ast.parse("def missing(): pass").body[0])
        if [argument.arg for argument in step.args.args] != ["rank", "world_size", "device"]:
            yield f"{name} does not take rank, world_size, device"
        calls = [ast.unparse(node.func) for node in ast.walk(step) if isinstance(node, ast.Call)]
        if "check" not in calls:
            yield f"{name} proves nothing"
        if not any(call.startswith("dist.") for call in calls):
            yield f"{name} calls nothing of torch.distributed"
        if any(isinstance(node, ast.Assert) for node in ast.walk(step)):
            yield f"{name} has an assert, which python -O removes"


def run_cells(source: Source) -> Iterator[str]:
    cells = [*source.code, ""]
    for name in source.steps:
        here = [number for number, cell in enumerate(cells) if f"def {name}(" in cell]
        if not here or cells[here[0] + 1] != f'if __name__ == "__main__":\n    run({name})':
            yield f"{name} is not followed by its own guarded one-line run cell"


def length(source: Source) -> Iterator[str]:
    """The cells that run a step and the list of steps do not count."""
    cells = [cell for cell in source.code if not cell.startswith(("if __name__", "STEPS"))]
    lines = [line.strip() for cell in cells for line in cell.splitlines()]
    count = sum(bool(line) and not line.startswith("#") for line in lines)
    if count > MOST_CODE_LINES:
        yield f"{count} lines of code are too long for one sitting: at most {MOST_CODE_LINES}"


def headings(source: Source) -> Iterator[str]:
    found = re.findall(r"^## (.+)$", source.prose, re.MULTILINE)
    if source.chapter.sections and found != list(source.chapter.sections):
        yield f"the sections are {found}, should be {list(source.chapter.sections)}"


def paragraphs(source: Source) -> Iterator[str]:
    for heading in re.findall(r"^## (.+)$", source.prose, re.MULTILINE):
        words = re.findall(r"^\*\*(\w+)\.\*\* ", source.section(heading), re.MULTILINE)
        if source.chapter.paragraphs and words != list(source.chapter.paragraphs):
            yield f"below {heading!r} are {words}, should be {list(source.chapter.paragraphs)}"


def links(source: Source) -> Iterator[str]:
    """A relative link must lead somewhere from the lesson and from its notebook."""
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", source.prose):
        places = [ROOT / folder / source.chapter.folder for folder in ("lessons", "notebooks")]
        if not all((place / target).exists() for place in places):
            yield f"the link {target} leads nowhere"


def accidental_lists(source: Source) -> Iterator[str]:
    """Markdown takes `+ 10` or `* w0` at the beginning of a line for an item of a list."""
    for before, line in itertools.pairwise(source.prose.splitlines()):
        is_list = not before or LIST_MARKER.match(before) or before.startswith("  ")
        if LIST_MARKER.match(line) and not is_list:
            yield f"a wrapped line begins a list by accident: {line}"


EVERY_LESSON = [title, top_level, imports, steps, run_cells, length]
EVERY_LESSON += [headings, paragraphs, links, accidental_lists]


# Rules for lessons whose steps are proved in the reader's own world.


def first_step(source: Source) -> Iterator[str]:
    if source.steps[:1] != [source.name]:
        yield f"the first step is not {source.name}"


def terms(source: Source) -> Iterator[str]:
    for term, words in TERMS.items():
        if re.search(rf"\b({words})\b", source.prose) and f"**{term}**" not in source.title:
            yield f"the title does not explain {term!r}"


def predictions(source: Source) -> Iterator[str]:
    """Each is asked for between a step and its run cell, and explained after it."""
    beginning = ANSWERS.get(source.chapter.name, "**Why.** ")
    cells = source.cells
    asked = [
        number for number, cell in enumerate(cells) if cell.source.startswith("**Predict first.** ")
    ]
    if len(asked) < 2:
        yield f"it asks for {len(asked)} predictions, should be at least 2"
    for number in asked:
        step, question, run, why = (cell.source for cell in cells[number - 1 : number + 3])
        name = re.search(r"^    run\((\w+)\)$", run, re.MULTILINE)
        if not name or f"def {name[1]}(" not in step:
            yield f"a prediction does not stand between a step and its run: {question[:60]}"
        if "?" not in question:
            yield f"a prediction asks nothing: {question[:60]}"
        if not why.startswith(beginning):
            yield f"a prediction is not explained: {question[:60]}"


PROVED_LESSON = [first_step, terms, predictions]


# Rules for a section, in the chapters that have it.


def the_cost(source: Source) -> Iterator[str]:
    taught = next((spec for spec in CALLS.values() if spec.lesson == source.name), None)
    if taught is None:
        return
    sentence = "Bus-bandwidth factor: none, no data moves."
    if taught.bus_factor is not None:
        sentence = f"Bus-bandwidth factor: `{taught.bus_factor.formula}`."
    if sentence not in source.section("The cost"):
        yield f"the cost does not say: {sentence}"


def change_and_try(source: Source) -> Iterator[str]:
    if len(source.proposals) not in (2, 3):
        yield f"there are {len(source.proposals)} things to change and try, should be 2 or 3"


def read_on(source: Source) -> Iterator[str]:
    section = source.section("Read on")
    linked = re.findall(r"^- \[`(\w+)`\]\((.+)\)$", section, re.MULTILINE)
    # PyTorch's page does not list destroy_process_group.
    called = set(re.findall(r"\bdist\.(\w+)\(", source.text)) - {"destroy_process_group"}
    for name in sorted(called - {name for name, _ in linked}):
        yield f"no link to the documentation of {name}"
    for name, target in linked:
        if target != DOCUMENTATION + name or not hasattr(dist, name):
            yield f"the link for {name} is not to its documentation: {target}"
    path = str(Path(source.chapter.folder, source.name))
    names = [
        name for chapter in CHAPTERS.values() if not chapter.isolated for name in chapter.names
    ]
    following = names[names.index(path) + 1 :]
    up = Path("..", *(".." for _ in Path(path).parent.parts))
    target = up / "notebooks" / f"{following[0]}.ipynb" if following else up / "README.md"
    if f"]({target})" not in section.split("\n\n")[-1]:
        yield f"it does not lead on to {target}"


OF_SECTION = {"The cost": the_cost, "Change and try": change_and_try, "Read on": read_on}


# A rule for the claims that are tested.


def verdicts(source: Source) -> Iterator[str]:
    """A claim is quoted; its verdict says true or false, and has something to show for it."""
    for part in re.split(r"^# ## ", source.text, flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0]
        claim, _, verdict = part.partition("**Verdict.** ")
        if claim.count('"') < 2:
            yield f"the claim below {heading!r} is not quoted"
        if not re.match(r"(True|False)\b", verdict):
            yield f"the verdict below {heading!r} is neither true nor false"
        if not any(sign in part for sign in EVIDENCE):
            yield f"nothing shows that the verdict below {heading!r} is right"
