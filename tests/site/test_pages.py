"""What the site is made of: every lesson, page and exercise, and what a public address adds."""

import re
from collections import defaultdict
from types import SimpleNamespace

import pytest
from jinja2 import Environment
from repository import ROOT

from collectives.course import chapters
from collectives.course.practice import registry
from tools.site import exercise_pages, pages, repository

ADDRESS = "https://github.com/somebody/collectives"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    made = pages.Source(tmp_path_factory.mktemp("source"), ADDRESS)
    made.write()
    return made


def test_there_is_a_page_for_every_lesson_chapter_document_and_exercise(source):
    lessons = [f"notebooks/{name}.ipynb" for one in chapters.read().values() for name in one.names]
    expected = [f"chapters/{name}.md" for name in chapters.read()]
    expected += [f"{exercise_pages.path_of(one)}.md" for one in registry.read().values()]
    expected += [f"docs/{path.stem}.md" for path in (ROOT / "docs").glob("*.*ml")]
    expected += [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    expected += [f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")]
    missing = [path for path in expected + lessons if not (source.pages / path).is_file()]
    assert missing == []
    programs = [path.replace("notebooks", "lessons", 1)[:-6] + ".py" for path in lessons]
    assert [path for path in programs + lessons if not (source.files / path).is_file()] == []


@pytest.mark.slow
def test_a_second_writing_changes_no_page(source):
    """So that Sphinx reads only what has changed."""
    before = {path: path.stat().st_mtime_ns for path in source.pages.rglob("*.*")}
    pages.Source(source.folder, ADDRESS).write()
    assert {path: path.stat().st_mtime_ns for path in source.pages.rglob("*.*")} == before


def test_the_solution_of_an_exercise_is_folded_and_so_is_every_hint(source):
    for exercise in registry.read().values():
        text = (source.pages / f"{exercise_pages.path_of(exercise)}.md").read_text("utf-8")
        solution = (exercise.folder / "solution.py").read_text("utf-8").strip()
        open_parts = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
        assert solution in text
        assert solution not in open_parts
        assert [hint for hint in exercise.hints if hint not in text or hint in open_parts] == []


def test_the_front_page_has_the_route_and_where_to_begin(source):
    text = (source.pages / "index.md").read_text("utf-8")
    assert "{" not in re.sub(r"^(:|`){3,}\{.*$", "", text, flags=re.MULTILINE)
    assert "(notebooks/route/wrapped_in_ddp.ipynb)" in text.partition("## The route")[2]
    assert "a program that hangs" in text.partition("## You come with")[2]


def test_a_notebook_to_download_installs_the_package_if_it_is_known_from_where(source):
    path = ROOT / "notebooks/all_reduce.ipynb"
    assert repository.notebook_to_download(path, "") == path.read_text("utf-8")
    text = (source.files / "notebooks/all_reduce.ipynb").read_text("utf-8")
    assert f'%pip install -q \\"torch-collectives[training] @ git+{ADDRESS}\\"' in text


def test_without_an_address_there_are_no_links_to_edit_or_to_open_in_colab():
    pytest.importorskip("sphinx", reason="needs the extra site: make site")
    from tools.site import conf

    def shown(address):
        builder = SimpleNamespace(get_relative_uri=lambda here, there: there)
        app = SimpleNamespace(
            config=SimpleNamespace(repository_address=address, language="en"),
            builder=builder,
            env=SimpleNamespace(metadata=defaultdict(dict)),
        )
        context = {}
        conf.about_page(app, "notebooks/training/shards", "", context, None)
        template = (ROOT / "tools/site/templates/lesson.html").read_text("utf-8")
        page = Environment(extensions=["jinja2.ext.i18n"])
        page.install_null_translations()
        return page.from_string(template).render(context, pathto=lambda path, _=0: path)

    assert re.findall('href="(.*?)"', shown("")) == [
        "README#try-it",
        "notebooks/training/shards.ipynb",
        "lessons/training/shards.py",
    ]
    assert re.findall('href="(.*?)"', shown(ADDRESS)) == [
        "README#try-it",
        "notebooks/training/shards.ipynb",
        "lessons/training/shards.py",
        "https://colab.research.google.com/github/somebody/collectives/blob/gh-pages/"
        "notebooks/training/shards.ipynb",
        f"{ADDRESS}/edit/main/lessons/training/shards.py",
    ]
    assert "colab" not in shown("https://example.org/collectives")


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("index", "tools/site/front.md"),
        ("README", "README.md"),
        ("docs/glossary", "docs/glossary.md"),
        ("docs/steps", ""),
        ("chapters/training", "tools/site/chapters/training.md"),
        ("exercises/calls/weighted_mean", "exercises/calls/weighted_mean/task.py"),
        ("examples/train_ddp", "examples/train_ddp.py"),
        ("genindex", ""),
    ],
)
def test_a_page_is_edited_in_its_source(page, file):
    pytest.importorskip("sphinx", reason="needs the extra site: make site")
    from tools.site import conf

    assert conf.source_of(page) == file
