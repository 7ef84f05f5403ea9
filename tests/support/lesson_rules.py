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
from collectives.spec.calls import BY_NAME, CALLS

ROOT = Path(__file__).parents[2]
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed."
MOST_CODE_LINES = 130
MOST_CODE_LINES_OF = {"training": 50, "algorithms": 95}  # by chapter
# Of training, these two do more: what makes a checkpoint safe is half of the first program.
MOST_CODE_LINES_OF_LESSON = {"checkpoint": 85, "failover": 75, "elastic": 150}
FIRST_STEP_OF = {"ring": "wrong_tensor"}  # it opens with rings that are wrong
MOST_LINES_OF_THE_CALL = 8
# What `start` explains, so that no other lesson has to.
TERMS = ("rank", "world size", "group", "backend")
# A call that a lesson uses before the lesson that teaches it, and says so.
BORROWED = {("broadcast", "new_group")}
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
EVIDENCE = ("    run(", "# ```console\n", "(documented)", "](../notebooks/")
TRAINS_ALONE = "one_process"  # the only lesson without a call of torch.distributed
ANSWER = "<details><summary>Answer</summary>\n\n"
SOLUTION = re.compile(
    r"<details><summary>One way to write it</summary>\n\n```python\n(.*?)```\n\n</details>", re.S
)
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
        self.prose = "\n\n".join(prose)

    @property
    def makes_machines(self) -> bool:
        """Whether the steps run once, in one process, and start the ranks on machines of a lab."""
        return self.chapter.name == "machines"

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
        return self._items("Change and try")

    @property
    def wrong_programs(self) -> list[str]:
        """The changes that the proof of a training must notice, one line each."""
        return self._items("Make it wrong")

    @property
    def answer(self) -> list[tuple[str, str]]:
        """The program to write oneself, and its output: at most one of them."""
        _, _, folded = self.section("Write it yourself").partition(ANSWER)
        return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", folded, re.DOTALL)

    def _items(self, section: str) -> list[str]:
        items = re.split(r"^\d\. ", self.section(section), flags=re.MULTILINE)[1:]
        return [" ".join(item.split()) for item in items]

    def changed_cell(self, item: str) -> tuple[str, str]:
        """The name of the function in an item, and the cell that defines it with the change made.

        Raises ValueError unless what is to be changed stands there exactly once.
        """
        name = re.search(r"In `(\w+)`, change ", item)[1]
        (cell,) = [cell for cell in self.code if f"def {name}(" in cell]
        for old, new in re.findall(r"(?:, change| and) `([^`]+)` to `([^`]+)`", item):
            if cell.count(old) != 1:
                raise ValueError(f"{old} is not once in the cell of {name}")
            cell = cell.replace(old, new)
        return name, cell


def faults(source: Source) -> list[str]:
    rules = list(EVERY_LESSON)
    if not source.chapter.isolated or source.makes_machines:
        rules += PROVED_LESSON
    if source.name == "start":
        rules.append(terms)
    if source.chapter.name == "collectives":
        rules += [the_call, proof_apart, reading_order]
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
    second = f"torchrun --nproc-per-node 4 {path}"
    if source.makes_machines:
        second = f"collectives run {source.chapter.folder}/{source.name}"
    commands = f"    python {path}\n    {second}\n"
    if commands not in f"{source.title}\n":
        yield "the title does not say how to run it with python, and how else"
    if ("make tour" in source.title) != (source.name == "start"):
        yield "`start`, and no other lesson, says how to install"
    if "You will see" not in source.title:
        yield "the title does not say what you will see"


def top_level(source: Source) -> Iterator[str]:
    for node in source.tree.body[1:]:
        # An empty list can show that ranks do not share it.
        is_steps = isinstance(node, ast.Assign) and (
            ast.unparse(node.targets[0]) == "STEPS" or ast.unparse(node.value) == "[]"
        )
        # What torchrun is to start on a machine is a file there: its text is a constant here.
        if source.makes_machines and isinstance(node, ast.Assign):
            is_steps |= isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        if not (isinstance(node, DEFINITIONS) or is_steps or is_guard):
            yield f"the top level holds more than definitions: {ast.unparse(node)}"


