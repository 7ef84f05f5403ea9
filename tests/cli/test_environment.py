"""`collectives env` names what a bug report needs, and changes nothing."""

import platform
import sys

import pytest
import torch
from typer.testing import CliRunner

from collectives import launch
from collectives.backends import availability, machine
from collectives.cli import app


def test_it_prints_what_a_bug_report_needs_each_in_one_line(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("UNRELATED", "secret")
    printed = CliRunner().invoke(app, ["env"]).stdout
    facts = dict(machine.facts())
    assert printed == "".join(f"{name:<12} {value}\n" for name, value in facts.items())
    needed = {"torch", "NCCL", "CUDA", "GPUs", "cores", "Python", "platform", "MPI", "backends"}
    assert needed <= set(facts)
    assert all(value and "\n" not in value for value in facts.values())
    assert facts["torch"].startswith(f"{torch.__version__} (")
    assert facts["GPUs"].startswith(f"{availability.gpu_count()} visible")
    assert facts["Python"].startswith(platform.python_version())
    assert "NCCL_DEBUG=INFO" in facts["settings"]
    assert "secret" not in printed
    assert "gloo on cpu" in facts["backends"]
    for name in availability.BACKENDS:
        assert name in facts["backends"] or name in facts["not here"], name


def test_ranks_share_the_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(availability, "gpu_count", lambda: 2)
    devices = [availability.rank_device("cuda", local_rank).index for local_rank in range(5)]
    assert devices == [0, 1, 0, 1, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="its stand-in is a shell script")
def test_the_driver_names_the_gpus_without_torch(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 570.1'; echo 'NVIDIA H100, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda name, **path: str(tool))
    monkeypatch.setattr(availability, "gpu_count", lambda: 2)
    assert dict(machine.facts())["GPUs"] == "2 visible (NVIDIA H100, driver 570.1)"


def test_describing_starts_neither_cuda_nor_mpi():
    def started(*_):
        for module in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
            del sys.modules[module]
        machine.facts()
        return torch.cuda.is_initialized(), "mpi4py" in sys.modules

    assert launch(started, 1, backend="gloo") == [(False, False)]
