"""Every lesson has the shape of its chapter, so that a reader who knows one finds the way in all.

The rules are in lesson_rules.py. Each yields its faults, so that one run shows all of them.
"""

import re
from collections import Counter
from pathlib import Path

import lesson_rules
import pytest
from lesson_rules import Source

from collectives import LaunchError, launch
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.results import table

ROOT = Path(__file__).parent.parent
SOURCES = {
    name: Source(chapter, lesson.name, (ROOT / "lessons" / f"{name}.py").read_text("utf-8"))
    for chapter in CHAPTERS.values()
    for name, lesson in zip(chapter.names, chapter.lessons, strict=True)
}


def test_every_file_is_in_one_chapter_and_every_lesson_has_its_file():
    found = [path.relative_to(ROOT / "lessons") for path in ROOT.glob("lessons/**/*.py")]
    assert sorted(str(path.with_suffix("")) for path in found) == sorted(SOURCES)


def test_names_for_run_are_unique():
    """A chapter may share its name with its only lesson."""
    names = [name for chapter in CHAPTERS.values() for name in chapter.names]
    names += [chapter.name for chapter in CHAPTERS.values() if chapter.names != [chapter.name]]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_names_of_steps_are_unique_among_all_lessons():
    steps = Counter(step for source in SOURCES.values() for step in source.steps)
    assert [step for step, count in steps.items() if count > 1] == []


@pytest.mark.parametrize("name", SOURCES)
def test_a_lesson_has_the_shape_of_its_chapter(name):
    faults = lesson_rules.faults(SOURCES[name])
    assert not faults, "\n".join(faults)


# What stands in the text of a lesson, what we put in its place, and the one fault that this makes.
STEPS = "STEPS = [all_reduce, training_step,"
GUARD = 'if __name__ == "__main__":\n    run(all_reduce)'
CALL = "    dist.all_reduce(x, op=dist.ReduceOp.SUM)\n"
PLANTED = {
    "all_reduce": {
        "title": ("# all_reduce\n", "# All_reduce\n", "the title is not '# all_reduce'"),
        "command": (
            "    python lessons/all_reduce.py",
            "    python all_reduce.py",
            "how to run it",
        ),
        "installation": ("You will see", "Type `make tour`. You will see", "how to install"),
        "you_will_see": ("You will see", "You see", "what you will see"),
        "statement": (STEPS, f"print()\n{STEPS}", "more than definitions: print()"),
        "order_of_imports": (
            "from collectives.lesson import run\nimport torch\n",
            "import torch\nfrom collectives.lesson import run\n",
            "before `import torch`",
        ),
        "no_dist": ("import torch.distributed as dist", "", "imported as dist"),
        "order_of_steps": (
            STEPS,
            "STEPS = [all_reduce, averages, training_step,",
            "reading order",
        ),
        "arguments": (
            "training_step(rank, world_size, device)",
            "training_step(rank, n, device)",
            "training_step does not take rank, world_size, device",
        ),
        "no_proof": (
            'check(x, torch.tensor([ones, 2 * ones]), "all_reduce(SUM)")',
            "",
            "all_reduce proves nothing",
        ),
        "no_call": (CALL, "", "calls nothing of torch.distributed"),
        "assert": ("before = x.clone()", "assert device", "all_reduce has an assert"),
        "guard": (GUARD, f"{GUARD}\n    print()", "guarded one-line run cell"),
        "length": ("    # proof\n", "    # proof\n" + "    x\n" * 100, "too long for one sitting"),
        "call": (CALL, CALL * 7, "the call takes 9 lines: at most 8"),
        "proof": (
            "    # proof: one process",
            "    # one process",
            "training_step does not set its proof apart",
        ),
        "picture": ("In the picture each", "There each", "to look for in the picture"),
        "later": (
            "before = x.clone()",
            "dist.reduce(x, 0)",
            "reduce teaches later",
            "documentation of",
        ),
        "section": ("# ## Where it", "# ## Where this", "the sections are"),
        "museum": ("# ## Pitfalls", "# ## Traps", "the sections are", "no pitfall links"),
        "link": (
            "# DistributedDataParallel (DDP)",
            "# [DDP](ddp.md)",
            "the link ddp.md leads nowhere",
        ),
        "accidental_list": ("# many small", "# many\n# - small", "by accident: - small"),
        "unmeasured": (
            "large ones (documented).",
            "large ones.",
            "marked (documented)",
        ),
        "first_step": (STEPS, "STEPS = [training_step,", "first step is not all_reduce"),
        "prediction": ("# **Predict first.** The", "# The", "asks for 1 predictions"),
        "no_number": ("Write it down.", "Think.", "to write down a number"),
        "unfolded": ("<summary>Answer</summary>", "<summary>Why</summary>", "no folded answer"),
        "factor": (
            "factor: `2 * (n",
            "factor: `3 * (n",
            "Bus-bandwidth factor: `2 * (n - 1) / n`.",
        ),
        "proposals": (
            "# 3. In",
            "# 3. Nothing.\n# 4. In",
            "there are 4 things",
            "is not folded: Nothing",
        ),
        "outcome": ("You get `should be", "It is `should be", "of a change is not folded: In `all"),
        "solution": ("One way to write it", "A way", "no folded solution"),
        "documentation": ("- [`all_reduce`](https", "- [all_reduce](https", "documentation of all"),
        "wrong_documentation": ("distributed.all_reduce)", "distributed.reduce)", "not to its"),
        "next_lesson": ("(../notebooks/broadcast.ipynb)", "(../README.md)", "not lead on to"),
    },
    "start": {
        "statement": ("visitors = []", "visitors = [0]", "more than definitions: visitors = [0]"),
        "unfolded": ("<summary>Answer</summary>", "<summary>Why</summary>", "no folded answer"),
        "term": ("**rank**", "rank", "the title does not explain 'rank'"),
        "next_lesson": (
            "Next lesson: [all_reduce](../notebooks/all_reduce.ipynb)",
            "[all](../README.md)",
            "not lead on to",
        ),
    },
    "training/data_parallel": {
        "length": (
            "    return loss.item()\n",
            "    return loss\n" * 60,
            "lines of code are too long",
        ),
        "wrong_program": ("1. **The sum for the mean.**", "1. The sum.", "has no name, change"),
        "answer": ("<summary>Answer</summary>\n#\n# ```python", "#\n# ```python", "no folded"),
    },
    "mistakes/order": {
        "paragraph": ("# **Cause.** The", "# The", "below 'Only rank 0 calls it' are"),
        "order_of_imports": ("import cure, mistake, run", "import cure, mistake", "`import torch`"),
    },
    "machines/rendezvous": {
        "command": ("    collectives run machines/", "    run machines/", "and how else"),
        "arguments": ("def whose_name():", "def whose_name(rank):", "does not take no arguments"),
        "no_lab": (
            'with Lab(2) as lab:\n        lab.save("store',
            'if True:\n        lab.save("store',
            "makes no lab",
        ),
        "statement": ("STEPS = [", "LIMIT = 5\nSTEPS = [", "more than definitions: LIMIT = 5"),
    },
    "hearsay": {
        "paragraph": (
            '# **Claim.** "NCCL',
            '# "NCCL',
            "send and receive' are ['Verdict']",
            "marked",
        ),
        "claim": ('"NCCL has collectives only.', "NCCL has collectives only.", "is not quoted"),
        "verdict": ("**Verdict.** False since NCCL", "**Verdict.** Not since NCCL", "neither true"),
        "evidence": ("(documented)", "(we heard)", "marked (documented)", "nothing shows that the"),
    },
}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, planted in PLANTED.items() for fault in planted]
)
def test_a_planted_fault_is_found_and_nothing_else(name, fault):
    old, new, *faults = PLANTED[name][fault]
    source = SOURCES[name]
    assert old in source.text
    found = lesson_rules.faults(
        Source(source.chapter, source.name, source.text.replace(old, new, 1))
    )
    assert len(found) == len(faults), found
    assert all(words in text for words, text in zip(faults, found, strict=True)), found


