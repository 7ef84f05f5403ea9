"""torchrun starts no rank before all machines have come: which have not."""

import os
import socket
import threading
from typing import Any

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.across_nodes import connect

_MACHINES = "collectives/diagnose/waiting machines"


class TorchrunMeeting:
    """The machines whose torchrun waits for the others. Each says so in the store where they meet.

    `command`: that of this machine, with a torchrun in it or without. `verdict`: which have come;
    None if that is not known, or nobody waits for others.
    """

    def __init__(self, command: list[str]):
        self.command = command
        self.store: Any = None
        self.asking: threading.Thread | None = None
        self.verdict: Verdict | None = None

    def ask(self) -> None:
        """Find out, in a thread: this imports torch, and the store may not answer."""
        if self.asking is None or not self.asking.is_alive():
            self.asking = threading.Thread(target=self._ask, daemon=True)
            self.asking.start()

    def close(self) -> None:
        """Wait for the thread: a signal ends a process that exits meanwhile."""
        if self.asking is not None:
            self.asking.join()

    def _ask(self) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        args = _torchrun_arguments(self.command)
        if args is None:
            return
        from torch.distributed.run import get_rdzv_endpoint

        endpoint, machines = get_rdzv_endpoint(args), int(args.nnodes.partition(":")[0])
        if machines < 2 or ":" not in endpoint:
            return
        what = f"no rank has started: torchrun waits for {machines} machines"
        place = f"--node-rank {args.node_rank}" if args.rdzv_backend == "static" else ""
        try:
            host, port = endpoint.rsplit(":", 1)
            came = self._meet(host, port, f"{socket.gethostname()} {place}".strip())
        except RuntimeError:
            self.store = None
            silence = f"nobody answers at {endpoint}, where they meet"
            self.verdict = Verdict("slow", what, notes=(silence,))
            return
        if len(came) >= machines:
            self.verdict = None
            return
        notes = [f"here      {', '.join(came)}"]
        if place:
            ranks = [f"--node-rank {number}" for number in range(machines)]
            absent = [one for one in ranks if not any(who.endswith(f" {one}") for who in came)]
            notes.append(f"not here  {', '.join(absent)}")
        self.verdict = Verdict("slow", what, notes=tuple(notes))

    def _meet(self, host: str, port: str, name: str) -> list[str]:
        """Say that this machine is here; who has said so."""
        if self.store is None:
            self.store = connect(host, int(port))
            self.store.append(_MACHINES, f"{name}\n")
        return sorted(set(self.store.get(_MACHINES).decode().splitlines()))


def _torchrun_arguments(command: list[str]):
    """As torchrun reads them; None if the command has no torchrun, or it is called wrongly."""
    from torch.distributed.run import get_args_parser

    names = [os.path.basename(word) for word in command]
    for name in ("torchrun", "torch.distributed.run"):
        if name in names:
            try:
                return get_args_parser().parse_args(command[names.index(name) + 1 :])
            except SystemExit:
                return None
    return None
