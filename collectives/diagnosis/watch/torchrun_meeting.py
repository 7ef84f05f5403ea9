"""torchrun starts no rank before all machines have come: which have not."""

import json
import os
import socket
import threading
from typing import Any

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.across_nodes import connect
from collectives.recording.ending import Ending

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
        if not _may_name_machines(self.command):
            return
        args = _torchrun_arguments(self.command)
        if args is None:
            return
        from torch.distributed.run import get_rdzv_endpoint

        endpoint, machines = get_rdzv_endpoint(args), int(args.nnodes.partition(":")[0])
        if machines < 2 or ":" not in endpoint:
            return
        what = f"no rank has started: torchrun waits for {machines} machines"
        is_static = args.rdzv_backend == "static"
        try:
            host, port = endpoint.rsplit(":", 1)
            came = self._meet(host, port, args.node_rank if is_static else None)
        except RuntimeError:
            self.store = None
            silence = f"nobody answers at {endpoint}, where they meet"
            self.verdict = Verdict(Ending.SLOW, what, notes=(silence,))
            return
        if len(came) >= machines:
            self.verdict = None
            return
        option = "--node-rank {}" if is_static else ""
        here = [f"{machine} {option.format(number)}".strip() for machine, number in came]
        notes = [f"here      {', '.join(here)}"]
        if is_static:
            absent = sorted(set(range(machines)) - {number for _, number in came})
            notes.append(f"not here  {', '.join(map(option.format, absent))}")
        self.verdict = Verdict(Ending.SLOW, what, notes=tuple(notes))

    def _meet(self, host: str, port: str, number: int | None) -> list[tuple[str, int | None]]:
        """Say that this machine is here, as the node of this number; who has said so."""
        if self.store is None:
            self.store = connect(host, int(port))
            self.store.append(_MACHINES, json.dumps([socket.gethostname(), number]) + "\n")
        return sorted({tuple(json.loads(one)) for one in self.store.get(_MACHINES).splitlines()})


def _may_name_machines(command: list[str]) -> bool:
    """Whether torchrun is told that there are others: torch takes seconds to read it exactly."""
    return "PET_NNODES" in os.environ or any(word.startswith("--nn") for word in command)


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
