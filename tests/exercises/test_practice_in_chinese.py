"""`collectives practice start FOLDER --language zh`: what a reader of the route meets is Chinese."""

import re

import pytest
from typer.testing import CliRunner

from collectives.cli import app
from collectives.course import chapters
from collectives.course.practice import chinese, progress, registry

ROUTE = {lesson.name for lesson in chapters.route()}
EXERCISES = [one for one in registry.read().values() if one.lesson in ROUTE]
HAN = re.compile("[\u3400-\u9fff]")


def english(text: str) -> list[str]:
    """Its words, less those that are no language: ranks, code and names."""
    text = re.sub(r"`[^`]*`|\w+_\w+", "", text)
    return [
        word for word in re.findall(r"[A-Za-z]{2,}", text) if word not in ("rank", "all_reduce")
    ]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_its_task_its_hints_and_its_cases_are_chinese(exercise):
    task = chinese.task((exercise.folder / "task.py").read_text("utf-8"))
    title, *paragraphs = task.split('"""')[1].strip().split("\n\n")
    assert [one for one in [title, *paragraphs] if one[0] != " " and not HAN.search(one)] == []
    assert [one for one in exercise.hints if not HAN.search(chinese.said(one))] == []
    said = set()
    for n in exercise.sizes:
        for case in exercise.cases(0, n):
            said |= {case.label, *case.says.values()}
    assert [chinese.said(one) for one in said if english(chinese.said(one))] == []


@pytest.mark.parametrize(
    ("says", "chinese_says"),
    [
        ("right in 18 cases, with 1, 2 and 8 ranks", "18 种情形全对，rank 数为 1, 2 和 8"),
        (
            "every rank: `x` is 2 times too large, so it is the sum and not the mean. The last right "
            "case: 2 ranks, run 1.",
            "每个 rank：`x` 是应有的 2 倍：这是和，不是平均值。最后一种做对的情形：2 个 rank，第 1 次。",
        ),
        (
            "it hangs: after 2 s rank 0 is still waiting. rank 1: the result is wrong.",
            "程序卡住了：2 秒后 rank 0 还在等。rank 1：结果不对。",
        ),
        ("rank 0 waits in line 21: dist.barrier()", "rank 0 在第 21 行等待：dist.barrier()"),
        ("nobody has translated this", "nobody has translated this"),
    ],
)
def test_a_verdict_is_put_together_in_chinese(says, chinese_says):
    assert chinese.said(says) == chinese_says


def test_a_folder_keeps_its_language(tmp_path, monkeypatch):
    def practice(*words):
        result = CliRunner().invoke(app, ["practice", *words])
        assert result.exit_code == 0, result.output
        return result.output

    assert "个练习已放进" in practice("start", str(tmp_path / "mine"), "--language", "zh")
    monkeypatch.chdir(tmp_path / "mine")
    assert "有余数的分片" in (tmp_path / "mine/01_shards_with_a_remainder.py").read_text()
    assert "提示 1（共 3 条）：10 个样本" in practice("shards_with_a_remainder", "--hint")
    assert practice("list").endswith(f"共 {len(registry.read())} 个\n")
    practice("reset", "average_the_gradients")
    assert "对梯度取平均" in (tmp_path / "mine/02_average_the_gradients.py").read_text()
    assert progress.find(tmp_path / "mine").language == "zh"


def test_a_language_that_is_not_there_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["practice", "start", str(tmp_path / "x"), "--language", "fr"])
    assert result.exit_code == 2
    assert "there is no language 'fr'" in result.output
    assert not (tmp_path / "x").exists()