def imports(source: Source) -> Iterator[str]:
    """The server of the ranks starts while the lesson itself imports torch."""
    if source.makes_machines:  # the ranks import torch, on their machines
        return
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
    if "import torch.distributed as dist" not in lines and source.name != TRAINS_ALONE:
        yield "torch.distributed is not imported as dist"


def steps(source: Source) -> Iterator[str]:
    # Functions of these lessons call it, not the steps.
    calls_elsewhere = source.chapter.name in ("training", "algorithms")
    if source.steps != [name for name in source.functions if name in source.steps]:
        yield "STEPS is not in reading order, or names what is not there"
    for name in source.steps:
        step = source.functions.get(name, ast.parse("def missing(): pass").body[0])
        wanted = [] if source.makes_machines else ["rank", "world_size", "device"]
        if [argument.arg for argument in step.args.args] != wanted:
            yield f"{name} does not take {', '.join(wanted) or 'no arguments'}"
        calls = [ast.unparse(node.func) for node in ast.walk(step) if isinstance(node, ast.Call)]
        if not {"check", "check_training"} & set(calls):
            yield f"{name} proves nothing"
        if source.makes_machines and "Lab" not in calls:
            yield f"{name} makes no lab"
        is_elsewhere = calls_elsewhere or source.makes_machines
        if (
            not any(call.startswith(("dist.", "Distributed")) for call in calls)
            and not is_elsewhere
        ):
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
    """Imports, the cells that run a step and the list of steps do not count."""
    cells = [cell for cell in source.code if not cell.startswith(("if __name__", "STEPS"))]
    lines = [line.strip() for cell in cells for line in cell.splitlines()]
    count = sum(bool(line) and not line.startswith(("#", "import ", "from ")) for line in lines)
    most = MOST_CODE_LINES_OF.get(source.chapter.name, MOST_CODE_LINES)
    most = MOST_CODE_LINES_OF_LESSON.get(source.name, most)
    if count > most:
        yield f"{count} lines of code are too long for one sitting: at most {most}"


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
        path = target.partition("#")[0]
        if not all((place / path).exists() for place in places):
            yield f"the link {target} leads nowhere"


def accidental_lists(source: Source) -> Iterator[str]:
    """Markdown takes `+ 10` or `* w0` at the beginning of a line for an item of a list."""
    for before, line in itertools.pairwise(source.prose.splitlines()):
        is_list = not before or LIST_MARKER.match(before) or before.startswith("  ")
        if LIST_MARKER.match(line) and not is_list:
            yield f"a wrapped line begins a list by accident: {line}"


