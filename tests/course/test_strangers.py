"""Nothing runs because it lies where one stands, or above it: others can put files there."""

import os
import sys

import pytest
from processes import finished
from repository import ROOT

from collectives.course import chapters, files
from collectives.course.practice import progress

# Each writes its name into a file when it is executed.
PLANTED = {
    "lessons/chapter.toml": '[start]\ntitle = "x"\nlessons = ["barrier"]\n',
    "lessons/barrier.py": "",
    "exercises/calls/neighbours/check.py": "",
    # What the command, the fork server, the resource tracker and the ranks import.
    **dict.fromkeys(("collectives.py", "multiprocessing.py", "selectors.py", "torch.py"), ""),
    **dict.fromkeys(("mpi4py.py", "rich.py", "sitecustomize.py", "model.py", "conftest.py"), ""),
}
SPAWNED = """\
from collectives import launch

def step(rank, world_size, device):
    import os
    return os.environ.get("PYTHONSAFEPATH")

if __name__ == "__main__":
    print(launch(step, 2, start_method="spawn"))
"""


@pytest.fixture(scope="module")
def strangers_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    for place in (folder, folder / "below"):
        for name, text in PLANTED.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text or f'open("{folder}/executed", "a").write("{path}\\n")\n')
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "spawned.py"
    path.write_text(SPAWNED)
    return path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param("collectives list start", "start: ", id="list"),
        pytest.param("collectives practice start {new}", " exercises are in ", id="practice"),
        pytest.param("collectives run barrier -n 2", "barrier ", id="run"),
        pytest.param(
            "python {lessons}/barrier.py -n 2", "barrier: ", id="lesson", marks=pytest.mark.slow
        ),
        pytest.param("python {program}", "[None, None]", id="spawn", marks=pytest.mark.slow),
    ],
)
def test_what_a_stranger_has_put_there_does_not_run(
    strangers_folder, program, tmp_path, command, said
):
    names = {"new": tmp_path / "new", "lessons": ROOT / "lessons", "program": program}
    done = finished(command.format(**names), cwd=strangers_folder / "below")
    assert said in done.stdout, done.stderr
    executed = strangers_folder / "executed"
    assert not executed.exists(), executed.read_text()


def test_a_folder_in_which_python_itself_looks_first_is_not_hidden_from_the_ranks(tmp_path):
    """As with `python -m` and in a notebook: there the reader's own modules are found."""
    (tmp_path / "own.py").write_text("NUMBER = 7\n")
    code = "from collectives import launch\nimport own\nprint(launch(lambda *_: own.NUMBER, 1, timeout=120))"
    done = finished(["python", "-c", code], cwd=tmp_path)
    assert done.stdout == "[7]\n", done.stderr


def test_exercises_above_are_taken_only_if_all_of_them_are_the_readers(tmp_path, monkeypatch):
    mine = progress.start(tmp_path / "mine")
    below = mine.folder / "below"
    below.mkdir()
    assert progress.find(below).folder == mine.folder
    (mine.folder / ".#01_weighted_mean.py").symlink_to("somebody@somewhere")  # an editor's lock
    assert progress.find(below).folder == mine.folder
    (mine.folder / "torch.py").symlink_to("/etc/passwd")  # of root, or else of nobody here
    monkeypatch.setattr(os, "getuid", lambda: mine.folder.stat().st_uid + 1)
    with pytest.raises(ValueError, match=r"is another user's. If you trust it: cd "):
        progress.find(below)
    assert progress.find(mine.folder).folder == mine.folder


def test_a_notebook_in_any_clone_takes_the_modules_of_its_chapter_from_the_package(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("training", "new_chapter"):
        (tmp_path / "notebooks" / name).mkdir(parents=True)
        (tmp_path / "lessons" / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "notebooks" / name)
        files.import_modules_of_notebook()
        assert sys.path[0] == str(chapters.folder() / "training")
