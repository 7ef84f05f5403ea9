"""`describe` names what a bug report needs, and changes nothing."""

import multiprocessing
import platform
import subprocess
import sys

import pytest
import torch

from collectives.backends import availability, machine


@pytest.fixture(scope="module")
def facts() -> dict[str, str]:
    return dict(machine.facts())


def test_it_names_what_a_bug_report_needs_each_in_one_line(facts):
    needed = {"torch", "NCCL", "CUDA", "GPUs", "cores", "Python", "platform", "MPI", "backends"}
    assert needed <= set(facts)
    assert len(facts) == len(machine.facts())
    assert all(isinstance(value, str) and value and "\n" not in value for value in facts.values())
    kind = "CUDA" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    assert facts["torch"].startswith(f"{torch.__version__} ({kind}")
    assert facts["GPUs"].startswith(f"{availability.gpu_count()} visible")
    assert facts["cores"].endswith(f"of {multiprocessing.cpu_count()} usable")
    assert facts["Python"].startswith(platform.python_version())


def test_every_backend_either_works_or_says_why_not(facts):
    for name in availability.BACKENDS:
        assert name in facts["backends"] or name in facts["not here"], name
    assert "gloo on cpu" in facts["backends"]


def test_ranks_share_the_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(availability, "gpu_count", lambda: 2)
    devices = [availability.rank_device("cuda", local_rank).index for local_rank in range(5)]
    assert devices == [0, 1, 0, 1, 0]
    assert availability.rank_device("cpu", 3) == torch.device("cpu")


def test_only_settings_that_concern_a_backend_are_listed(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("UNRELATED", "secret")
    settings = dict(machine.facts())["settings"]
    assert "NCCL_DEBUG=INFO" in settings
    assert "secret" not in settings


@pytest.mark.skipif(sys.platform == "win32", reason="its stand-in is a shell script")
def test_the_driver_names_the_gpus_without_torch(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 570.1'; echo 'NVIDIA H100, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda name: str(tool))
    assert machine._gpu_names() == "NVIDIA H100, driver 570.1"


def test_describing_starts_neither_cuda_nor_mpi():
    code = (
        "import sys, torch; from collectives.backends.machine import facts; facts(); "
        "print(torch.cuda.is_initialized(), 'mpi4py' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.split() == ["False", "False"], answer.stderr
