"""The ranks of one launch, watched through the calls that they note."""

import contextlib
import dataclasses
import functools
import tempfile
import time
from typing import TYPE_CHECKING, BinaryIO, cast

from collectives.launcher import failure
from collectives.launcher.rank_spec import Descriptor, RankSpec
from collectives.recording import call_log
from collectives.recording.ending import Ending

if TYPE_CHECKING:
    from collectives.diagnosis.rules.snapshot import Verdict
    from collectives.diagnosis.watch.hang_monitor import HangMonitor
    from collectives.diagnosis.watch.world import WatchedWorld

# The verdicts that explain more than the exceptions that follow from them.


class LaunchWatch:
    """Watches the ranks of one launch.

    `files`: where the ranks note their calls. They have no name, so none is left behind. `at_once`:
    a fault ends the launch as soon as it is certain. `record`: what the results and a LaunchError
    hold besides, one of call_record.KINDS.
    """

    def __init__(self, at_once: bool, record: str | None = None):
        self.at_once = at_once
        self.record = record
        self.files: list[BinaryIO] = []

    def give_files(self, specs: list[RankSpec]) -> list[RankSpec]:
        """The same rank specs, each with a file for the calls of its rank.

        Where there is no room for the files, there are none. Raises ValueError then if calls are to
        be compared `at_once`.
        """
        specs = [dataclasses.replace(spec, record=self.record) for spec in specs]
        try:
            for _ in specs:
                file = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
                self.files.append(cast(BinaryIO, file))
                call_log.reserve(self.files[-1])
        except OSError as error:
            self.close()
            if self.at_once:
                raise ValueError(
                    "diagnose=True needs files in which the ranks note their calls. They cannot "
                    f"be made ({error}): let TMPDIR name a folder with "
                    f"{len(specs) * call_log.SIZE / 2**20:.0f} MiB of room, or leave diagnose out."
                ) from error
            return specs
        return [
            dataclasses.replace(spec, calls=Descriptor(file.fileno()))
            for spec, file in zip(specs, self.files, strict=True)
        ]

    def look(self) -> None:
        """Raise LaunchError if the ranks' calls do not fit, or if ranks wait for each other."""
        verdict = self._monitor.look()
        if verdict is not None and verdict.kind.is_explained:
            raise failure.from_verdict(verdict)

    def check(self) -> None:
        """The same for ranks that have all returned."""
        if self.at_once and (verdict := self._verdict()).kind.is_explained:
            raise failure.from_verdict(verdict)

    def explain(self, error: failure.LaunchError) -> failure.LaunchError:
        """A better error for ranks that raised or died only because they lost each other."""
        if not self.at_once:
            return error
        world = self._world
        world.ask_and_poll()  # what C++ has called is known by the answers alone
        if error.exitcode and (rank := world.ranks.get(error.rank)) is not None:
            gone_at = rank.gone[0] if rank.gone else time.monotonic_ns()
            rank.gone = gone_at, error.exitcode
        verdict = self._verdict()
        return failure.from_verdict(verdict, error) if verdict.kind.is_explained else error

    def last_word(self) -> "Verdict | None":
        """What the calls say of ranks whose time is up; None if nothing."""
        if not self.files:
            return None
        verdict = self._monitor.last_word()
        return verdict if verdict.kind.is_explained or verdict.kind is Ending.SLOW else None

    def tell(self, error: failure.LaunchError) -> None:
        """Add to the error what the function called in each rank. All ranks have ended."""
        for rank, file in enumerate(self.files):
            with contextlib.closing(call_log.LogReader(file)) as log:
                error.calls += log.function_calls(rank)
                error.risky_calls += log.noticed()

    def close(self) -> None:
        while self.files:
            self.files.pop().close()

    @functools.cached_property
    def _monitor(self) -> "HangMonitor":
        from collectives.diagnosis.watch.hang_monitor import HangMonitor

        return HangMonitor(self._world, hang_after=5.0)

    @functools.cached_property
    def _world(self) -> "WatchedWorld":
        from collectives.diagnosis.watch.world import RankProcess, WatchedWorld

        return WatchedWorld(dict(enumerate(map(RankProcess, self.files))))

    def _verdict(self) -> "Verdict":
        world = self._world
        world.poll()
        return world.verdict(stalled=True)
