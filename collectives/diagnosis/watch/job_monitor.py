"""When to report on a job, whose ranks may be on several machines, or may not have started yet."""

import math
import time
from collections.abc import Callable, Iterable

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import EXCHANGE, FIND_MACHINES, LAUNCHER_ENDS
from collectives.diagnosis.watch.hang_monitor import HangMonitor
from collectives.diagnosis.watch.job import Job
from collectives.diagnosis.watch.torchrun_meeting import TorchrunMeeting
from collectives.recording.ending import Ending


class JobMonitor(HangMonitor):
    """Looks at a job, and speaks with the other machines about it. `command`: the program's."""

    def __init__(
        self,
        job: Job,
        hang_after: float,
        report: Callable[[str], None] = lambda text: None,
        command: Iterable[str] = (),
    ):
        super().__init__(job, hang_after, report)
        self.job = job
        self.meeting = TorchrunMeeting(list(command))
        self.reported: Verdict | None = None  # what was reported of that
        self.attempts_reported = 0
        self.exchanged = self.moved
        self.machines_asked = 0.0  # when; infinity once all are known

    def look(self) -> Verdict | None:
        now = time.monotonic()
        self.read(now)
        self._exchange(now)
        self.report_attempts()
        if not self.job.worlds and now > self.moved + self.hang_after / 2:
            self._ask_who_has_come(now)
        return self.job.nodes.verdict or self.judge(now)

    def _ask_who_has_come(self, now: float) -> None:
        """No rank has started yet."""
        if now > self.exchanged + self.pause:
            self.exchanged = now
            self.meeting.ask()
        verdict = self.meeting.verdict
        if verdict and verdict != self.reported and now > self.moved + self.hang_after:
            self.reported = verdict
            self.report(verdict.says)

    def _exchange(self, now: float) -> None:
        """With the other nodes: often if a rank has ended, else rarely."""
        if now <= self.exchanged + EXCHANGE:
            return
        world = self.job.world_on_several_nodes()
        if world is None:
            return
        if now > self.machines_asked + FIND_MACHINES:
            self.machines_asked = math.inf if self.job.find_machines(world) else now
        ended, quiet = world.has_ended(), now > self.moved + self.pause
        if ended or now > self.exchanged + (self.pause if quiet else 2 * self.pause):
            self.exchanged = now
            if self.job.exchange(world, send=ended or quiet):
                self.moved = now

    def report_attempts(self) -> None:
        """Report what made torchrun start the ranks again."""
        for number, verdict in enumerate(self.job.attempts):
            if number >= self.attempts_reported:
                self.attempts_reported += 1
                self.report(f"attempt {number}: {verdict.says}\n  torchrun starts the ranks again")
                self.has_reported_slow = False

    def _patience(self, verdict: Verdict) -> float:
        patience = super()._patience(verdict)
        if verdict.kind.is_failure and self.job.may_restart():
            return max(LAUNCHER_ENDS, patience)
        return patience

    def last_word(self) -> Verdict:
        verdict = super().last_word()
        if verdict.kind is Ending.NOT_DISTRIBUTED:
            return self.meeting.verdict or verdict
        return verdict

    def publish(self, verdict: Verdict) -> None:
        """Send it to the other nodes of the job."""
        self.job.nodes.publish(verdict, patience=max(0.5, self.hang_after / 2))
