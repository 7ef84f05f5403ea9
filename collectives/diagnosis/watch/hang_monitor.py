"""When to speak: a verdict is told once it is certain, and not before."""

import time
from collections.abc import Callable

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.job import Worlds

# A fault must be there this long without anything moving before it is told, so that all logs are of one moment; in seconds.
SURE = 0.6

# After a rank has raised or died its launcher has this long to end the others, or as long as a hang must last; in seconds.
_LAUNCHER = 10.0

# After all ranks have gone, the launcher has this long to end, or to start them anew.
_LAST_RANK = 60.0

# Machines whose ranks end talk to each other so often, for it may be their last chance; in seconds.
_EXCHANGE = 0.05


class Suspicion:
    """Looks at worlds again and again. `hang_after`: how long nothing may move, in seconds. `tell` hears, once, of what is slow."""

    def __init__(
        self, worlds: Worlds, hang_after: float, tell: Callable[[str], None] = lambda text: None
    ):
        self.worlds = worlds
        self.hang_after = hang_after
        self.tell = tell
        self.moved = self.asked = self.exchanged = time.monotonic()
        self.suspected: tuple[str, float] = ("", 0.0)
        self.told_slow = False

    def look(self) -> Verdict | None:
        """What is certain by now; None while the program may still come to a good end."""
        now = time.monotonic()
        if self.worlds.poll():
            self.moved = now
        pause = max(0.2, self.hang_after / 4)
        if now > self.asked + pause and now > self.moved + min(1.0, pause):
            self.asked = now
            self.moved = now if self.worlds.has_heard_more() else self.moved
            self.worlds.ask()
        if now > self.exchanged + _EXCHANGE and (world := self.worlds.divided()) is not None:
            ended, quiet = world.has_ended(), now > self.moved + pause
            if ended or now > self.exchanged + (pause if quiet else 2 * pause):
                self.exchanged = now
                self.moved = now if self.worlds.exchange(world, tell=ended or quiet) else self.moved
        if self.worlds.machines.verdict is not None:
            return self.worlds.machines.verdict
        return self._judge(now) if now > self.moved + SURE / 2 else None

    def _judge(self, now: float) -> Verdict | None:
        verdict = self.worlds.verdict(stalled=now > self.moved + self.hang_after)
        if verdict.kind == "slow" and not self.told_slow:
            self.told_slow = True
            self.tell(verdict.says)
        if verdict.kind in ("ok", "slow", "not-distributed"):
            self.suspected = "", now
            return None
        if self.suspected[0] != verdict.says:
            self.suspected = verdict.says, now
        patience = max(_LAUNCHER, self.hang_after) if verdict.kind in ("raised", "died") else SURE
        if self.worlds.are_gone():  # their launcher will end, or begin again
            patience = max(_LAST_RANK, self.hang_after)
        if verdict.gives_up is not None and verdict.gives_up <= self.hang_after:
            patience = self.hang_after
        return verdict if now > self.suspected[1] + patience else None

    def last_word(self) -> Verdict:
        """The verdict on a program that is to be ended now, as it stands."""
        self.worlds.hear_all()
        return self.worlds.verdict(stalled=not self.worlds.poll())

    def publish(self, verdict: Verdict) -> None:
        """Tell it to the other machines of the job."""
        self.worlds.machines.publish(verdict, patience=max(0.5, self.hang_after / 2))
