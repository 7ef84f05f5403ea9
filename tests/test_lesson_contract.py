"""Every lesson keeps the same shape, so that a reader who knows one knows where to look in all."""

import ast
import itertools
import re
from pathlib import Path

import pytest
import torch.distributed as dist
from jupytext import read

from collectives import LaunchError, launch
from collectives.lesson import files
from collectives.lesson.runner import table
from collectives.spec.catalogue import COLLECTIVES

LESSONS = Path(__file__).parent.parent / "lessons"
PATHS = sorted(LESSONS.glob("*.py"))
SECTIONS = [
    "Worked numbers",
    "The code",
    "The proof",
    "The cost",
    "Pitfalls",
    "Where it is used",
    "Change and try",
    "Read on",
]
TERMS = {
    "rank": "ranks?",
    "world size": "n",
    "root": "root",
    "group": "groups?",
    "backend": "backends?|gloo|NCCL",
}
MOST_CODE_LINES = 130
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed."

lesson = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def steps_of(path: Path) -> list[str]:
    """The names in STEPS, in order."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STEPS":
            return [element.id for element in node.value.elts]
    return []


def prose_of(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def section_of(path: Path, name: str) -> str:
    return prose_of(path).split(f"## {name}\n", 1)[1].split("\n## ", 1)[0]


def test_every_collective_has_its_lesson_and_no_lesson_is_left_over():
    assert {path.stem for path in PATHS} == set(COLLECTIVES)


def test_names_of_steps_are_unique_among_all_lessons():
    names = [name for path in PATHS for name in steps_of(path)]
    assert sorted(names) == sorted(set(names))


def test_every_step_with_a_fewest_number_of_ranks_exists():
    for record in COLLECTIVES.values():
        assert set(record.steps) <= set(steps_of(LESSONS / f"{record.name}.py")) - {record.name}


@lesson
def test_top_level_holds_definitions_only(path):
    for node in ast.parse(path.read_text()).body[1:]:
        is_steps = isinstance(node, ast.Assign) and node.targets[0].id == "STEPS"
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        is_definition = isinstance(
            node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
        )
        assert is_definition or is_steps or is_guard, ast.unparse(node)


@lesson
def test_this_package_is_imported_before_torch(path):
    """The server of the ranks then starts while the lesson itself imports torch."""
    modules = [
        ast.unparse(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert modules.index("from collectives.lesson import run") < modules.index("import torch")


@lesson
def test_torch_distributed_is_imported_as_dist_and_called_in_every_step(path):
    tree = ast.parse(path.read_text())
    assert "import torch.distributed as dist" in ast.unparse(tree)
    for step in [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in steps_of(path)
    ]:
        calls = [
            node
            for node in ast.walk(step)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("dist.")
        ]
        assert calls, f"{step.name} calls nothing of torch.distributed"


@lesson
def test_every_step_takes_rank_world_size_device_and_proves_its_result(path):
    functions = {
        node.name: node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    steps = steps_of(path)
    assert steps[0] == path.stem, "the first step bears the lesson's name"
    assert steps == [name for name in functions if name in steps], "STEPS is in reading order"
    for name in steps:
        step = functions[name]
        assert [argument.arg for argument in step.args.args] == ["rank", "world_size", "device"], (
            name
        )
        proofs = [
            node
            for node in ast.walk(step)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "check"
        ]
        assert proofs, f"{name} proves nothing"
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(step)), (
            f"{name}: python -O removes an assert"
        )


@lesson
def test_every_step_is_followed_by_its_own_guarded_one_line_run_cell(path):
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    for name in steps_of(path):
        position = next(number for number, source in enumerate(cells) if f"def {name}(" in source)
        assert cells[position + 1] == f'if __name__ == "__main__":\n    run({name})'


@lesson
def test_sections_stand_in_the_same_order_in_every_lesson(path):
    assert re.findall(r"^## (.+)$", prose_of(path), re.MULTILINE) == SECTIONS


@lesson
def test_the_title_says_what_it_is_and_how_to_run_it(path):
    title = ast.get_docstring(ast.parse(path.read_text()))
    assert title.startswith(f"# {path.stem}\n")
    assert (
        f"    python lessons/{path.stem}.py\n    torchrun --nproc-per-node 4 lessons/{path.stem}.py\n"
        in title
    )
    assert "make tour" in title.splitlines()[-1]


@lesson
def test_the_cost_names_the_bus_bandwidth_factor_of_the_record(path):
    factor = COLLECTIVES[path.stem].bus_factor
    assert (
        f"Bus-bandwidth factor: `{factor}`."
        if factor
        else "Bus-bandwidth factor: none, no data moves."
    ) in prose_of(path)


@lesson
def test_a_lesson_is_short_enough_to_read_in_one_sitting(path):
    code = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    lines = [
        line
        for source in code
        for line in source.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    assert len(lines) <= MOST_CODE_LINES


@lesson
def test_the_title_explains_each_term_that_the_lesson_uses(path):
    title = ast.get_docstring(ast.parse(path.read_text()))
    for term, words in TERMS.items():
        if re.search(rf"\b({words})\b", prose_of(path)):
            assert f"**{term}**" in title, term


@lesson
def test_a_prediction_is_asked_for_between_the_code_and_its_run_and_explained_after_it(path):
    cells = read(path).cells
    asked = [
        number for number, cell in enumerate(cells) if cell.source.startswith("**Predict first.** ")
    ]
    assert len(asked) >= 2
    for number in asked:
        step, question, run, why = cells[number - 1 : number + 3]
        assert "?" in question.source
        (name,) = re.findall(r"^    run\((\w+)\)$", run.source, re.MULTILINE)
        assert f"def {name}(" in step.source
        assert why.source.startswith("**Why.** ")


CHANGE = re.compile(r"(?:, change| and) `([^`]+)` to `([^`]+)`")


def changes_of(path: Path) -> list[str]:
    """What a reader is asked to change and try, one line each."""
    items = re.split(r"^\d\. ", section_of(path, "Change and try"), flags=re.MULTILINE)[1:]
    return [" ".join(item.split()) for item in items]


@lesson
def test_there_are_two_or_three_things_to_change_and_try(path):
    assert len(changes_of(path)) in (2, 3)


CHANGES = [(path, item) for path in PATHS for item in changes_of(path)]


@pytest.mark.parametrize(
    ("path", "item"), CHANGES, ids=[f"{path.stem}-{item[:40]}" for path, item in CHANGES]
)
def test_a_change_that_the_lesson_proposes_does_what_the_lesson_says(path, item):
    step = re.match(r"In `(\w+)`, change ", item)[1]
    (said,) = re.findall(r"It says `([^`]+)`", item)
    (cell,) = [cell.source for cell in read(path).cells if f"def {step}(" in cell.source]
    for old, new in CHANGE.findall(item):
        assert cell.count(old) == 1, f"{old} is not once in the cell"
        cell = cell.replace(old, new)
    module = files.load(path)
    exec(compile(cell, f"{path.name}, changed", "exec"), vars(module))
    try:
        timeout = 10.0 if "hung" in said else 100.0
        outcome = table(
            step, launch(vars(module)[step], 4, backend="gloo", device="cpu", timeout=timeout)
        )
    except LaunchError as error:
        outcome = str(error)
    assert said in " ".join(outcome.split())


@lesson
def test_it_links_to_the_documentation_of_every_call_that_it_teaches(path):
    called = set(re.findall(r"\bdist\.(\w+)\(", path.read_text())) - {
        "destroy_process_group"
    }  # which the page does not list
    linked = re.findall(r"^- \[`(\w+)`\]\((.+)\)$", section_of(path, "Read on"), re.MULTILINE)
    assert called <= {name for name, _ in linked}
    for name, target in linked:
        assert target == DOCUMENTATION + name
        assert hasattr(dist, name)


@lesson
def test_it_leads_to_the_next_lesson(path):
    names = list(COLLECTIVES)
    following = names[names.index(path.stem) + 1 :]
    target = f"../notebooks/{following[0]}.ipynb" if following else "../README.md"
    assert f"]({target})" in section_of(path, "Read on").split("\n\n")[-1]


@lesson
def test_relative_links_lead_somewhere_from_the_lesson_and_from_its_notebook(path):
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", prose_of(path)):
        for folder in (LESSONS, LESSONS.parent / "notebooks"):
            assert (folder / target).exists(), target


LIST_MARKER = re.compile(r"([-*+]|\d+\.) ")


@lesson
def test_no_wrapped_line_begins_a_list_by_accident(path):
    """Markdown takes `+ 10` or `* w0` at the beginning of a line for an item of a list."""
    lines = prose_of(path).splitlines()
    for before, line in itertools.pairwise(lines):
        if LIST_MARKER.match(line):
            assert not before or LIST_MARKER.match(before) or before.startswith("  "), line
