"""These tests need GPUs, which `make rehearse` plays: rehearse.py. Elsewhere there are none of them."""

import os

import pytest

collect_ignore_glob = [] if "REHEARSED_GPUS" in os.environ else ["test_*.py"]


def pytest_report_header():
    return "rehearsed, not run on a GPU"


@pytest.fixture(autouse=True)
def _visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(2)`: from here on the machine has two."""
    return lambda count: monkeypatch.setenv("REHEARSED_GPUS", str(count))
