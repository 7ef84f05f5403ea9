"""One file serves python, torchrun, a notebook and pytest; what it links to exists, and what it
proposes to change does what it says.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch.distributed as dist
from lesson_source import ANSWER, FIRST_CALLS, Source
from promised import MODULES
from repository import ROOT, anchors

from collectives import LaunchError, launch
from collectives.course import chapters, files, wrong
from collectives.course.marks import world_of
from collectives.course.practice import registry
from collectives.course.results import table
from collectives.recording.lost_peer import PEER_IS_GONE

ROUTE = [lesson.name for lesson in chapters.route()]
CHAPTERS = chapters.read()
SOURCES = {name: Source(name) for chapter in CHAPTERS.values() for name in chapter.names}
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed."
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)


def test_names_for_run_are_unique():
    """A chapter may share its name with its only lesson."""
    names = [name for chapter in CHAPTERS.values() for name in chapter.names]
    names += [chapter.name for chapter in CHAPTERS.values() if chapter.names != [chapter.name]]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_names_of_steps_are_unique_among_all_lessons():
    steps = Counter(step for source in SOURCES.values() for step in source.steps)
    assert [step for step, count in steps.items() if count > 1] == []


# The contract of a lesson.


def definitions_only(source: Source) -> Iterator[str]:
    """Importing a lesson runs nothing: values of its own are constants."""
    for node in source.tree.body[1:]:
        is_run = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        calls = any(isinstance(part, ast.Call) for part in ast.walk(node))
        is_value = isinstance(node, ast.Assign) and calls
        if is_value or not (isinstance(node, DEFINITIONS) or is_run):
            yield f"the top level holds more than definitions: {ast.unparse(node)[:60]}"


def private_imports(tree: ast.Module) -> Iterator[str]:
    """Of the package, all that docs/api.md does not promise."""
    for node in ast.walk(tree):
        modules = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{name.name}" for name in node.names]
        for module in modules:
            parent = module.rpartition(".")[0]
            if module.startswith("collectives.") and not {module, parent} & {
                "collectives",
                *MODULES,
            }:
                yield module


def it_imports_what_is_public(source: Source) -> Iterator[str]:
    for name in private_imports(source.tree):
        yield f"it imports {name}, which is not public"


def it_calls_nothing_by_an_old_name(source: Source) -> Iterator[str]:
    """torch warns of them."""
    attributes = (node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute))
    for name in {"all_gather_into_tensor", "reduce_scatter_tensor"} & {a.attr for a in attributes}:
        yield f"it calls {name}, which torch has renamed"


def each_step_is_run_below_it(source: Source) -> Iterator[str]:
    cells = [*source.code, ""]
    for name in source.steps:
        here = [number for number, cell in enumerate(cells) if f"def {name}(" in cell]
        runs = [
            f'if __name__ == "__main__":\n    run({name}{folded})'
            for folded in ("", ", folded=True")
        ]
        if not here or cells[here[0] + 1] not in runs:
            yield f"{name} is not followed by its own guarded one-line run cell"


def each_question_stands_above_its_step(source: Source) -> Iterator[str]:
    """And below the step the cell that runs it, and the folded answer."""
    cells = source.cells
    for number, question in enumerate(cells):
        if "**Predict first.**" in question:
            step, run, answer = [*cells[number + 1 : number + 4], "", "", ""][:3]
            name = re.search(r"^    run\((\w+), folded=True\)$", run, re.MULTILINE)
            if not (name and f"def {name[1]}(" in step and answer.startswith(ANSWER)):
                yield f"not a step, its run and its answer stand below {question[:60]}"


def each_step_proves_something(source: Source) -> Iterator[str]:
    functions = {node.name: node for node in source.tree.body if isinstance(node, ast.FunctionDef)}
    if source.steps != [name for name in functions if name in source.steps]:
        yield "STEPS is not in reading order, or names what is not there"
    for name in set(source.steps) & functions.keys():
        nodes = list(ast.walk(functions[name]))
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        if not {"check", "check_training"} & called:
            yield f"{name} proves nothing"
        if any(isinstance(node, ast.Assert) for node in nodes):
            yield f"{name} has an assert, which python -O removes"


def links_lead_somewhere(source: Source) -> Iterator[str]:
    """From the lesson and from its notebook; a call's link leads to its documentation."""
    for path, anchor in re.findall(r"\]\((?!https://)([^)#]+)#?([^)]*)\)", source.prose):
        found = [(ROOT / kind / source.name).parent / path for kind in ("lessons", "notebooks")]
        if not all(file.exists() for file in found) or not {anchor} <= {"", *anchors(found[0])}:
            yield f"the link {path}#{anchor} leads nowhere"
    for name, target in re.findall(r"^- \[`(\w+)`\]\((.+)\)$", source.prose, re.MULTILINE):
        if target != DOCUMENTATION + name or not hasattr(dist, name):
            yield f"the link for {name} is not to its documentation: {target}"


