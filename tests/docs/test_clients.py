"""The programs of tools/clients, whose table stands in docs/diagnosis.md."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from repository import ROOT


@pytest.mark.parametrize(("statuses", "status"), [([0, 0], 0), ([0, 1], 1), ([0, -9], 1)])
def test_a_replica_group_that_was_killed_has_failed(statuses, status, monkeypatch):
    for name in "torchft", "torchft.coordination":
        monkeypatch.setitem(sys.modules, name, MagicMock())
    file = ROOT / "tools" / "clients" / "with_torchft.py"
    spec = importlib.util.spec_from_file_location("with_torchft", file)
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    lighthouse = SimpleNamespace(address=lambda: "http://nowhere")
    monkeypatch.setattr(client, "LighthouseServer", lambda **_: lighthouse)
    groups = iter(statuses)
    waits = lambda *_, **__: SimpleNamespace(wait=lambda: next(groups))  # noqa: E731
    monkeypatch.setattr(subprocess, "Popen", waits)
    assert client.start("healthy") == status
