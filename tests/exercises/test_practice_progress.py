"""What the reader has solved is not lost: by two commands at once, odd files, full or odd folders."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from collectives.cli import app
from collectives.course.practice import progress
from collectives.course.practice.checker import ExerciseVerdict


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return progress.start(tmp_path / "mine")


def practice(*words, status):
    result = CliRunner().invoke(app, ["practice", *words])
    assert result.exit_code == status, result.output
    return result.output


def test_commands_that_note_at_the_same_time_lose_nothing(here):
    names = ["neighbours", "shift_right", "running_total", "weighted_mean"]

    def note_often(name):
        for is_solved in [False, True] * 50:
            progress.find(here.folder).note(name, is_solved)

    with ThreadPoolExecutor(len(names)) as commands:
        list(commands.map(note_often, names))
    assert sorted(progress.find(here.folder).solved) == sorted(names)
    assert [path.name for path in here.folder.glob("*.json*")] == ["progress.json"]


ODD = [
    *("", "{", "[]", "null", "7", '"text"', "{}", "[" * 100_000),
    *('{"solved": [], "hints": []}', '{"solved": [[]], "hints": {}}', '{"solved": [1], "hints": {}}'),
    *('{"solved": "neighbours", "hints": {}}', '{"solved": {}, "hints": {}}'),
    *('{"solved": [], "hints": {"a": "1"}}', '{"solved": [], "hints": {"a": -5}}'),
]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:40] or "empty")
def test_an_odd_file_is_told_in_one_sentence_that_keeps_it(text, here, monkeypatch):
    monkeypatch.chdir(here.folder)
    file = here.folder / "progress.json"
    file.write_text(text)
    for words in (["list"], ["neighbours", "--hint"], ["reset", "neighbours"]):
        said = practice(*words, status=2)
        assert said.count("\n") == 1, said
        assert "progress.json cannot be understood" in said
        assert "remove" not in said
    assert file.read_text() == text


def test_a_name_of_another_version_is_kept_and_not_counted(here, monkeypatch):
    monkeypatch.chdir(here.folder)
    here.note("an_exercise_of_old", True)
    assert "0 of " in practice("list", status=0)
    here.note("neighbours", True)
    assert "1 of " in practice("list", status=0)
    assert json.loads((here.folder / "progress.json").read_text())["solved"] == here.solved


def test_reset_replaces_a_link_and_not_what_it_leads_to(here, monkeypatch):
    monkeypatch.chdir(here.folder)
    target = here.folder / "mine.py"
    target.write_text("precious")
    file = here.file(progress.registry.find("neighbours"))
    file.unlink()
    file.symlink_to(target)
    practice("reset", "neighbours", status=0)
    assert target.read_text() == "precious"
    assert "def neighbours" in file.read_text()


def test_reset_of_a_folder_is_refused_in_one_sentence(here, monkeypatch):
    monkeypatch.chdir(here.folder)
    file = here.file(progress.registry.find("neighbours"))
    file.unlink()
    file.mkdir()
    assert practice("reset", "neighbours", status=2).count("\n") == 1
    assert not list(file.parent.glob(".*"))


@pytest.mark.parametrize("words", [["neighbours"], ["neighbours", "--hint"]], ids=" ".join)
def test_what_cannot_be_noted_is_told_and_the_answer_is_printed(words, here, monkeypatch):
    monkeypatch.chdir(here.folder)
    (here.folder / ".progress.json.new").mkdir()  # nobody can write it, not even root
    monkeypatch.setattr(
        progress, "try_program", lambda *given: ExerciseVerdict("wrong", "rank 0: wrong.")
    )
    said = practice(*words, status=0 if "--hint" in words else 1)
    assert "rank 0: wrong." in said or "hint 1 of 2" in said
    assert "Cannot save" in said
