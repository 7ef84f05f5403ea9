"""What a step does beside its result stays what its record says: tests/lessons/steps."""

import shutil

import pytest
import torch
from repository import ROOT

from collectives.course import chapters
from tools import step_records
from tools.step_records import (
    RECORDS,
    WITHOUT,
    Watch,
    _rounds,
    _weight,
    difference,
    record_file,
    text_of,
)

NAMES = [
    name
    for chapter in chapters.read().values()
    for name in chapter.names
    if not {name, chapter.name} & WITHOUT.keys()
]
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith(step_records.TORCH), reason="recorded on torch 2.13.0"
)


def record(name: str) -> str:
    return record_file(name).read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_step_does_what_its_record_says(name):
    told = difference(name, text_of(name, ROOT / "lessons"), record(name))
    assert told == "", f"if it is meant: python -m tools.step_records {name}"


def test_a_difference_names_step_rank_and_line():
    got = record("reduce").replace("  reduce int64[2] SUM root 3", "  all_reduce int64[2] SUM", 1)
    assert difference("reduce", got, record("reduce")) == (
        "reduce, reduce, rank 0, 1, 2: it does: all_reduce int64[2] SUM; "
        "its record: reduce int64[2] SUM root 3"
    )
    assert difference("reduce", record("reduce"), record("reduce")) == ""


def test_a_difference_at_the_head_of_a_round_names_the_line_below_it():
    rounds = "step, rank 0:\n  x {}:\n    isend int64[1] with rank + 1\n"
    told = difference("ring", rounds.format(3), rounds.format(2))
    assert told == (
        "ring, step, rank 0: it does: x 3: isend int64[1] with rank + 1; "
        "its record: x 2: isend int64[1] with rank + 1"
    )


def test_each_record_is_that_of_a_lesson():
    without = [name for name in NAMES if not record_file(name).exists()]
    assert not without, f"run python -m tools.step_records {' '.join(without)}"
    assert set(RECORDS.rglob("*.txt")) == set(map(record_file, NAMES))


@pytest.mark.slow
def test_a_copy_of_the_lessons_is_compared(tmp_path, monkeypatch, capsys):
    """The sums are the same with a broadcast more."""
    shutil.copytree(ROOT / "lessons", tmp_path / "lessons")
    lesson = tmp_path / "lessons" / "all_reduce.py"
    call = "    dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)\n"
    text = lesson.read_text("utf-8")
    assert text.count(call) == 1
    lesson.write_text(
        text.replace(call, f"{call}    dist.broadcast(weight.grad, src=0)\n"), "utf-8"
    )

    def status(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["step_records", "--check", *arguments])
        return step_records.main()

    assert status("--lessons", str(tmp_path / "lessons"), "all_reduce") == 1
    assert "training_step, rank 0, 1, 2, 3: it does: " in capsys.readouterr().out
    assert status("all_reduce") == 0
    launching = tmp_path / "lessons" / "launching.py"
    text = launching.read_text("utf-8")
    launching.write_text(
        text.replace('f"greetings from {right}", "store', '"none", "store'), "utf-8"
    )
    assert status("--lessons", str(tmp_path / "lessons"), "launching") == 1
    assert "launching fails: rank 0: " in capsys.readouterr().out
    assert status("machines/slurm") == 2


def test_an_operator_whose_bytes_are_not_known_fails():
    class Unknown:
        namespace, _schema = "c10d", type("Schema", (), {"name": "c10d::shout_"})

        def __call__(self, *args):
            return args

    with pytest.raises(ValueError, match="the bytes of the operator c10d::shout_ are not known"):
        Watch(RECORDS, 0, 1).__torch_dispatch__(Unknown(), ())


def test_equal_rounds_stand_once():
    assert _rounds([*"ababccc", "d"]) == ["x 2:\n  a\n  b", "c  x 3", "d"]


def test_other_numbers_signs_and_places_weigh_something_else():
    given = [[1.0, 2.0, -3.0], [1.0, 2.0, -4.0], [1.0, 2.0, 3.0], [2.0, 1.0, -3.0]]
    assert len({_weight(torch.tensor(one)) for one in given}) == len(given)
