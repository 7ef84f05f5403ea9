"""The exercises: each fails unsolved, passes solved, and wrong solutions are told what is wrong."""

import ast
import json
import re
import sys
import time
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from planted import Planted
from processes import finished
from shared_world import Program, faults
from typer.testing import CliRunner

from collectives import practice
from collectives.cli import app
from collectives.course import chapters, files
from collectives.course.practice import progress, registry
from collectives.course.practice.checker import try_program
from collectives.course.practice.exercise import ExerciseCase
from collectives.course.practice.result import _texts
from collectives.semantics.calls import BY_NAME
from tools.exercises_table import FIRST, wrong_answers

EXERCISES = registry.read()
CHAPTERS = dict.fromkeys(one.chapter for one in EXERCISES.values())


def solution(name: str) -> str:
    return (EXERCISES[name].folder / "solution.py").read_text("utf-8")


def planted(name: str) -> list[tuple[str, Planted]]:
    """The kind of each wrong answer, and what it changes in the solution.

    A function `around` the right one stands before it.
    """
    file, head = EXERCISES[name].folder / "solution.py", f"def {EXERCISES[name].function}("
    found = wrong_answers(EXERCISES[name]).values()
    changes = [one.get("change") or (head, f"{one['around']}\n\ndef right(") for one in found]
    return [
        (one["kind"], Planted(file, *change, one["says"]))
        for one, change in zip(found, changes, strict=True)
    ]


def tried(name: str, text: str, folder: Path):
    file = folder / f"{name}.py"
    file.write_text(text, "utf-8")
    return try_program(name, str(file))


def test_an_exercise_is_a_folder_of_four_files():
    folders = {path.parent for path in registry.folder().glob("*/*/*.py")}
    assert folders == {one.folder for one in EXERCISES.values()}
    for folder in folders:
        files = {path.name for path in folder.glob("*.py")}
        assert files == {"task.py", "solution.py", "check.py", "wrong.py"}, folder


def test_the_list_of_exercises_imports_no_torch():
    program = "import sys; from collectives.course.practice import registry; registry.read()"
    finished(
        [sys.executable, "-c", f"{program}; assert 'torch' not in sys.modules"]
    ).check_returncode()


def test_exercises_come_in_the_order_of_their_lessons_the_easier_first():
    lessons = [name for chapter in chapters.read().values() for name in chapter.names]
    order = [(lessons.index(one.lesson), one.stars) for one in EXERCISES.values()]
    assert order == sorted(order)


def test_the_text_of_an_exercise_names_the_calls_that_it_allows():
    for name, one in EXERCISES.items():
        if one.uses:
            text = " ".join((one.folder / "task.py").read_text("utf-8").split())
            *first, last = one.uses
            allowed = f"{', '.join(first)} and {last}" if first else last
            assert f"You may call {allowed}, and no " in text, name


DEMANDS = tomllib.loads(Path(__file__).with_name("demands.toml").read_text("utf-8"))
DEMANDING = re.compile(
    r"\b(only|no rank|each|must|without|at most|single|enough|no message|none of|one call"
    r"|one all_reduce|two calls)\b",
    re.IGNORECASE,
)


def demands(name: str) -> list[str]:
    """The sentences of a task that limit how it may be done; its tables are indented."""
    task = ast.parse((EXERCISES[name].folder / "task.py").read_text("utf-8"))
    _, text = (ast.get_docstring(task) or "").split("\n\n", 1)
    paragraphs = re.sub(r"^    .*$", "", text, flags=re.MULTILINE).split("\n\n")
    lines = "\n".join(" ".join(one.split()) for one in paragraphs)
    sentences = re.split(r"(?<=[.:?]) (?=[A-Z`])|\n", lines)
    allows = "You may call"  # what `uses` checks
    return [one for one in sentences if DEMANDING.search(one) and not one.startswith(allows)]