def solution(name: str) -> str:
    """What the lesson shows, folded, below "Write it yourself"."""
    return lesson_rules.SOLUTION.search(SOURCES[name].prose)[1]


@pytest.mark.parametrize("name", CHAPTERS["collectives"].names)
def test_the_solution_of_what_a_reader_writes_is_right(name):
    for world_size in (1, 3, 4):
        module = files.load(files.find(name))
        exec(compile(solution(name), f"{name}.py, solution", "exec"), vars(module))
        (attempt,) = [value for key, value in vars(module).items() if key.startswith("try_")]
        launch(attempt, world_size, backend="gloo", device="cpu", timeout=60.0)


PROPOSALS = [(name, item) for name, source in SOURCES.items() for item in source.proposals]


@pytest.mark.parametrize(
    ("name", "item"),
    [
        pytest.param(
            name,
            item,
            id=f"{name}-{item[:40]}",
            # Of the lessons on algorithms, those of the first run each time.
            marks=pytest.mark.slow if name in CHAPTERS["algorithms"].names[1:] else (),
        )
        for name, item in PROPOSALS
    ],
)
def test_a_change_that_the_lesson_proposes_does_what_the_lesson_says(name, item):
    (said,) = re.findall(r"You get `([^`]+)`", item)
    step, cell = SOURCES[name].changed_cell(item)
    module = files.load(files.find(name))
    exec(compile(cell, f"{name}.py, changed", "exec"), vars(module))
    changed = vars(module)[step]
    timeout = 10.0 if "hung" in said else 100.0
    try:
        results = launch(changed, 4, backend="gloo", device="cpu", timeout=timeout)
        outcome = table(step, results)
    except LaunchError as error:
        outcome = str(error)
    assert said in " ".join(outcome.split())
