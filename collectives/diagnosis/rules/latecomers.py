"""Which live processes a missing rank may still be: nobody is ended for a slow start. Pure.

A rank that needs long before it calls torch.distributed, to import or to download something, is
only a process. But beside the ranks a program has helpers, of which none will ever be a rank. What
tells them apart is who started a process, with which variables and words, and to run what.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from collectives.recording import launchers

# A variable of a launcher that we do not know, such as WORKER_RANK.
_NAMES_A_RANK = re.compile(r"RANK|PROC_?ID|TASK_?ID|WORKER_?ID")
_FORK_SERVER = "from multiprocessing.forkserver import"


@dataclass(frozen=True)
class Process:
    """A process of the program. `parent`: who started it; 0 if that is not known.

    `environ`: its variables at its start; of one that has ended only the launchers'. `runs`: of a
    process of multiprocessing, what it runs. `is_helper`: that is a library's own. `began`: when it
    wrote that, in nanoseconds. `recorded`: it is a Python process that has said who it is. `waits`:
    it waits for other processes, as a server does. `is_command`: it is the command itself.
    """

    pid: int
    parent: int = 0
    command: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    runs: str | None = None
    is_helper: bool = False
    began: int = 0
    runs_still: bool = True
    recorded: bool = True
    waits: bool = False
    is_command: bool = False

    @property
    def attempt(self) -> int:
        text = self.environ.get(launchers.ATTEMPT, "")
        return int(text) if text.isdecimal() else 0

    @property
    def may_restart(self) -> bool:
        """Whether another attempt will follow if this one fails."""
        most = self.environ.get(launchers.MOST_ATTEMPTS, "")
        return most.isdecimal() and self.attempt < int(most)

    @property
    def has_store_of_earlier(self) -> bool:
        """Whether its store is the one in which an earlier attempt left its keys."""
        return self.attempt > 0 and self.environ.get(launchers.AGENT_STORE) == "True"

    @property
    def program(self) -> tuple[str, ...]:
        """What it runs: the script, or -m and the module, or -c and the text.

        Of a script only its name: who starts itself again may do so by an absolute path.
        """
        words = list(self.command[1:])
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[2:] if words[0] in ("-X", "-W") else words[1:]
        if words[:1] in (["-m"], ["-c"]):
            return tuple(words[:2])
        return tuple(word.rpartition("/")[2] for word in words[:1])

    def __str__(self) -> str:
        text = " ".join(self.command)
        return f"process {self.pid}: {text if len(text) <= 100 else text[:97] + '...'}"


@dataclass(frozen=True)
class Joined:
    """The ranks of a world that have come: by rank, their process, and when they joined."""

    size: int
    pids: dict[int, int]
    at: dict[int, int]
    attempt: int = 0


def latecomers(
    absent: Iterable[int], processes: dict[int, Process], joined: Joined, called: Collection[int]
) -> dict[int, list[Process]]:
    """By absent rank, the processes that it may be. `called`: those that are ranks already."""
    family = _Family(processes, joined)
    above = {pid for rank in joined.pids.values() for pid in family.above(rank)}
    free = [
        process
        for process in processes.values()
        if process.runs_still
        and process.attempt == joined.attempt
        and process.pid not in above
        and process.pid not in called
    ]
    candidates = {
        rank: [process for process in free if rank in family.numbers(process)] for rank in absent
    }
    if not family.is_numbered():
        for rank in candidates:
            candidates[rank] = candidates[rank] or [
                process for process in free if family.may_be(process, rank)
            ]
    # Who starts the other ranks, as Lightning does, numbers them and not itself.
    if candidates.get(0) == [] and (starter := family.first_rank(above - set(called))):
        candidates[0] = [starter]
    return {rank: ones for rank, ones in candidates.items() if ones}


def on_other_machines(
    absent: Iterable[int], here: Collection[int], processes: dict[int, Process], joined: Joined
) -> set[int]:
    """The absent ranks that the launcher started on other machines.

    `here`: those of the absent ranks that have, or had, a process on this one. Where the launcher
    does not say how many ranks it started here, as Slurm does not, nobody knows: then none.
    """
    for pid in joined.pids.values():
        environ = processes[pid].environ if pid in processes else {}
        for _, size, _, *local_size in launchers.ALL:
            texts = [environ.get(name, "") for name in (size, *local_size)]
            is_this_world = len(texts) == 2 and texts[0] == str(joined.size)
            if is_this_world and texts[1] == str(len(joined.pids) + len(here)):
                return set(absent) - set(here)
    return set()


def ended(rank: int, processes: dict[int, Process], joined: Joined) -> Process | None:
    """The process that carried this rank's number, and has ended."""
    family = _Family(processes, joined)
    for process in processes.values():
        is_of_attempt = process.attempt == joined.attempt and not process.runs_still
        if is_of_attempt and rank in family.numbers(process):
            return process
    return None