def test_each_demand_of_a_task_is_checked_by_what_the_table_names():
    """At most six are shown in the task, and checked by nobody."""
    assert {name: list(rows) for name, rows in DEMANDS.items()} == {
        name: found for name in EXERCISES if (found := demands(name))
    }
    for name, rows in DEMANDS.items():
        check = (EXERCISES[name].folder / "check.py").read_text("utf-8")
        for sentence, checked_by in rows.items():
            if not checked_by.startswith(("result", "given", "shown")):
                missing = [one for one in checked_by.split() if not re.search(rf"\b{one}\b", check)]
                assert not missing, f"{name}: {sentence}"
    assert sum(by.startswith("shown") for rows in DEMANDS.values() for by in rows.values()) <= 6


# What a case may demand beside its result.
LIMITS = {one.name for one in fields(ExerciseCase)} - {
    *("label", "args", "wanted", "after", "parts", "explain", "says")
}


def test_every_limit_is_told_with_the_words_of_the_task_that_set_it():
    """But the peers of rank_in_a_group, whose cases need a world."""
    for name, one in EXERCISES.items():
        if name == "rank_in_a_group":
            continue
        task = " ".join((one.folder / "task.py").read_text("utf-8").split()).lower()
        for case in one.cases(0, 4):
            limits = {limit for limit in LIMITS if getattr(case, limit) not in (None, 0, False)}
            assert limits <= case.says.keys(), name
            assert [words for words in case.says.values() if words.lower() not in task] == [], name


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_is_named_by_its_lesson(name):
    lesson = EXERCISES[name].lesson
    text = " ".join(files.find(lesson).read_text("utf-8").replace("\n# ", " ").split())
    assert name in re.findall(r"collectives practice (\w+)", text), (
        f"write `collectives practice {name}` into the lesson {lesson}, as exercises.toml says"
    )


# Calls that the route teaches before the lessons on calls.
TAUGHT_BEFORE = {"all_reduce": "route/one_mean", "broadcast": "route/one_start"}


def test_an_exercise_comes_when_its_calls_have_been_taught():
    """recv needs no word of isend: an exercise that allows all messages can be solved with both."""
    lessons = [name for chapter in chapters.read().values() for name in chapter.names]
    for name, one in EXERCISES.items():
        taught = lessons[: lessons.index(one.lesson) + 1]
        for use in {*one.uses} & {*BY_NAME} - {"isend", "irecv", "batch_isend_irecv"}:
            assert {BY_NAME[use].lesson, TAUGHT_BEFORE.get(use)} & {*taught}, f"{name} uses {use}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "broadcast_from_sends" else pytest.mark.slow)
        for name in EXERCISES
    ],
)
def test_an_exercise_fails_unsolved_and_passes_solved(name, tmp_path, monkeypatch):
    file = EXERCISES[name].folder / "task.py"
    unsolved = try_program(name, str(file))
    if "NotImplementedError" in file.read_text("utf-8"):
        assert unsolved.kind == "todo", unsolved
    else:  # a program to fix
        assert not unsolved.is_solved
    assert unsolved.says
    # In the first of its worlds: in all of them it passes below, where programs share a world.
    only = replace(EXERCISES[name], sizes=EXERCISES[name].sizes[:1])
    monkeypatch.setattr(registry, "find", lambda name: only)
    solved = tried(name, solution(name), tmp_path)
    assert solved.is_solved, solved


# What only a world of the program's own ends with, or what is told of the worlds before it. All else
# that is told is compared below, in worlds that many programs share.
ALONE = re.compile("it hangs|died|The last right case: 2 ranks")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=() if name == "only_rank_0_logs" else pytest.mark.slow)
        for name in EXERCISES
        for _, fault in planted(name)
        if ALONE.search(fault.says)
    ],
)
def test_a_wrong_solution_is_told_what_is_wrong(name, fault, tmp_path):
    verdict = tried(name, fault.text, tmp_path)
    assert fault.says in f"{verdict.case}: {verdict.says}"


# Any rank may be the first that is heard; on a busy machine another one than usual.
WHO = re.compile(r"\b(every rank|ranks? \d[\d, ]*): ")

# Kinds that worlds of two, three and four ranks may not refute.
OTHER_SIZES = {"one rank", "another number of ranks", "a number of ranks that is no power of two"}


