"""Where everything is said to be installed, a test that is skipped for want of it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.lab import available, slurm

CONFTEST = Path(__file__).with_name("conftest.py")
REASONS = {
    "lab": "A lab of machines needs nft: apt install nftables.",
    "slurm": "Slurm needs slurmd: apt install slurmd.",
    "browser": "needs Chromium or Chrome on the PATH",
    "mpi": "needs the extra collectives[mpi]",
}


@pytest.mark.parametrize("installed", [True, False], ids=["ci", "elsewhere"])
def test_a_skip_is_a_failure_where_all_is_installed(installed, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    tests = ["import pytest"]
    for name, reason in {**REASONS, "gpu": "needs a GPU"}.items():
        tests.append(f"@pytest.mark.skip(reason={reason!r})\ndef test_{name}(): pass")
    (tmp_path / "test_it.py").write_text("\n".join(tests))
    environ = {k: v for k, v in os.environ.items() if k != "COLLECTIVES_ALL_INSTALLED"}
    if installed:
        environ["COLLECTIVES_ALL_INSTALLED"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1]
    counts = "1 skipped, 4 errors" if installed else "5 skipped"
    assert (last.partition(" in ")[0], done.returncode) == (counts, int(installed)), done.stdout


def test_the_reasons_are_those_of_the_tests(monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "which", lambda name, **path: None)
    assert slurm.missing().startswith("Slurm needs ")
    if sys.platform == "linux":
        available.missing.cache_clear()
        assert available.missing().startswith("A lab of machines needs ")
        available.missing.cache_clear()
    files = "".join(file.read_text() for file in CONFTEST.parent.glob("**/*.py"))
    assert f'reason="{REASONS["browser"]}' in files
    assert files.count(f'reason="{REASONS["mpi"]}"') > 1
