"""All worlds that a program under diagnosis makes: found by the files that its processes write."""

import contextlib
import json
from pathlib import Path

from collectives.diagnosis.rules.rendezvous import apart
from collectives.diagnosis.rules.snapshot import Verdict, is_lost
from collectives.diagnosis.watch.across_nodes import Machines
from collectives.diagnosis.watch.rank_process import Rank, sleep
from collectives.diagnosis.watch.world import World
from collectives.recording import call_log, stack
from collectives.recording.call import RiskyCall

NOT_DISTRIBUTED = "not-distributed: no process that could be watched called torch.distributed"
OK_AS_SEEN = "ok: all that was seen fitted"

# A process that runs has answered by then, in seconds.
_ANSWER = 0.25


class Worlds:
    """All worlds that a program makes, one after another or at once."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.known: set[Path] = set()
        self.waiting: list[Rank] = []
        self.worlds: dict[tuple, World] = {}
        self.heard = 0
        self.machines = Machines()

    def poll(self) -> bool:
        """Read what is new; whether anything has moved."""
        for path in set(self.folder.glob("*.calls") if self.folder else ()) - self.known:
            with (
                contextlib.suppress(ValueError, OSError),
                open(path, "rb+") as file,
            ):  # its writer is not done with the beginning
                self.waiting.append(Rank(file, self.folder))
                self.known.add(path)
        for world in self.worlds.values():
            world.leave_out_moved()
        waiting, self.waiting = self.waiting, []
        for rank in sorted(waiting, key=lambda one: (one.log.head() or {"began": 0})["began"]):
            head = rank.log.head()
            if head is not None and head["rank"] >= 0:
                self._seat(rank, head)
            elif head is None or head["rank"] != call_log.MOVED:
                self.waiting.append(rank)
        return sum(world.poll() for world in self.worlds.values()) > 0

    def _seat(self, rank: Rank, head: dict) -> None:
        """Those that meet at one place are one world; a second process of the same rank, or another size, begins the next one."""
        generation = 0
        while (
            room := self.worlds.setdefault((head["world"], generation), World()).has_room(head)
        ) is False:
            full = self.worlds[head["world"], generation]
            if (
                (sits := full.ranks.get(head["rank"])) is not None
                and sits.gone is None
                and full.absent()
            ):
                full.twice.add(head["rank"])
            generation += 1
        if room is None:
            self.waiting.append(rank)
            return
        ranks = self.worlds[head["world"], generation].ranks
        before, ranks[head["rank"]] = ranks.get(head["rank"]), rank
        if before is not None:
            self.waiting.append(before)

    def divided(self) -> World | None:
        """The world of which other machines have a part; connects to its store."""
        for (_, generation), world in self.worlds.items():
            if world.absent():
                if self.machines.opening is None:
                    places = (
                        rank.read(call_log.ANSWER).get("store") for rank in world.ranks.values()
                    )
                    if (place := next(filter(None, places), None)) is not None:
                        self.machines.open(place, f"{generation}.{min(world.ranks)}")
                return world if self.machines.opening is not None else None
        return None

    def exchange(self, world: World, tell: bool) -> bool:
        """Hear of its ranks on other machines, and tell of ours if that is needed; whether those have gone on."""
        moved = self.machines.exchange(world.tell, tell)
        world.hear(self.machines.others)
        return moved

    def ask(self) -> None:
        for world in self.worlds.values():
            world.ask()
        for process in self._nowhere():
            process.log.ask(process.log.head()["asked"] + 1)

    def hear_all(self) -> None:
        """What every process calls and answers just now."""
        self.poll()
        self.ask()
        self.sleep(_ANSWER)

    def sleep(self, seconds: float) -> None:
        sleep(seconds, [rank for world in self.worlds.values() for rank in world.ranks.values()])

    def _nowhere(self) -> list[Rank]:
        """The processes that may be ranks and have not said so yet, in the order in which they began."""
        ranks = [rank.log.head() for world in self.worlds.values() for rank in world.ranks.values()]
        pids, parents = {head["pid"] for head in ranks}, {head["parent"] for head in ranks}
        heads = [(one, one.log.head()) for one in self.waiting]
        return [
            one
            for one, head in heads
            if head
            and head["rank"] < 0
            and head["pid"] not in parents
            and head["parent"] not in pids
        ]

    def _expect(self, stalled: bool) -> None:
        """If as many processes have joined nothing as one world lacks ranks, these will be the ranks. Others, as a server of
        multiprocessing, run nothing of the program's own."""
        lacking = [
            world for world in self.worlds.values() if world.absent() and not world.has_begun
        ]
        for world in lacking:
            processes = self._nowhere() if stalled and len(lacking) == 1 else []
            for process in processes:
                process.look()
            processes = [one for one in processes if not stack.is_library(one.state().where[0])]
            world.expected = (
                dict(zip(world.absent(), processes, strict=True))
                if len(processes) == len(world.absent())
                else {}
            )

    def has_heard_more(self) -> bool:
        """Whether torch's own record of any rank has grown since the last time."""
        entries = [
            rank.read(call_log.ANSWER).get("collectives", [])
            for world in self.worlds.values()
            for rank in world.ranks.values()
        ]
        told = [[(entry[0], entry[1], entry[5]) for entry in one] for one in entries]
        before, self.heard = self.heard, hash(json.dumps(told))
        return before != self.heard

    def trust_launcher(self) -> None:
        """It is content. That means nothing of a world in which a rank has raised: it does not ask how they end."""
        for world in self.worlds.values():
            ranks = world.ranks.values()
            if not any(
                raised and not raised["is_guess"]
                for raised in (rank.read(call_log.RAISED) for rank in ranks)
            ):
                for rank in ranks:
                    rank.trust_launcher()

    def are_gone(self) -> bool:
        """Whether no rank runs any more."""
        return all(
            rank.gone is not None for world in self.worlds.values() for rank in world.ranks.values()
        )

    def verdict(self, stalled: bool) -> Verdict:
        """Of the first world that has anything to say. One that raised or died is forgotten once its launcher has begun anew."""
        if stalled and (verdict := apart(self.worlds)) is not None:
            return verdict
        self._expect(stalled)
        called = {
            place: world for place, world in self.worlds.items() if world.matching.last
        } or self.worlds
        verdicts = [
            verdict
            for (place, generation), world in called.items()
            if (verdict := self._verdict(world, stalled)).kind not in ("raised", "died")
            or (place, generation + 1) not in self.worlds
        ]
        first = next((verdict for verdict in verdicts if verdict.kind != "ok"), None)
        return first or (verdicts[-1] if verdicts else Verdict("not-distributed", NOT_DISTRIBUTED))

    def _verdict(self, world: World, stalled: bool) -> Verdict:
        """What seems to be missing or odd may be due to a call that was not seen, if one of its ranks could not be watched."""
        verdict, unwatched = world.verdict(stalled), {path.stem for path in self._unwatched()}
        is_partial = unwatched and (
            world.absent()
            or any(str(rank.log.head()["pid"]) in unwatched for rank in world.ranks.values())
        )
        return (
            Verdict("ok", OK_AS_SEEN)
            if is_partial and verdict.kind in ("hang", "mismatch", "slow")
            else verdict
        )

    def noticed(self) -> list[RiskyCall]:
        return [
            one
            for world in self.worlds.values()
            for rank in world.ranks.values()
            for one in rank.log.noticed()
        ]

    def notes(self) -> list[str]:
        """What the report cannot speak of."""
        told = []
        for world in self.worlds.values():
            told += [
                f"rank {number}: {rank.log.lost} calls went by unseen; this speaks of its calls from #{rank.log.since} on"
                for number, rank in world.ranks.items()
                if rank.log.lost
            ]
        return [
            *told,
            *(
                f"process {path.stem} could not be watched: {path.read_text()}"
                for path in self._unwatched()
            ),
        ]

    def _unwatched(self) -> list[Path]:
        return list(self.folder.glob("*.unwatched")) if self.folder else []

    def first_raised(self) -> dict | None:
        """The first exception that ended a process, a rank or not, and is no consequence of another's."""
        found = []
        for path in self.folder.glob("*.raised"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return min(
            (one for one in found), key=lambda one: (is_lost(one["text"]), one["at"]), default=None
        )