def refusals(programs: list[Program], most: int, folder: Path) -> list:
    """Of each program the size of the world that refutes it, and its fault; None if none does.

    As the checker does, it tries the sizes of the exercise in turn; up to `most` ranks.
    """
    found: list = [None] * len(programs)
    sizes = [EXERCISES[program.exercise].sizes for program in programs]
    for turn in range(max(map(len, sizes))):
        for size in sorted({own[turn] for own in sizes if turn < len(own) and own[turn] <= most}):
            rest = [
                number
                for number, own in enumerate(sizes)
                if found[number] is None and own[turn : turn + 1] == (size,)
            ]
            told = faults([programs[number] for number in rest], size, folder)
            for number, fault in zip(rest, told, strict=True):
                found[number] = fault and (size, fault)
    return found


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param("", id="some"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in CHAPTERS),
    ],
)
def test_wrong_answers_are_refuted_by_the_case_and_told_in_the_words_that_they_name(
    chapter, tmp_path
):
    """In worlds that they share. The first case refutes what the example shows, and nothing else."""
    step, most = (1, 11) if chapter else (11, 4)
    names = [name for name, one in EXERCISES.items() if chapter in ("", one.chapter)]
    right = [Program(name, solution(name), limit=20.0) for name in names[::step]]
    assert [told for told in refusals(right, most, tmp_path) if told] == []
    left = [(name, *one) for name in names for one in planted(name)][::step]
    assert all(fault.says for _, _, fault in left)
    for limit in (2.0, 10.0, 30.0):  # a busy machine may need more than the first
        programs = [Program(name, fault.text, limit) for name, _, fault in left]
        told = zip(left, refusals(programs, most, tmp_path), strict=True)
        wrong = {answer: text for answer, said in told if (text := missed(*answer, said, most))}
        if not (left := [*wrong]):
            break
    assert not wrong, "\n".join(wrong.values())


def missed(name: str, kind: str, fault: Planted, refused, most: int) -> str:
    """What is not as the wrong answer says in how it was refused; "" if all is."""
    if refused is None:
        is_larger = most < 11 and kind in OTHER_SIZES
        return "" if is_larger else f"{name}: {fault.new} is accepted"
    size, said = refused
    if kind == "a race" and "it hangs" in said.says:  # it may also do that
        return ""
    is_first = size == EXERCISES[name].sizes[0] and said.case <= 0
    if kind != "a race" and (kind in FIRST) != is_first:
        return f"{name}: {fault.new}, of the kind {kind!r}: {refused}"
    if not ALONE.search(fault.says) and WHO.sub("", fault.says) not in WHO.sub("", said.says):
        return f"{name}: {fault.new} should be told {fault.says!r}: {refused}"
    return ""


UNUSUAL = tomllib.loads(Path(__file__).with_name("unusual_answers.toml").read_text("utf-8"))[
    "answer"
]


@pytest.mark.slow
def test_a_right_answer_may_look_like_none_of_ours(tmp_path):
    programs = [Program(one["exercise"], one["program"], limit=20.0) for one in UNUSUAL]
    told = zip(UNUSUAL, refusals(programs, 5, tmp_path), strict=True)
    assert {one["unusual"]: said for one, said in told if said} == {}


def test_a_difference_that_six_decimals_do_not_show_is_shown():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert _texts(third, third) == ("[0.333333]", "[0.333333]")
    assert _texts(third + 1e-8, third) == ("[0.3333333433333333]", "[0.3333333333333333]")


@pytest.mark.slow
def test_an_average_may_be_rounded_in_another_order(tmp_path):
    """A third of each gradient and then the sum, or the sum and then a third."""
    late = "        dist.all_reduce(gradient)\n"
    early = "        gradient /= dist.get_world_size()\n"
    text = solution("average_the_gradients")
    assert late + early in text
    verdict = tried("average_the_gradients", text.replace(late + early, early + late), tmp_path)
    assert verdict.is_solved, verdict


