"""When to report: a verdict is reported once it is certain, and not before."""

import math
import time
from collections.abc import Callable, Iterable

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import (
    EXCHANGE,
    FIND_MACHINES,
    LAUNCHER_ENDS,
    LAUNCHER_ENDS_RANKS,
    STABLE,
)
from collectives.diagnosis.watch.job import Job
from collectives.diagnosis.watch.torchrun_meeting import TorchrunMeeting


class HangMonitor:
    """Looks at a job again and again, and decides when a verdict is certain.

    `hang_after`: how long nothing may move, in seconds. `report` is called with what is slow, once.
    `command`: the program's.
    """

    def __init__(
        self,
        job: Job,
        hang_after: float,
        report: Callable[[str], None] = lambda text: None,
        command: Iterable[str] = (),
    ):
        self.job = job
        self.meeting = TorchrunMeeting(list(command))
        self.reported: str | None = None  # what was reported of that
        self.hang_after = hang_after
        self.report = report
        self.moved = self.asked = self.exchanged = time.monotonic()
        self.machines_asked = 0.0  # when; infinity once all are known
        self.suspected: tuple[str, float] = ("", 0.0)  # what a report would say, and since when
        self.has_reported_slow = False

    def look(self) -> Verdict | None:
        """What is certain by now; None while the program may still come to a good end."""
        now = time.monotonic()
        if self.job.poll():
            self.moved = now
        pause = max(0.2, self.hang_after / 4)
        if now > self.asked + pause and now > self.moved + min(1.0, pause):
            self.asked = now
            if self.job.has_new_records():
                self.moved = now
            self.job.ask()
        self._exchange(now, pause)
        if not self.job.worlds and now > self.moved + self.hang_after / 2:
            self._ask_who_has_come(now, pause)
        if self.job.nodes.verdict is not None:
            return self.job.nodes.verdict
        return self._judge(now) if now > self.moved + STABLE / 2 else None

    def _ask_who_has_come(self, now: float, pause: float) -> None:
        """No rank has started yet."""
        if now > self.exchanged + pause:
            self.exchanged = now
            self.meeting.ask()
        says = self.meeting.says
        if says is not None and says != self.reported and now > self.moved + self.hang_after:
            self.reported = says
            self.report(says)

    def _exchange(self, now: float, pause: float) -> None:
        """With the other nodes: often if a rank has ended, else rarely."""
        if now <= self.exchanged + EXCHANGE:
            return
        world = self.job.world_on_several_nodes()
        if world is None:
            return
        if now > self.machines_asked + FIND_MACHINES:
            self.machines_asked = math.inf if self.job.find_machines(world) else now
        ended, quiet = world.has_ended(), now > self.moved + pause
        if ended or now > self.exchanged + (pause if quiet else 2 * pause):
            self.exchanged = now
            if self.job.exchange(world, send=ended or quiet):
                self.moved = now

    def _judge(self, now: float) -> Verdict | None:
        verdict = self.job.verdict(stalled=now > self.moved + self.hang_after)
        if verdict.kind == "slow" and not self.has_reported_slow:
            self.has_reported_slow = True
            self.report(verdict.says)
        if verdict.kind in ("ok", "slow", "not-distributed"):
            self.suspected = "", now
            return None
        if self.suspected[0] != verdict.says:
            self.suspected = verdict.says, now
        return verdict if now > self.suspected[1] + self._patience(verdict) else None

    def _patience(self, verdict: Verdict) -> float:
        """How long the verdict must stay the same, in seconds."""
        if verdict.gives_up is not None and verdict.gives_up <= self.hang_after:
            return self.hang_after
        if verdict.field == "machine":  # it looks for questions so often, if it is there
            return self.hang_after / 2
        if self.job.are_gone():  # their launcher will end, or start them again
            return max(LAUNCHER_ENDS, self.hang_after)
        if verdict.kind in ("raised", "died"):
            return max(LAUNCHER_ENDS_RANKS, self.hang_after)
        return STABLE

    def last_word(self) -> Verdict:
        """The verdict on a program that is to be ended now."""
        self.job.ask_and_poll()
        verdict = self.job.verdict(stalled=not self.job.poll())
        if verdict.kind == "not-distributed" and self.meeting.says is not None:
            return Verdict("slow", self.meeting.says)
        return verdict

    def publish(self, verdict: Verdict) -> None:
        """Send it to the other nodes of the job."""
        self.job.nodes.publish(verdict, patience=max(0.5, self.hang_after / 2))
