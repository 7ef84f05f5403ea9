"""All worlds that a program under diagnosis makes, found by the files that its processes write."""

import contextlib
import dataclasses
import itertools
import json
import time
from pathlib import Path

from collectives.diagnosis.rules.latecomers import Process
from collectives.diagnosis.rules.missing import never_met
from collectives.diagnosis.rules.report import location
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import ANSWER
from collectives.diagnosis.watch.across_nodes import NodeExchange
from collectives.diagnosis.watch.job_world import Admission, JobWorld
from collectives.diagnosis.watch.process_table import ProcessTable
from collectives.diagnosis.watch.world import RankProcess, sleep
from collectives.recording import call_log, launchers
from collectives.recording.call import Call, RiskyCall
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import is_lost

NOT_DISTRIBUTED = Verdict(
    Ending.NOT_DISTRIBUTED, "no process that could be watched called torch.distributed"
)
# docs/machines.md shows the mistake and its cure.
KEEPS_STORE = (
    "torchrun kept the store of the attempt before, where ranks find addresses of the dead: "
    "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and meet by --standalone or --rdzv-backend c10d"
)
OK_AS_SEEN = Verdict(Ending.OK, "all that was seen fitted")

_TICK_NS = 50_000_000


class Job:
    """All worlds that a program makes, one after another or at once.

    `worlds`: by the attempt of an elastic job, a number for the place where the ranks meet, and how
    many worlds met there before. `waiting`: the processes of which it is not known yet whether they
    are ranks. `attempts`: the verdicts on the attempts after which the ranks were started again.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.known: set[Path] = set()
        self.changed = 0  # when a file came into the folder
        self.waiting: list[RankProcess] = []
        self.worlds: dict[tuple[int, int, int], JobWorld] = {}
        self.attempts: list[Verdict] = []
        self.table = ProcessTable(folder)
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
            if head is not None and head["rank"] >= 0 and self._is_rank(head):
                self._assign(process, head)
            elif head is None or head["rank"] != call_log.MOVED:
                self.waiting.append(process)
        return sum(world.poll() for world in self.worlds.values()) > 0

    def _is_rank(self, head: dict) -> bool:
        """Not as long as it has only inherited the number of its parent, and has called nothing."""
        return head["count"] > 0 or not self.table.inherits_rank(head["pid"])

    def _open_new_logs(self) -> None:
        if self.folder is None:
            return
        changed = self.folder.stat().st_mtime_ns
        if changed == self.changed:
            return
        # subtle: what comes within one tick of the clock does not change it again.
        self.changed = changed if time.time_ns() > changed + _TICK_NS else 0
        for path in set(self.folder.glob("*.calls")) - self.known:
            # One whose writer is not done with its beginning is opened the next time.
            try:
                with open(path, "rb+") as file:
                    self.waiting.append(RankProcess(file, self.folder))
                    self.known.add(path)
            except (ValueError, OSError):
                self.changed = 0

    def _assign(self, process: RankProcess, head: dict) -> None:
        """Make it a rank of a world, or let it wait until it is clear whether it is one."""
        world = self._world_of(head)
        if world.claim(head) is Admission.OPEN:
            self.waiting.append(process)
            return
        before = world.ranks.get(head["rank"])
        world.ranks[head["rank"]] = process
        if before is not None:
            self.waiting.append(before)

    def _world_of(self, head: dict) -> JobWorld:
        """The first world at its meeting place that does not refuse it; if need be, a new one."""
        for generation in itertools.count():
            place = head["attempt"], head["world"], generation
            world = self.worlds.setdefault(place, JobWorld(head["attempt"]))
            if world.claim(head) is not Admission.REFUSED:
                break
            other = world.ranks.get(head["rank"])
            if other is not None and other.gone is None and world.absent():
                world.duplicates.add(head["rank"])
        return world

    def world_on_several_nodes(self) -> JobWorld | None:
        """The world of which other nodes have a part; connects to its store."""
        for (_, _, generation), world in self._current().items():
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
        self._expect()
        moved = self.nodes.exchange(world.to_json, send)
        world.update_elsewhere(self.nodes.others, self.nodes.lost)
        return moved

    def ask(self) -> None:
        for world in self.worlds.values():
            world.ask()
        for process in self._not_joined().values():
            process.log.ask(process.head()["asked"] + 1)

    def ask_and_poll(self) -> None:
        """Read what every process calls, and let it answer where it is just now."""
        self.poll()
        self.ask()
        self.sleep(ANSWER)

    def sleep(self, seconds: float) -> None:
        sleep(seconds, self.ranks())

    def _not_joined(self) -> dict[int, RankProcess]:
        """By their number, the processes that note their calls, and have no rank yet."""
        heads = ((process, process.log.head()) for process in self.waiting)
        return {head["pid"]: process for process, head in heads if head and head["rank"] < 0}

    def _expect(self) -> None:
        """Find out which live processes may be the ranks that have not come."""
        for world in self._current().values():
            if world.has_begun:
                world.late = {}  # its ranks have met: who was late came, or joined another world
            elif world.absent() and self.folder:
                called = {rank.log.pid() for rank in self.ranks() if rank.head()["count"]}
                called |= {rank.log.pid() for rank in world.ranks.values()}
                world.expect(self.table.processes(), called, self._not_joined())
                # A rank that came here, to another place, is on no other machine.
                world.far -= {number for one in self._current().values() for number in one.ranks}

    def has_new_records(self) -> bool:
        """Whether torch's own record of any rank has grown since the last time."""
        return sum(world.has_new_records() for world in self.worlds.values()) > 0

    def trust_launcher(self) -> None:
        """It reports success, so its ranks ended well.

        That means nothing if a rank has raised: such a launcher does not look how its ranks end.
        """
        for world in self._current().values():
            raised = [rank.read(call_log.RAISED) for rank in world.ranks.values()]
            if all(one["is_guess"] for one in raised if one):
                for rank in world.ranks.values():
                    rank.trust_launcher()

    def are_gone(self) -> bool:
        """Whether no rank runs any more."""
        return all(world.are_gone() for world in self._current().values())

    def may_restart(self) -> bool:
        """Whether torchrun may start the ranks again if they fail."""
        worlds, processes = self._current().values(), self.table.processes()
        pids = [rank.head()["pid"] for world in worlds for rank in world.ranks.values()]
        return any(processes[pid].may_restart for pid in pids if pid in processes)

    def _newest(self) -> int:
        """The newest attempt of an elastic job. When all ranks are gone, another may have begun."""
        newest = max((attempt for attempt, *_ in self.worlds), default=0)
        if self.worlds and all(world.are_gone() for world in self.worlds.values()):
            newest = max(newest, self.table.newest_attempt())
        return newest

    def _current(self) -> dict[tuple[int, int, int], JobWorld]:
        """The worlds of no earlier attempt: of these all ranks are gone."""
        newest = self._newest()
        return {
            key: world
            for key, world in self.worlds.items()
            if key[0] >= newest or not world.are_gone()
        }

    def _end_attempts(self) -> None:
        """Judge, once, the attempts after which the ranks were started again."""
        newest = min((attempt for attempt, *_ in self._current()), default=self._newest())
        for attempt in range(len(self.attempts), newest):
            worlds = [world for key, world in self.worlds.items() if key[0] == attempt]
            verdicts = [self._verdict(world, stalled=True) for world in worlds]
            bad = [one for one in verdicts if not one.kind.is_good]
            ended = self.raised(attempt) or Verdict(
                Ending.PARTIAL, "it ended, and nobody knows why"
            )
            self.attempts.append((bad or [ended])[0])

    def verdict(self, stalled: bool) -> Verdict:
        """The verdict on the world that has a fault; of several, see `_worst`.

        A world that failed is forgotten once its launcher has started the next.
        """
        self._end_attempts()
        verdict = self._first_fault(stalled)
        if self.attempts and not verdict.kind.is_good:
            processes = self.table.processes().values()
            if any(process.has_store_of_earlier for process in processes):
                verdict = dataclasses.replace(verdict, notes=(*verdict.notes, KEEPS_STORE))
        return verdict

    def _first_fault(self, stalled: bool) -> Verdict:
        worlds = self._current()
        if stalled:
            self._expect()
            if (verdict := self._never_met()) is not None:
                return verdict
        called = {key: world for key, world in worlds.items() if world.matching.last}
        judged, verdicts = [], []
        for (attempt, place, generation), world in (called or worlds).items():
            verdict = self._verdict(world, stalled)
            is_over = (attempt, place, generation + 1) in worlds
            if not (is_over and verdict.kind.is_failure):
                judged.append(world)
                verdicts.append(verdict)
        if not verdicts:
            return NOT_DISTRIBUTED
        if bad := [outcome for outcome in verdicts if outcome.kind is not Ending.OK]:
            return _worst(bad)
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
            for (_, place, _), world in self._current().items()
            if world.absent() or world.joining()
        ]
        if not any(world.joining() for _, world in parts):
            return None
        if any({*world.late, *world.far}.intersection(world.absent()) for _, world in parts):
            return None
        if any(world.has_ended() for _, world in parts):
            return None
        return never_met([world.as_joining(place) for place, world in parts])

    def _verdict(self, world: JobWorld, stalled: bool) -> Verdict:
        """If a rank could not be watched, a call that seems to be missing may be its call."""
        verdict, unwatched = world.judged(stalled), {path.stem for path in self._unwatched()}
        pids = {str(rank.head()["pid"]) for rank in world.ranks.values()}
        is_partial = unwatched and (world.absent() or pids & unwatched)
        if is_partial and (verdict.kind.is_explained or verdict.kind is Ending.SLOW):
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

    def raised(self, attempt: int | None = None) -> Verdict | None:
        """The first exception that ended a process; one that lost others counts last.

        `attempt`: of an elastic job; None for the newest.
        """
        attempt = len(self.attempts) if attempt is None else attempt
        exceptions, processes = [], self.table.processes()
        for path in self.folder.glob("*.raised") if self.folder else ():
            process = processes.get(int(path.stem), Process(0))
            with contextlib.suppress(OSError, ValueError):
                if process.attempt == attempt or launchers.ATTEMPT not in process.environ:
                    exceptions.append(json.loads(path.read_text()))
        if not exceptions:
            return None
        raised = min(
            exceptions, key=lambda exception: (is_lost(exception["text"]), exception["at"])
        )
        file, line, function = raised["where"]
        rank = int(raised["rank"]) if raised["rank"] is not None else -1
        who = f"rank {rank}" if rank >= 0 else "a process without a rank"
        if raised["text"].startswith("ChildFailedError"):  # its text is a page of numbers
            return Verdict(
                Ending.RAISED,
                "torchrun's ranks failed before they called torch.distributed: what they printed "
                "says why",
            )
        guilty = Call("", rank=rank, file=file, line=line, function=function)
        return Verdict(Ending.RAISED, f"{who}: {raised['text']}\n  {location(guilty)}", (guilty,))


def _worst(bad: list[Verdict]) -> Verdict:
    """Of the verdicts on several worlds, the one to report, which names the others in a note.

    Ranks may hang because they wait for those of another world, where one has failed, or whose
    calls do not fit. Among equals the first counts.
    """
    verdict = min(
        bad,
        key=lambda one: (
            not one.kind.is_failure,
            one.kind is not Ending.MISMATCH,
            not one.kind.is_explained,
        ),
    )
    others = tuple(f"another world: {one.headline}" for one in bad if one is not verdict)
    return dataclasses.replace(verdict, notes=(*verdict.notes, *others))