TRICKS = {
    "it prints what should come out": (
        "def broadcast(x, src):\n    print('solved: right in 115 cases')\n",
        "rank 1: `x` is as it was: this rank made no call",
    ),
    "it catches every exception": (
        "def broadcast(x, src):\n    try:\n        x.copy_(undefined)\n    except BaseException:\n        pass\n",
        "rank 1: `x` is as it was",
    ),
    "it ends the process with status 0": (
        "import os\n\n\ndef broadcast(x, src):\n    os._exit(0)\n",
        "died",
    ),
    "it calls the built-in by another name": (
        "from torch.distributed.distributed_c10d import broadcast as other\n\n\n"
        "def broadcast(x, src):\n    other(x, src)\n",
        "it calls dist.broadcast: write `broadcast` with send, recv",
    ),
    "it calls an operator of torch": (
        "import torch.distributed as dist\nimport torch.distributed._functional_collectives as functional\n\n\n"
        "def broadcast(x, src):\n    x.copy_(functional.broadcast(x, src, dist.group.WORLD))\n",
        "it calls the operator broadcast: write `broadcast` with send, recv",
    ),
    "it catches the refusal, too": (
        "import torch\nimport torch.distributed as dist\n\n\ndef broadcast(x, src):\n    try:\n        dist.all_reduce(x)\n"
        "    except Exception:\n        pass\n",
        "it calls dist.all_reduce",
    ),
    "it calls the backend": (
        "import torch\nimport torch.distributed as dist\n\n\ndef broadcast(x, src):\n"
        '    backend = dist.group.WORLD._get_backend(torch.device("cpu"))\n'
        "    dist.ProcessGroupGloo.broadcast(backend, [x], dist.BroadcastOptions()).wait()\n",
        "it calls dist.broadcast",
    ),
    "it makes a backend of its own": (
        "import datetime\nimport torch\nimport torch.distributed as dist\n\n\ndef broadcast(x, src):\n"
        '    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())\n'
        "    group = dist.ProcessGroupGloo(\n"
        "        store, dist.get_rank(), dist.get_world_size(), datetime.timedelta(seconds=9)\n    )\n"
        "    group.broadcast([x], dist.BroadcastOptions()).wait()\n",
        "it calls dist.broadcast",
    ),
    "it is right on rank 0 only": (
        "import torch\nimport torch.distributed as dist\n\n\ndef broadcast(x, src):\n    if dist.get_rank() == src:\n"
        "        return\n    if dist.get_rank() == 0:\n        x.copy_(torch.arange(1, len(x) + 1) + 10 * src)\n",
        "rank 1: `x` is as it was",
    ),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_fails(trick, tmp_path):
    program, words = TRICKS[trick]
    verdict = tried("broadcast_from_sends", program, tmp_path)
    assert not verdict.is_solved
    assert words in verdict.says


def test_a_reader_starts_tries_asks_and_looks_up(tmp_path, monkeypatch):
    runner = CliRunner()

    def typed(*words: str, status: int = 0, **options) -> str:
        result = runner.invoke(app, ["practice", *words], **options)
        assert result.exit_code == status, result.output
        return result.output

    assert "practice start FOLDER" in typed(status=2)
    here = tmp_path / "here"
    assert "cd " in typed("start", str(here))
    assert "is not empty" in typed("start", str(here), status=2)
    monkeypatch.chdir(here)
    said = typed(status=1)
    assert "`my_shard` is not written yet." in said
    assert "The file: 01_shards_with_a_remainder.py" in said
    assert "hint 1 of 3" in typed("--hint")
    assert "hint 1 of 2" in typed("neighbours", "--hint")
    assert "hint 2 of 2" in typed("neighbours", "--hint")
    assert "did you mean" in typed("neighbors", status=2)
    file = progress.find(here).file(EXERCISES["neighbours"])
    file.write_text(solution("neighbours").replace("(rank - 1) % n, ", "rank - 1, "))
    said = typed("neighbours", status=1)
    assert "rank 0: the result is wrong." in said
    assert "0     2  (-1, 1)   (1, 1)" in said
    assert typed("solution", "neighbours", status=1, input="n\n").count("%") == 0
    file.write_text(solution("neighbours"))
    said = typed("neighbours")
    assert "compare: collectives practice solution neighbours" in said
    assert f"1 of {len(EXERCISES)} solved. Next: 01_shards_with_a_remainder.py" in said
    (found,) = json.loads(typed("neighbours", "--json"))
    assert found["kind"] == "solved"
    assert "[x] neighbours" in typed("list")
    assert typed("solution", "neighbours") == solution("neighbours")
    typed("reset", "neighbours")
    assert "[ ] neighbours" in typed("list")


def test_the_files_have_the_numbers_of_the_course_and_a_folder_without_numbers_works(tmp_path):
    here = progress.start(tmp_path / "new")
    files = sorted(path.name for path in here.folder.glob("*.py"))
    assert files == [f"{k:02}_{name}.py" for k, name in enumerate(EXERCISES, 1)]
    assert "collectives practice" in (here.folder / "README.md").read_text("utf-8")
    old = tmp_path / "old"
    (old / "calls").mkdir(parents=True)
    here.file(EXERCISES["neighbours"]).replace(old / "calls" / "neighbours.py")
    (old / "77_overlap.py").touch()  # of a version in which it was the 77th
    (old / "progress.json").write_text('{"solved": ["neighbours"], "hints": {}}')
    found = progress.find(old)
    assert found.file(EXERCISES["neighbours"]) == old / "calls" / "neighbours.py"
    assert found.file(EXERCISES["overlap"]) == old / "77_overlap.py"
    assert found.count == f"1 of {len(EXERCISES)}"


def test_messages_are_counted_beside_ours(tmp_path):
    """What is right may send more."""
    twice = solution("left_first").replace("    works = [", "    exchange(x)\n    works = [")
    twice += """

def exchange(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    work = dist.isend(x, (rank + 1) % n)
    dist.recv(torch.empty_like(x), (rank - 1) % n)
    work.wait()
"""
    assert tried("left_first", twice, tmp_path).sent == (
        "4 ranks, run 1: 12 messages, 192 bytes; ours: 8 messages, 128 bytes"
    )


@pytest.mark.slow
def test_practice_answers_in_a_notebook_cell(tmp_path, monkeypatch):
    """For a function of the cell, and for the file in the reader's folder."""
    monkeypatch.chdir(tmp_path)
    from nbclient import NotebookClient

    here = progress.start(tmp_path / "mine")
    right = solution("broadcast_from_sends")
    wrong = right.replace("dist.recv(x, src)", "dist.recv(x.clone(), src)")
    raises = right.replace("dist.recv(x, src)", "1 / 0")
    here.file(EXERCISES["broadcast_from_sends"]).write_text(right, "utf-8")
    cells = [
        "from collectives import practice",
        wrong + 'practice("broadcast_from_sends", broadcast)',
        raises + 'practice("broadcast_from_sends", broadcast)',
        '%cd -q mine\npractice("broadcast_from_sends")',
        "practice()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120).execute(cwd=str(tmp_path))
    told = [
        "".join(
            re.sub(r"\x1b\[[\d;]*m", "", output["data"]["text/plain"]) for output in cell.outputs
        )
        for cell in notebook.cells
    ]
    assert told[0] == ""
    assert "rank 1: `x` is as it was" in told[1]
    assert " 1     [-7, -7]  0    [-7, -7]      [1, 2]" in told[1]
    assert "line 11: 1 / 0" in told[2]
    assert "solved" in told[3]
    assert progress.find(tmp_path / "mine").solved == ["broadcast_from_sends"]
    assert "`my_shard` is not written yet." in told[4]  # the first of the route


def test_practice_answers_in_a_python_session(capsys):
    def neighbours(rank, n):
        return rank - 1, (rank + 1) % n

    practice("neighbours", neighbours)
    assert "rank 0: the result is wrong." in capsys.readouterr().out


def test_practice_refuses_what_is_no_function():
    with pytest.raises(ValueError, match="without calling it"):
        practice("neighbours", (1, 2))


def test_watch_tries_again_when_the_file_is_saved(tmp_path, monkeypatch):
    file = progress.start(tmp_path).file(EXERCISES["neighbours"])
    monkeypatch.chdir(tmp_path)
    programs = [solution("neighbours").replace("(rank + 1) % n", "rank + 1")]

    def save_in_an_editor(seconds):
        if not programs:
            raise KeyboardInterrupt
        file.write_text(programs.pop(), "utf-8")

    monkeypatch.setattr(
        "collectives.cli.practice.time",
        SimpleNamespace(sleep=save_in_an_editor, monotonic=time.monotonic),
    )
    said = CliRunner().invoke(app, ["practice", "neighbours", "--watch"]).output
    assert said.index("not written yet") < said.index("rank 1: the result is wrong.")
