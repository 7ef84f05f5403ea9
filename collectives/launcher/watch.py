"""The ranks of one launch, watched through the calls that they note."""

import dataclasses
import tempfile
import time

from collectives.launcher import failure
from collectives.recording import call_log

# What the calls can explain better than the exceptions that come of it.
_EXPLAINED = ("hang", "mismatch")


class LaunchWatch:
    """`files`: where the ranks note their calls; they have no name, and so cannot outlive us. `at_once`: a fault ends the world as
    soon as it is certain."""

    def __init__(self, at_once: bool):
        self.at_once = at_once
        self.files: list = []
        self.suspicion = None

    def give_files(self, seats: list) -> list:
        """The same seats, each with a file."""
        from collectives.launcher.rank_spec import Descriptor

        for _ in seats:
            self.files.append(tempfile.TemporaryFile())  # noqa: SIM115  closed by close()
            self.files[-1].truncate(call_log.SIZE)
        return [
            dataclasses.replace(seat, calls=Descriptor(file.fileno()))
            for seat, file in zip(seats, self.files, strict=True)
        ]

    def look(self) -> None:
        """LaunchError if the ranks' calls do not fit, or they wait for each other."""
        verdict = self._suspicion().look()
        if verdict is not None and verdict.kind in _EXPLAINED:
            raise failure.differ(verdict)

    def check(self) -> None:
        """The same, for ranks that have all returned."""
        if self.at_once and (verdict := self._verdict()).kind in _EXPLAINED:
            raise failure.differ(verdict)

    def explain(self, error: failure.LaunchError) -> failure.LaunchError:
        """A better error for ranks that raised or died, if they only lost each other."""
        if not self.at_once:
            return error
        worlds = self._suspicion().worlds
        worlds.hear_all()  # what C++ has called is known by the answers alone
        for world in worlds.worlds.values():
            if error.exitcode and (rank := world.ranks.get(error.rank)) is not None:
                rank.gone = (rank.gone or (time.monotonic_ns(),))[0], error.exitcode
        verdict = self._verdict()
        return failure.differ(verdict, error) if verdict.kind in _EXPLAINED else error

    def last_word(self) -> str:
        """What their calls say of ranks for whom time is up; empty if nothing."""
        verdict = self._suspicion().last_word()
        return verdict.says if verdict.kind in (*_EXPLAINED, "slow") else ""

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _suspicion(self):
        from collectives.diagnosis.watch.hang_monitor import Suspicion
        from collectives.diagnosis.watch.job import Worlds
        from collectives.diagnosis.watch.rank_process import Rank

        if self.suspicion is None:
            worlds = Worlds()
            worlds.waiting = [Rank(file) for file in self.files]
            self.suspicion = Suspicion(worlds, hang_after=5.0)
        return self.suspicion

    def _verdict(self):
        self._suspicion().worlds.poll()
        return self.suspicion.worlds.verdict(stalled=True)