@pytest.mark.parametrize(
    "rule",
    [
        definitions_only,
        it_imports_what_is_public,
        it_calls_nothing_by_an_old_name,
        each_step_is_run_below_it,
        each_question_stands_above_its_step,
        each_step_proves_something,
        links_lead_somewhere,
    ],
    ids=lambda rule: rule.__name__,
)
def test_in_every_lesson(rule):
    found = [f"{name}: {fault}" for name, source in SOURCES.items() for fault in rule(source)]
    assert not found, "\n".join(found)


def test_every_lesson_links_to_the_next_one_of_its_chapter():
    wrong = []
    for chapter in CHAPTERS.values():
        for name, following in pairwise(chapter.names):
            prose = " ".join(SOURCES[name].prose.split())
            link = re.search(r"Next lesson: \[[^]]*\]\([^)]*?(\w+)\.ipynb", prose)
            if link is None or link[1] != following.rpartition("/")[2]:
                wrong.append(f"{name}: its line 'Next lesson: ' should link to {following}")
    assert not wrong, "\n".join(wrong)


# What a reader writes and changes.


def exercises_in(prose: str) -> set[str]:
    """In a block of commands, or in a sentence."""
    ended = r"(?=`| ```| collectives practice )"
    return {*re.findall(rf"collectives practice (\w+){ended}", " ".join(prose.split()))}


def test_every_lesson_on_a_call_names_exercises():
    for name in CHAPTERS["calls"].names:
        found = exercises_in(SOURCES[name].prose)
        assert found, f"{name}: name an exercise, as in `collectives practice NAME`"


def test_the_first_lessons_have_at_most_three_steps():
    assert [name for name in (*ROUTE, *FIRST_CALLS) if len(SOURCES[name].steps) > 3] == []


def test_the_exercises_that_lessons_name_are_those_that_there_are():
    """Some that need no lesson are only in the list of `collectives practice`."""
    named = set.union(*(exercises_in(source.prose) for source in SOURCES.values()))
    chapter = {name: one.chapter for name, one in registry.read().items()}
    assert named <= chapter.keys()
    unnamed = {chapter[name] for name in chapter.keys() - named}
    assert not unnamed & {"debugging", "model_parallel"}


PROPOSED = [name for name, source in SOURCES.items() if "# ## Change and try" in source.text]

# What differs from run to run; three dots stand for it in a lesson.
VOLATILE = re.compile(r"\[rank\d\]:\[[^]]*\]|(?<=\b0x)[0-9a-f]+")


@pytest.mark.parametrize(
    "name",
    [
        # Of the lessons on algorithms, those of the first run each time.
        pytest.param(
            name, marks=pytest.mark.slow if name in CHAPTERS["algorithms"].names[1:] else ()
        )
        for name in PROPOSED
    ],
)
def test_a_change_that_the_lesson_proposes_does_what_the_lesson_says(name):
    """The first code span of the answer is a whole line of what the changed run prints."""
    faults = []
    for item in SOURCES[name].proposals:
        said = first_code_span(item.partition("Answer</summary>")[2])
        step, cell = wrong.changed(item, SOURCES[name].code)
        module = files.load(files.find(name))
        exec(compile(cell, f"{name}.py, changed", "exec"), vars(module))
        hangs = re.search("hung|wait", said)
        lines = printed(vars(module)[step], 3.0 if hangs else 100.0)
        if hangs and said not in lines:  # a busy machine
            lines = printed(vars(module)[step], 30.0)
        if said not in lines:
            faults.append("\n    ".join([f"{item}\n  prints one of these lines:", *lines]))
    assert not faults, "\n\n".join(faults)


def first_code_span(text: str) -> str:
    return re.search(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", text)[2].strip()


def printed(step, limit: float) -> list[str]:
    """What four ranks print, white space normalized.

    Where ranks raise, it is what the lowest of them says that has not just lost another rank.
    """
    try:
        ended = launch(
            errors_returned, 4, args=(step,), backend="gloo", device="cpu", timeout=limit
        )
        results = table(step.__name__, [one for _, one in ended], world_of(step).how_known)
        errors = [text for text, _ in ended if text and not PEER_IS_GONE.search(text)]
        text = errors[0] if errors else results
    except LaunchError as error:  # the limit of a lesson is 60 s
        text = str(error).replace(f"after {limit:g} s", "after 60 s")
    return [" ".join(VOLATILE.sub("...", line).split()) for line in text.splitlines()]


def errors_returned(rank, world_size, device, step):
    """Runs in a rank: the text of an error, in lines that a reader may quote, and the result."""
    try:
        return "", step(rank, world_size, device)
    except Exception as error:
        message = " ".join(str(error).split())
        summary = f"{type(error).__name__}: {message}"
        return f"rank {rank} raised {summary}\n{summary}\n{message}", None


def test_exercises_import_what_is_public():
    assert {
        file: found
        for file in (ROOT / "exercises").glob("*/*/*.py")
        if (found := list(private_imports(ast.parse(file.read_text("utf-8")))))
    } == {}