class _Family:
    """The processes of a program, and which of them the ranks are that have come."""

    def __init__(self, processes: dict[int, Process], joined: Joined):
        self.processes = processes
        self.joined = joined
        self.ranks = [processes[pid] for pid in joined.pids.values() if pid in processes]
        self.joined_at = {pid: joined.at.get(rank, 0) for rank, pid in joined.pids.items()}

    def above(self, pid: int) -> list[int]:
        """Whoever started it, and so on."""
        found: list[int] = []
        while (process := self.processes.get(pid)) and process.parent not in (*found, 0):
            pid = process.parent
            found.append(pid)
        return found

    def _own(self, process: Process, name: str) -> str | None:
        """The value of a variable that it has not just inherited."""
        value, parent = process.environ.get(name), self.processes.get(process.parent)
        return None if parent is not None and parent.environ.get(name) == value else value

    def numbers(self, process: Process) -> set[int]:
        """The ranks that its launcher may have meant: mostly one.

        subtle: below a process that is rank 0 of Slurm, all have SLURM_PROCID=0.
        """
        parent = self.processes.get(process.parent)
        # subtle: an orphan whose parent ended at once never knew it.
        if process.runs is not None or (parent is None and not process.is_command):
            return set()  # nobody knows what it inherited
        if parent is not None and parent.runs is not None:
            return set()
        for position in (0, 2):  # the rank, or else the rank on this machine
            names = (names[position] for names in launchers.ALL)
            texts = [self._own(process, name) for name in names]
            ranks = {int(text) for text in texts if text and text.isdecimal()}
            if ranks and position and process.environ.get("NODE_RANK", "0") != "0":
                return set(range(self.joined.size))
            if ranks:
                return ranks
        return set()

    def is_numbered(self) -> bool:
        """Whether a launcher has numbered the ranks: then each of them has a number."""
        for rank, pid in self.joined.pids.items():
            process = self.processes.get(pid)
            if process is None or process.runs is not None:
                continue
            environ = process.environ
            for number, size, *_ in launchers.ALL:
                if environ.get(number) == str(rank) and environ.get(size) == str(self.joined.size):
                    return True
        return False

    def may_be(self, process: Process, rank: int) -> bool:
        """Whether a process without the number of a rank may become this one."""
        if self.numbers(process):
            return False
        starter = self._starter(process)
        is_sibling = any(starter == peer.parent for peer in self.ranks)
        if process.runs is not None or self._will_run(process):
            if process.runs is not None and process.runs in {peer.runs for peer in self.ranks}:
                return True
            # Ranks that run one function are all alike, but for rank 0, which may be their master.
            if rank and len(self.ranks) > 1 and len({peer.runs for peer in self.ranks}) == 1:
                return False
            is_early = process.began < self.joined_at.get(starter, 0)
            return not (process.is_helper or process.waits) and (is_sibling or is_early)
        if process.program not in {peer.program for peer in self.ranks}:
            return False
        hints = self._hints(process)
        return rank in hints if hints else is_sibling

    def _will_run(self, process: Process) -> bool:
        """Whether multiprocessing is just starting it: it imports the program first."""
        is_spawned = "--multiprocessing-fork" in process.command
        return is_spawned or self._starter(process) != process.parent

    def _starter(self, process: Process) -> int:
        """Who started it: not the fork server, which does as it is told."""
        parent = self.processes.get(process.parent)
        is_fork = parent is not None and parent.command == process.command
        if parent is not None and is_fork and _FORK_SERVER in " ".join(process.command):
            return parent.parent
        return process.parent

    def _hints(self, process: Process) -> set[int]:
        """Numbers among the words and variables that its parent does not have."""
        parent = self.processes.get(process.parent, Process(0))
        words = [word for word in process.command if word not in parent.command]
        texts = [word.rpartition("=")[2] for word in words]
        names = filter(_NAMES_A_RANK.search, process.environ)
        texts += [self._own(process, name) or "" for name in names]
        return {int(text) for text in texts if text.isdecimal()}

    def first_rank(self, above: Iterable[int]) -> Process | None:
        """The process that starts the other ranks, and is rank 0 itself, if there is one."""
        for process in map(self.processes.get, above):
            if process is None or not process.runs_still:
                continue
            started = [one for one in self.processes.values() if one.parent == process.pid]
            ranks = [one for one in started if one in self.ranks]
            alike = {one.runs for one in ranks if one.runs is not None}
            if not ranks or not (alike or process.program == ranks[0].program):
                continue
            if any(0 in self.numbers(one) | self._hints(one) for one in started if one.recorded):
                continue
            if len([one for one in started if one.runs in alike]) < self.joined.size:
                return process
        return None
