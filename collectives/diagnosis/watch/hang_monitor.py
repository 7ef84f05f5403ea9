"""When to report: a verdict is reported once it is certain, and not before."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import (
    JUDGE,
    JUDGE_AT_LEAST,
    LAUNCHER_ENDS,
    LAUNCHER_ENDS_RANKS,
    POLL,
    POLL_QUIET,
    QUIET,
    STABLE,
)
from collectives.recording.ending import Ending

if TYPE_CHECKING:
    from collectives.diagnosis.watch.job import Job
    from collectives.diagnosis.watch.world import WatchedWorld


class HangMonitor:
    """Looks at a world or a job again and again, and decides when a verdict is certain.

    `hang_after`: how long nothing may move, in seconds. `report` is called with what is slow, once.
    """

    def __init__(
        self,
        watched: "WatchedWorld | Job",
        hang_after: float,
        report: Callable[[str], None] = lambda text: None,
    ):
        self.watched = watched
        self.hang_after = hang_after
        self.report = report
        self.pause = max(0.2, hang_after / 4)  # between two questions
        self.moved = self.asked = time.monotonic()
        self.next_judgement = 0.0
        self.suspected: tuple[str, float] = ("", 0.0)  # what a report would say, and since when
        self.has_reported_slow = False

    def look(self) -> Verdict | None:
        """What is certain by now; None while the program may still come to a good end."""
        now = time.monotonic()
        self.read(now)
        return self.judge(now)

    def until_next_look(self) -> float:
        """How long whoever looks may sleep, in seconds."""
        return POLL_QUIET if time.monotonic() > self.moved + QUIET else POLL

    def read(self, now: float) -> None:
        """Read what is new, and ask if nothing is."""
        if self.watched.poll():
            self.moved = now
        if now > self.asked + self.pause and now > self.moved + min(1.0, self.pause):
            self.asked = now
            if self.watched.has_new_records():
                self.moved = now
            self.watched.ask()

    def judge(self, now: float) -> Verdict | None:
        if now <= self.moved + STABLE / 2 or now < self.next_judgement:
            return None
        quiet = now - self.moved
        self.next_judgement = now + min(max(JUDGE, quiet / 20), JUDGE_AT_LEAST)
        verdict = self.watched.verdict(stalled=now > self.moved + self.hang_after)
        if verdict.kind is Ending.SLOW and not self.has_reported_slow:
            self.has_reported_slow = True
            self.report(verdict.says)
        if verdict.kind.is_good or verdict.kind is Ending.SLOW:
            self.suspected = "", now
            return None
        if self.suspected[0] != verdict.says:
            self.suspected = verdict.says, now
        return verdict if now > self.suspected[1] + self._patience(verdict) else None

    def _patience(self, verdict: Verdict) -> float:
        """How long the verdict must stay the same, in seconds."""
        if verdict.gives_up is not None and verdict.gives_up <= self.hang_after:
            return self.hang_after
        if verdict.kind is Ending.UNREACHABLE:  # it looks for questions so often, if it is there
            return self.hang_after / 2
        if self.watched.are_gone():  # their launcher will end, or start them again
            return max(LAUNCHER_ENDS, self.hang_after)
        if verdict.kind.is_failure:
            return max(LAUNCHER_ENDS_RANKS, self.hang_after)
        # A rank that finds no store tries again after a pause that doubles: where rank 0, which
        # holds the store, came late, the others sleep on for at most as long as they have waited.
        return STABLE + verdict.apart

    def last_word(self) -> Verdict:
        """The verdict on a program that is to be ended now."""
        self.watched.ask_and_poll()
        return self.watched.verdict(stalled=not self.watched.poll())
