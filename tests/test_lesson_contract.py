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
STEPS = "STEPS = [broadcast, broadcast_two_roots,"
GUARD = 'if __name__ == "__main__":\n    run(broadcast)'
PLANTED = {
    "broadcast": {
        "title": ("# broadcast\n", "# Broadcast\n", "the title is not '# broadcast'"),
        "command": ("    python lessons/broadcast.py", "    python broadcast.py", "how to run it"),
        "installation": ("type `make tour`", "type `make`", "end with the installation"),
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
            "STEPS = [broadcast, broadcast_every_root, broadcast_two_roots,",
            "reading order",
        ),
        "arguments": (
            "two_roots(rank, world_size, device)",
            "two_roots(rank, n, device)",
            "broadcast_two_roots does not take rank, world_size, device",
        ),
        "no_proof": (
            'check(x, 10 * root + torch.arange(3), "broadcast")',
            "",
            "broadcast proves nothing",
        ),
        "no_call": ("    dist.broadcast(x, src=root)", "", "calls nothing of torch.distributed"),
        "assert": ("before = x.clone()", "assert device", "broadcast has an assert"),
        "guard": (GUARD, f"{GUARD}\n    print()", "guarded one-line run cell"),
        "length": ("before = x.clone()", "x.clone()\n    " * 100, "too long for one sitting"),
        "section": ("# ## Pitfalls", "# ## Traps", "the sections are"),
        "link": ("# DDP sends the", "# [DDP](ddp.md) sends the", "the link ddp.md leads nowhere"),
        "accidental_list": ("# DDP sends the", "# DDP sends\n# - the", "by accident: - the"),
        "first_step": (STEPS, "STEPS = [broadcast_two_roots,", "first step is not broadcast"),
        "term": ("The **root** is", "The root is", "the title does not explain 'root'"),
        "prediction": ("# **Predict first.** What", "# What", "asks for 1 predictions"),
        "no_question": (
            "# **Predict first.** What do the generators answer afterwards? Does a broadcast into "
            "that dictionary change the model?",
            "# **Predict first.** Guess.",
            "asks nothing",
        ),
        "no_reason": ("# **Why.** The", "# The", "a prediction is not explained"),
        "factor": ("factor: `1`.", "factor: `2`.", "Bus-bandwidth factor: `1`."),
        "proposals": ("# 3. In", "# 3. Nothing.\n# 4. In", "there are 4 things to change"),
        "documentation": ("- [`broadcast`](https", "- [broadcast](https", "the documentation of"),
        "wrong_documentation": ("distributed.broadcast)", "distributed.cast)", "not to its"),
        "next_lesson": ("(../notebooks/all_reduce.ipynb)", "(../README.md)", "not lead on to"),
    },
    "start": {
        "statement": ("visitors = []", "visitors = [0]", "more than definitions: visitors = [0]"),
        "unfolded": ("<summary>Answer</summary>", "<summary>Why</summary>", "is not explained"),
        "next_lesson": ("(../notebooks/send_recv.ipynb)", "(../README.md)", "not lead on to"),
    },
    "mistakes/order": {
        "paragraph": ("# **Cause.** The", "# The", "below 'Only rank 0 calls it' are"),
        "order_of_imports": ("import cure, mistake, run", "import cure, mistake", "`import torch`"),
    },
    "hearsay": {
        "paragraph": ('# **Claim.** "NCCL', '# "NCCL', "send and receive' are ['Verdict']"),
        "claim": ('"NCCL has collectives only.', "NCCL has collectives only.", "is not quoted"),
        "verdict": ("**Verdict.** False since NCCL", "**Verdict.** Not since NCCL", "neither true"),
        "evidence": ("(documented)", "(we heard)", "nothing shows that the verdict below"),
    },
}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, planted in PLANTED.items() for fault in planted]
)
def test_a_planted_fault_is_found_and_nothing_else(name, fault):
    old, new, words = PLANTED[name][fault]
    source = SOURCES[name]
    assert old in source.text
    found = lesson_rules.faults(
        Source(source.chapter, source.name, source.text.replace(old, new, 1))
    )
    assert [words in text for text in found] == [True], found


PROPOSALS = [(name, item) for name, source in SOURCES.items() for item in source.proposals]


@pytest.mark.parametrize(
    ("name", "item"), PROPOSALS, ids=[f"{name}-{item[:40]}" for name, item in PROPOSALS]
)
def test_a_change_that_the_lesson_proposes_does_what_the_lesson_says(name, item):
    step = re.match(r"In `(\w+)`, change ", item)[1]
    (said,) = re.findall(r"It says `([^`]+)`", item)
    (cell,) = [cell for cell in SOURCES[name].code if f"def {step}(" in cell]
    for old, new in re.findall(r"(?:, change| and) `([^`]+)` to `([^`]+)`", item):
        assert cell.count(old) == 1, f"{old} is not once in the cell"
        cell = cell.replace(old, new)
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
