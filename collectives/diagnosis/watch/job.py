"""All worlds that a program under diagnosis makes, found by the files that its processes write."""

import contextlib
import dataclasses
import itertools
import json
from pathlib import Path

from collectives.diagnosis.rules.missing import never_met
from collectives.diagnosis.rules.rank_state import is_lost
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import ANSWER
from collectives.diagnosis.watch.across_nodes import NodeExchange
from collectives.diagnosis.watch.job_world import Claim, JobWorld
from collectives.diagnosis.watch.world import RankProcess, sleep
from collectives.recording import call_log, stack
from collectives.recording.call import RiskyCall

NOT_DISTRIBUTED = Verdict(
    "not-distributed", "no process that could be watched called torch.distributed"
)
OK_AS_SEEN = Verdict("ok", "all that was seen fitted")


class Job:
    """All worlds that a program makes, one after another or at once.

    `worlds`: by a number for the place where the ranks meet, and by how many worlds met there
    before. `waiting`: the processes of which it is not known yet whether they are ranks.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.known: set[Path] = set()
        self.waiting: list[RankProcess] = []
        self.worlds: dict[tuple[int, int], JobWorld] = {}
        self.nodes = NodeExchange()

    def ranks(self) -> list[RankProcess]:
        return [rank for world in self.worlds.values() for rank in world.ranks.values()]

    def poll(self) -> bool:
        """Read what is new; whether anything has moved."""
        self._open_new_logs()
        for world in self.worlds.values():
            world.remove_moved()
        waiting, self.waiting = self.waiting, []
        began = {process: (process.log.head() or {"began": 0})["began"] for process in waiting}
        for process in sorted(waiting, key=began.__getitem__):
            head = process.log.head()
            if head is not None and head["rank"] >= 0:
                self._assign(process, head)
            elif head is None or head["rank"] != call_log.MOVED:
                self.waiting.append(process)
        return sum(world.poll() for world in self.worlds.values()) > 0

    def _open_new_logs(self) -> None:
        for path in set(self.folder.glob("*.calls") if self.folder else ()) - self.known:
            # One whose writer is not done with its beginning is opened the next time.
            with contextlib.suppress(ValueError, OSError), open(path, "rb+") as file:
                self.waiting.append(RankProcess(file, self.folder))
                self.known.add(path)

    def _assign(self, process: RankProcess, head: dict) -> None:
        """Make it a rank of a world, or let it wait until it is clear whether it is one."""
        world = self._world_of(head)
        if world.claim(head) is Claim.OPEN:
            self.waiting.append(process)
            return
        before = world.ranks.get(head["rank"])
        world.ranks[head["rank"]] = process
        if before is not None:
            self.waiting.append(before)

    def _world_of(self, head: dict) -> JobWorld:
        """The first world at its meeting place that does not refuse it; if need be, a new one."""
        for generation in itertools.count():
            world = self.worlds.setdefault((head["world"], generation), JobWorld())
            if world.claim(head) is not Claim.REFUSED:
                break
            other = world.ranks.get(head["rank"])
            if other is not None and other.gone is None and world.absent():
                world.duplicates.add(head["rank"])
        return world

    def world_on_several_nodes(self) -> JobWorld | None:
        """The world of which other nodes have a part; connects to its store."""
        for (_, generation), world in self.worlds.items():
            if not world.absent():
                continue
            if self.nodes.opening is None:
                answers = (rank.read(call_log.ANSWER) for rank in world.ranks.values())
                stores = (answer.get("store") for answer in answers)
                if (store := next(filter(None, stores), None)) is not None:
                    self.nodes.open(store, f"{generation}.{min(world.ranks)}")
            return world if self.nodes.opening is not None else None
        return None

    def find_machines(self, world: JobWorld) -> bool:
        """Whether the machines of all ranks are known by now, as far as they will be."""
        if world.has_begun:
            self.nodes.find_machines(world.ranks)
            world.machines = self.nodes.machines
        return len(world.machines) == world.size

    def exchange(self, world: JobWorld, send: bool) -> bool:
        """Receive what other nodes sent of their ranks, and send ours; whether those went on."""
        moved = self.nodes.exchange(world.to_json, send)
        world.update_elsewhere(self.nodes.others, self.nodes.lost)
        return moved

    def ask(self) -> None:
        for world in self.worlds.values():
            world.ask()
        for process in self._not_joined():
            process.log.ask(process.head()["asked"] + 1)

    def ask_and_poll(self) -> None:
        """Read what every process calls, and let it answer where it is just now."""
        self.poll()
        self.ask()
        self.sleep(ANSWER)

    def sleep(self, seconds: float) -> None:
        sleep(seconds, self.ranks())

    def _not_joined(self) -> list[RankProcess]:
        """The processes that may be ranks and have not joined a world yet, oldest first.

        Not a process that started a rank, nor one that a rank started.
        """
        ranks = [rank.head() for rank in self.ranks()]
        pids, parents = {head["pid"] for head in ranks}, {head["parent"] for head in ranks}
        found = []
        for process in self.waiting:
            head = process.log.head()
            if head is None or head["rank"] >= 0:
                continue
            if head["pid"] not in parents and head["parent"] not in pids:
                found.append(process)
        return found

    def _expect(self, stalled: bool) -> None:
        """If as many processes have not joined as one world lacks ranks, these will be the ranks.

        Other processes, as a server of multiprocessing, run nothing of the program's own.
        """
        lacking = [one for one in self.worlds.values() if one.absent() and not one.has_begun]
        for world in lacking:
            processes = self._not_joined() if stalled and len(lacking) == 1 else []
            for process in processes:
                process.look()
            processes = [one for one in processes if not stack.is_library(one.state().where[0])]
            absent = world.absent()
            if len(processes) != len(absent):
                processes = []
            world.not_joined = dict(zip(absent, processes, strict=False))

    def has_new_records(self) -> bool:
        """Whether torch's own record of any rank has grown since the last time."""
        return sum(world.has_new_records() for world in self.worlds.values()) > 0

    def trust_launcher(self) -> None:
        """It reports success, so its ranks ended well.

        That means nothing if a rank has raised: such a launcher does not look how its ranks end.
        """
        for world in self.worlds.values():
            raised = [rank.read(call_log.RAISED) for rank in world.ranks.values()]
            if all(one["is_guess"] for one in raised if one):
                for rank in world.ranks.values():
                    rank.trust_launcher()

    def are_gone(self) -> bool:
        """Whether no rank runs any more."""
        return all(world.are_gone() for world in self.worlds.values())

    def verdict(self, stalled: bool) -> Verdict:
        """The verdict on the first world that has a fault.

        A world that failed is forgotten once its launcher has started the next.
        """
        if stalled and (verdict := self._never_met()) is not None:
            return verdict
        self._expect(stalled)
        called = {key: world for key, world in self.worlds.items() if world.matching.last}
        judged, verdicts = [], []
        for (place, generation), world in (called or self.worlds).items():
            verdict = self._verdict(world, stalled)
            is_over = (place, generation + 1) in self.worlds
            if not (is_over and verdict.kind in ("raised", "died")):
                judged.append(world)
                verdicts.append(verdict)
        if not verdicts:
            return NOT_DISTRIBUTED
        if (bad := next((one for one in verdicts if one.kind != "ok"), None)) is not None:
            return bad
        if OK_AS_SEEN in verdicts:
            return OK_AS_SEEN
        if len(verdicts) == 1:
            return verdicts[0]
        count = sum(world.matching.matched for world in judged)
        what = f"{len(verdicts)} worlds: all {count} collectives and messages fitted"
        return dataclasses.replace(verdicts[-1], what=what)

    def _never_met(self) -> Verdict | None:
        """Nothing moves: whether ranks wait for others that look for them elsewhere."""
        parts = [
            (place, world)
            for (place, _), world in self.worlds.items()
            if world.absent() or world.joining()
        ]
        if not any(world.joining() for _, world in parts):
            return None
        if any(world.has_ended() for _, world in parts):
            return None
        return never_met([world.as_joining(place) for place, world in parts])

    def _verdict(self, world: JobWorld, stalled: bool) -> Verdict:
        """If a rank could not be watched, a call that seems to be missing may be its call."""
        verdict, unwatched = world.judged(stalled), {path.stem for path in self._unwatched()}
        pids = {str(rank.head()["pid"]) for rank in world.ranks.values()}
        is_partial = unwatched and (world.absent() or pids & unwatched)
        if is_partial and verdict.kind in ("hang", "mismatch", "slow"):
            return OK_AS_SEEN
        return verdict

    def noticed(self) -> list[RiskyCall]:
        return [one for rank in self.ranks() for one in rank.log.noticed()]

    def notes(self) -> list[str]:
        """What the report cannot speak of."""
        notes = []
        for world in self.worlds.values():
            for number, rank in world.ranks.items():
                if rank.log.lost:
                    lost, since = rank.log.lost, rank.log.since
                    notes.append(
                        f"rank {number}: {lost} calls went by unseen; "
                        f"this speaks of its calls from #{since} on"
                    )
        for path in self._unwatched():
            notes.append(f"process {path.stem} could not be watched: {path.read_text()}")
        return notes

    def _unwatched(self) -> list[Path]:
        return list(self.folder.glob("*.unwatched")) if self.folder else []

    def first_raised(self) -> dict | None:
        """The first exception that ended a process; one that lost others counts last."""
        found = []
        for path in self.folder.glob("*.raised") if self.folder else ():
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return min(found, key=lambda one: (is_lost(one["text"]), one["at"]), default=None)
