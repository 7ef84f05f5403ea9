"""Twenty faults that the CPU does not mind, each planted, and what is said of it on played GPUs."""

import functools
import tomllib
from pathlib import Path

from planted import Planted, by_any_error, by_proof, by_tests, unnoticed
from repository import ROOT

ROWS = tomllib.loads(Path(__file__).with_name("planted_gpu_faults.toml").read_text())["fault"]


def planted(row):
    return Planted(ROOT / row["file"], row["old"], row["new"], row["says"], row.get("function", ""))


IN_LESSONS = [row for row in ROWS if row["file"].startswith("lessons/")]
ELSEWHERE = [row for row in ROWS if row not in IN_LESSONS]


def test_faults_of_lessons_are_noticed_on_the_gpus(gpus):
    gpus(2)
    tell = functools.partial(by_any_error, timeout=100.0, ranks=2, backend="nccl", device="cuda")
    missed = unnoticed([planted(row) for row in IN_LESSONS], tell)
    assert {fault.old for fault in missed} == {
        row["old"] for row in IN_LESSONS if "green_because" in row
    }


def test_the_cpu_does_not_mind_them():
    harmless = [row for row in IN_LESSONS if "on_the_cpu" not in row]
    said = by_proof([planted(row) for row in harmless])
    assert {row["what"]: text for row, text in zip(harmless, said, strict=True) if text} == {}


def test_faults_of_the_package_make_a_test_fail():
    faults = [planted(row) for row in ELSEWHERE]
    tests = [f"tests/rehearsal/{row['test']}" for row in ELSEWHERE]
    missed = unnoticed(faults, functools.partial(by_tests, tests, timeout=300.0))
    assert {fault.old: words for fault, words in missed.items()} == {}
