"""PyTorch's own tests run on a backend: a few on gloo, and they fail where they should."""

import re

import pytest
import pytorch_suite
from processes import finished
from repository import ROOT, SUPPORT

from collectives import LaunchError
from collectives.recording.ending import Ending


def ask(*names: str, options: str = ""):
    ids = " ".join(f"tests/verify/pytorch_suite.py::test_upstream[{name}]" for name in names)
    command = f"python -m pytest -q -p no:cacheprovider -W ignore {options} {ids}"
    return finished(command, env={"PYTHONPATH": f"{ROOT}:{SUPPORT}"}, cwd=ROOT)


@pytest.mark.weekly
def test_a_few_of_torchs_tests_pass_on_gloo():
    done = ask(
        "test_all_reduce_sum",
        "test_gather_group",
        "test_send_recv_any_source",
        "test_all_gather_object_subgroup",
        "test_all_to_all",
    )
    assert (done.returncode, re.findall(r"\d+ \w+(?=[,\s])", done.stdout.splitlines()[-1])) == (
        0,
        ["4 passed", "1 xfailed"],
    ), done.stdout


@pytest.mark.weekly
def test_a_backend_that_does_nothing_is_found_out():
    options = "--backend lazy --import lazy_backend"
    done = ask("test_get_rank", "test_broadcast", options=options)
    assert (done.returncode, "1 failed, 1 passed" in done.stdout) == (1, True), done.stdout
    assert re.search(r"FAILED .*\[test_broadcast\]", done.stdout)
    assert "raised AssertionError" in done.stdout
    assert "_test_broadcast_helper" in done.stdout


KNOWN = {
    "backends": ["gloo"],
    "tests": ["test_known*"],
    "error": "no such",
    "reason": "it has none",
}
AS_KNOWN, OTHERWISE = (
    LaunchError(text, rank=1, kind=Ending.RAISED) for text in ("no such", "another")
)
VERDICTS = [
    ("test_known_1", "gloo", AS_KNOWN, pytest.xfail.Exception, "it has none"),
    ("test_known_1", "gloo", OTHERWISE, pytest.fail.Exception, "not with the known error"),
    ("test_known_1", "gloo", None, pytest.fail.Exception, "says that it fails on gloo"),
    ("test_known_1", "mpi", AS_KNOWN, LaunchError, "no such"),
    ("test_other", "gloo", AS_KNOWN, LaunchError, "no such"),
]


def test_only_a_known_failure_is_forgiven_and_only_as_it_is_known(monkeypatch):
    monkeypatch.setitem(pytorch_suite.REASONS, "fails", [KNOWN])
    for name, backend, failure, outcome, words in VERDICTS:
        with pytest.raises(outcome, match=words):
            pytorch_suite.judge(name, backend, failure)


def test_a_skip_of_torchs_own_is_accepted_for_a_stated_reason_alone():
    assert pytorch_suite.left_out("Need at least 2 CUDA devices") == "asks for GPUs"
    assert pytorch_suite.left_out("Skipped due to small world size.") is None
