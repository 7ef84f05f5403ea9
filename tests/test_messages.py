"""The messages of messages.toml are those that really come, and `diagnose --log` finds them."""

import sys
from pathlib import Path

import pytest
import torch
from processes import finished

from collectives.course import mistakes
from collectives.course.marks import mistake
from collectives.diagnosis.log import messages

TABLE = {message.name: message for message in messages.table()}

# The programs that take more than 3 seconds: those of torchrun import torch anew, and DDP imports
# torch's compiler.
SLOW = [one.name for one in TABLE.values() if one.torchrun or "DistributedData" in one.program]


def run(message, folder):
    """What the program writes into a log."""
    if message.torchrun:
        path = folder / "program.py"
        path.write_text(message.program)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        done = finished([*torchrun, str(message.ranks), path], env=message.env)
        return done.stdout + done.stderr
    outcomes, _ = mistakes.run_isolated(step(message))
    return "\n".join(outcome.text for outcome in outcomes)


def step(message):
    code = compile(message.program, "program.py", "exec")

    def small(rank, world_size, device):
        exec(code, {"__name__": "__main__"})

    def with_ddp(rank, world_size, device):
        from torch.nn.parallel import DistributedDataParallel  # noqa: F401

        small(rank, world_size, device)

    chosen = with_ddp if "DistributedDataParallel" in message.program else small
    return mistake("raises an error", ranks=message.ranks, fresh=True)(chosen)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in SLOW else [])
        for one in TABLE.values()
        if one.program
    ],
)
def test_the_program_produces_its_message(message, tmp_path, monkeypatch):
    for name, value in message.env.items():
        monkeypatch.setenv(name, value)
    text = run(message, tmp_path)
    assert message.pattern.search(text.encode()), text


@pytest.mark.parametrize(
    "message",
    [one for one in TABLE.values() if one.source.endswith(".py")],
    ids=lambda one: one.name,
)
def test_a_message_of_torchs_python_code_stands_there(message):
    source = Path(torch.__file__).parents[1] / message.source
    assert message.pattern.search(source.read_bytes())
