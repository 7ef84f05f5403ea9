"""What a release says of itself is one thing in all files, and a commit is checked as CI checks it."""

import re
import tomllib

import yaml
from repository import ROOT

from collectives.course import files


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


PROJECT = tomllib.loads(text("pyproject.toml"))["project"]


def test_the_version_is_one():
    assert yaml.safe_load(text("CITATION.cff"))["version"] == PROJECT["version"]
    assert (
        re.search(r"^## \[(\d[^]]*)\]", text("CHANGELOG.md"), re.MULTILINE)[1]
        == (PROJECT["version"])
    )


def test_the_name_that_one_installs_is_the_one_that_the_readme_and_the_workflow_say():
    assert f"pip install '{PROJECT['name']}[training]'" in text("README.md")
    assert f"trusted publisher of {PROJECT['name']}" in " ".join(
        text(".github/workflows/release.yml").replace("#", "").split()
    )


def test_the_extras_name_this_distribution_only():
    named = re.findall(r'"([\w-]+)\[', str(PROJECT["optional-dependencies"]).replace("'", '"'))
    assert set(named) == {PROJECT["name"]}


def test_a_commit_is_checked_by_what_make_lint_runs():
    (hooks,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert [hook["entry"] for hook in hooks["hooks"]] == ["make lint"]


def test_workflows_that_nobody_has_run_say_so_and_end_within_an_hour():
    release = yaml.safe_load(text(".github/workflows/release.yml"))
    assert text(".github/workflows/release.yml").startswith("# Untried")
    assert all(job["timeout-minutes"] <= 60 for job in release["jobs"].values())


def test_the_lessons_that_workflows_and_changelog_run_exist():
    """They moved once."""
    texts = [file.read_text("utf-8") for file in (ROOT / ".github/workflows").glob("*.yml")]
    commands = re.findall(r'collectives"? run ([^`\n]+)', "\n".join([*texts, text("CHANGELOG.md")]))
    names = [word for command in commands for word in command.split() if word[0] != "-"]
    assert len(names) > 5
    assert files.choose(names, every=False)
