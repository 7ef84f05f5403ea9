"""Where there can be no lab, or not the one that was asked for, a sentence says why."""

import shutil
import sys
import types

import pytest
from machines import needs_a_lab
from processes import finished
from typer.testing import CliRunner

from collectives import Lab
from collectives.cli import app
from collectives.lab import available


@pytest.fixture
def asked_anew():
    available.missing.cache_clear()
    yield
    available.missing.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_another_system_has_no_namespaces(monkeypatch):
    monkeypatch.setattr(available, "sys", types.SimpleNamespace(platform="darwin"))
    done = CliRunner().invoke(app, ["lab", "2", "--", "true"])
    assert (done.exit_code, done.stderr) == (
        3,
        "collectives lab: A lab of machines needs the namespaces of Linux. Without a lab, "
        "several machines can be several torchruns here, all on 127.0.0.1.\n",
    )


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.skipif(sys.platform != "linux", reason="the first thing that is missing is Linux")
def test_a_missing_command_is_named_with_its_package(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **path: None if name == "nft" else which(name, **path)
    )
    assert available.missing().startswith("A lab of machines needs nft: apt install nftables.")


@needs_a_lab
@pytest.mark.parametrize("limit", ["max_net_namespaces", "max_pid_namespaces"])
def test_a_limit_of_namespaces_is_named(limit):
    """It is set in a user namespace of the test's own: nobody else's limit changes."""
    program = "from collectives.lab import available; print(available.missing())"
    script = f'echo 0 > /proc/sys/user/{limit}; exec "$0" -c "$1"'
    done = finished(["unshare", "-Ur", "sh", "-c", script, sys.executable, program])
    assert "No space left on device" in done.stdout
    assert "see sysctl user" in done.stdout


@pytest.mark.parametrize(
    ("machines", "options", "says"),
    [
        (0, {}, "0 machines: a lab has 1 to 64."),
        (2, {"rate": "200"}, "rate='200' is not understood: write a number and a unit"),
        (2, {"rate": "0mbit"}, "rate='0mbit' is not understood"),
        (2, {"delay": "2 m"}, r"\(us, ms, s\), as in 2ms."),
        (2, {"loss": "100%"}, "loss='100%': nothing would arrive."),
    ],
    ids=["machines", "rate", "zero", "delay", "loss"],
)
def test_what_no_lab_can_have_is_refused(machines, options, says):
    with pytest.raises(ValueError, match=says):
        Lab(machines, **options)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["2"], "write a command after --, or --shell K."),
        (["2", "--shell", "2"], "--shell 2: the machines are 0 to 1, and login."),
    ],
    ids=["nothing", "shell"],
)
def test_a_command_that_says_too_little_is_refused(words, says):
    done = CliRunner().invoke(app, ["lab", *words])
    assert (done.exit_code, done.stderr) == (2, f"collectives lab: {says}\n")