def unmeasured(source: Source) -> Iterator[str]:
    """NCCL and CUDA have not run: a sentence about them says that it is documented."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", source.prose, flags=re.S)):
        if paragraph.startswith(("#", "**Claim.**")):
            continue
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z])|\n\s*(?=[-|])", paragraph):
            words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", sentence)
            if re.search(r"\b(NCCL|CUDA)\b", words) and "documented" not in sentence:
                yield f"this is neither measured nor marked (documented): {sentence[:80]}"


EVERY_LESSON = [title, top_level, imports, steps, run_cells, length]
EVERY_LESSON += [headings, paragraphs, links, accidental_lists, unmeasured]


# Rules for lessons whose steps are proved in the reader's own world.


def first_step(source: Source) -> Iterator[str]:
    if source.steps[:1] != [FIRST_STEP_OF.get(source.name, source.name)]:
        yield f"the first step is not {source.name}"


def predictions(source: Source) -> Iterator[str]:
    """Each is asked for between a step and its run cell; the answer below is folded."""
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
        if "?" not in question or not re.search(r"[Ww]rite\b.*\bdown", question, re.S):
            yield f"a prediction does not ask the reader to write down a number: {question[:60]}"
        if not why.startswith(ANSWER):
            yield f"a prediction has no folded answer: {question[:60]}"


PROVED_LESSON = [first_step, predictions]


def terms(source: Source) -> Iterator[str]:
    for term in TERMS:
        if f"**{term}**" not in source.title:
            yield f"the title does not explain {term!r}"


# Rules for the lessons on one collective.


def the_call(source: Source) -> Iterator[str]:
    """A lesson opens with the bare call, what it prints, and what to look for in the picture."""
    step = source.functions.get(source.name)
    if step is None:
        return
    lines = ast.get_source_segment(source.text, step).partition("# proof")[0].splitlines()[1:]
    count = sum(bool(line.strip()) for line in lines)
    if count > MOST_LINES_OF_THE_CALL:
        yield f"the call takes {count} lines: at most {MOST_LINES_OF_THE_CALL}"
    if "picture" not in source.section("The call"):
        yield "it does not say what to look for in the picture"


def proof_apart(source: Source) -> Iterator[str]:
    for name in source.steps:
        text = ast.get_source_segment(source.text, source.functions[name])
        if not re.search(r"^    # proof\b", text, re.M) or "check(" in text.partition("# proof")[0]:
            yield f"{name} does not set its proof apart, below `# proof`"


def reading_order(source: Source) -> Iterator[str]:
    """No lesson uses a call that a later one teaches."""
    order = CHAPTERS["collectives"].names
    for call in sorted(set(re.findall(r"\bdist\.(\w+)\(", "\n".join(source.code)))):
        taught = BY_NAME[call].lesson if call in BY_NAME else None
        is_later = taught in order and order.index(taught) > order.index(source.name)
        if is_later and (source.name, call) not in BORROWED:
            yield f"it uses {call}, which {taught} teaches later"


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
    for proposal in source.proposals:
        if f"{' '.join(ANSWER.split())} You get `" not in proposal:
            yield f"the outcome of a change is not folded: {proposal[:60]}"


def pitfalls(source: Source) -> Iterator[str]:
    if not source.chapter.folder and "](../notebooks/mistakes/" not in source.section("Pitfalls"):
        yield "no pitfall links to the mistake that shows it"


def write_it_yourself(source: Source) -> Iterator[str]:
    if source.chapter.name == "collectives" and not SOLUTION.search(source.prose):
        yield "there is no folded solution of what to write"
    if source.chapter.extra and not source.answer:
        yield "what to write oneself has no folded answer with a program and its output"


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
        name
        for chapter in CHAPTERS.values()
        if chapter.isolated == source.chapter.isolated and chapter.extra == source.chapter.extra
        if not chapter.isolated or chapter is source.chapter
        for name in chapter.names
    ]
    following = names[names.index(path) + 1 :]
    up = Path("..", *(".." for _ in Path(path).parent.parts))
    target = up / "notebooks" / f"{following[0]}.ipynb" if following else up / "README.md"
    if f"]({target})" not in section.split("\n\n")[-1]:
        yield f"it does not lead on to {target}"


def make_it_wrong(source: Source) -> Iterator[str]:
    for item in source.wrong_programs:
        parts = r"\*\*.+\.\*\* In `\w+`, change `[^`]+` to `[^`]+`.* It says `[^`]+`"
        if not re.match(parts, item):
            yield f"a wrong program has no name, change or answer: {item[:60]}"
    if len(source.wrong_programs) < 2:
        yield f"there are {len(source.wrong_programs)} wrong programs, should be at least 2"


OF_SECTION = {
    "The cost": the_cost,
    "Pitfalls": pitfalls,
    "Change and try": change_and_try,
    "Make it wrong": make_it_wrong,
    "Write it yourself": write_it_yourself,
    "Read on": read_on,
}


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
