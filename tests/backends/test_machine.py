"""What the facts say of torch; the command that prints them is tried in tests/cli."""

import pytest
import torch

from collectives.backends import machine


@pytest.mark.parametrize(
    ("cuda", "hip", "said"),
    [(None, None, "CPU build"), ("13.0", None, "CUDA 13.0 build"), (None, "7.0", "ROCm 7.0 build")],
)
def test_the_build_of_torch_is_named(cuda, hip, said, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert dict(machine.facts())["torch"] == f"{torch.__version__} ({said})"
