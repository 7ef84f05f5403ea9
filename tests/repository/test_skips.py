"""Where everything is said to be installed, a test that is skipped for want of it fails."""

import os
import shutil
import subprocess
import sys

import pytest
from browser import needs_browser
from our_backends import needs_mpi
from repository import ROOT

from collectives.lab import available, slurm


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a lab lacks more than a command")
@pytest.mark.parametrize("installed", [True, False], ids=["ci", "elsewhere"])
def test_a_skip_is_a_failure_where_all_is_installed(installed, tmp_path, monkeypatch):
    with monkeypatch.context() as nothing_is_installed:
        nothing_is_installed.setattr(shutil, "which", lambda name, **path: None)
        available.missing.cache_clear()
        reasons = [available.missing(), slurm.missing(), "needs a GPU"]
    available.missing.cache_clear()
    reasons += [mark.kwargs["reason"] for mark in (needs_browser, needs_mpi)]
    tests = [
        f"@pytest.mark.skip(reason={reason!r})\ndef test_{number}(): pass"
        for number, reason in enumerate(reasons)
    ]
    (tmp_path / "test_it.py").write_text("\n".join(["import pytest", *tests]))
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    environ = {k: v for k, v in os.environ.items() if k != "COLLECTIVES_ALL_INSTALLED"}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path)],
        cwd=tmp_path,
        env=environ | ({"COLLECTIVES_ALL_INSTALLED": "1"} if installed else {}),
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1]
    counts = "1 skipped, 4 errors" if installed else "5 skipped"
    assert (last.partition(" in ")[0], done.returncode) == (counts, int(installed)), done.stdout
