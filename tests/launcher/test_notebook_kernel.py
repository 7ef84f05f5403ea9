"""In a Jupyter kernel launch works, an error fits on one screen, and the Stop button ends the world
but not the kernel.
"""

import re
import threading
import time

import psutil
import pytest

SETUP = """\
import os, time
import torch
a = torch.randn(800, 800)
a = a @ a  # by now torch has threads of its own, which a fork would not survive
import torch.distributed as dist
from collectives import check, launch, run

def sums(rank, world_size, device):
    x = torch.tensor([rank])
    dist.all_reduce(x)
    check(x, torch.tensor([6]), "all_reduce")

def raises(rank, world_size, device):
    check(torch.tensor([rank]), torch.tensor([rank % 2]), "nothing")
    dist.barrier()

def dies(rank, world_size, device):
    if rank == 1:
        os._exit(3)
    dist.barrier()

def hangs(rank, world_size, device):
    if rank == 1:
        time.sleep(1000)
    dist.barrier()

run(sums)
"""
ONE_SCREEN = 24


class Kernel:
    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            kernel_name="python3", extra_arguments=["--log-level=ERROR"]
        )
        self.process = psutil.Process(self.manager.provisioner.pid)

    def run(self, code: str) -> str:
        """What a cell shows, without stderr and colours."""
        messages = []
        self.client.execute_interactive(code, timeout=100, output_hook=messages.append)
        shown = []
        for message in messages:
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                shown.append(content["text"])
            elif message["msg_type"] == "error":
                shown.append("\n".join(content["traceback"]))
        return re.sub(r"\x1b\[[\d;]*m", "", "".join(shown))

    def processes(self) -> set[int]:
        return {process.pid for process in self.process.children(recursive=True)}


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    assert "sums: proved on all 4 ranks\n" in kernel.run(SETUP)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()


FAILURES = {
    "raises": [
        "LaunchError: rank ",
        " raised Mismatch: rank ",
        'check(torch.tensor([rank]), torch.tensor([rank % 2]), "nothing")',
    ],
    "dies": [
        "LaunchError: rank 1 died: it ended its process with exit status 3 before it returned a result"
    ],
    "hangs": [
        "LaunchError: rank 1 hung: not every rank had returned after 3 s",
        "in hangs: time.sleep(1000)",
        "rank 3  ",
    ],
}


def test_a_world_that_failed_shows_which_rank_and_why_on_one_screen(kernel):
    for step, parts in FAILURES.items():  # one test: a second process would start its own kernel
        call = f"launch({step}, 4, timeout=3)"
        shown = kernel.run(call)
        assert all(part in shown for part in parts), shown
        assert f"line 1, in <module>\n    {call}" in shown
        assert len(shown.splitlines()) <= ONE_SCREEN
        assert "collectives/start.py" not in shown


def test_the_stop_button_ends_the_world_and_keeps_the_kernel(kernel):
    before, shown = kernel.processes(), []
    cell = threading.Thread(target=lambda: shown.append(kernel.run("launch(hangs, 4)")))
    cell.start()
    while len(kernel.processes() - before) < 4:
        time.sleep(0.05)
    kernel.manager.interrupt_kernel()
    cell.join(30)
    assert "KeyboardInterrupt" in shown[0]
    assert kernel.processes() == before
    assert kernel.run("run(sums)").startswith("sums: proved on all 4 ranks\n")
