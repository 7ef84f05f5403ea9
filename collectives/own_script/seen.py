"""What was seen of a training script: the notes of its ranks, pass by pass over the data. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from collectives.diagnosis.rules.snapshot import Verdict

_COMPUTED = "forward", "backward"


@dataclass
class Pass:
    """One pass of a rank over the data of a DataLoader. `begin`: the note of its begin.

    `batches`: each with `used`, whether a backward came before the next one, and the `size` of what
    the model got. `held`: for each step, the optimizer, how many backward passes its gradients add
    up, how many this pass has had since it began, and the line. `results`: what collectives
    returned until the next pass.
    """

    begin: dict
    batches: list[dict] = field(default_factory=list)
    backwards: int = 0
    held: list[tuple[int, int, int, str]] = field(default_factory=list)
    results: list[dict] = field(default_factory=list)

    def samples(self, which: str = "own") -> list[int]:
        """The samples by number. `own`: in the data themselves; `asked`: in a Subset of them."""
        # A loader of a library loads a batch ahead of the one that it gives.
        is_all = not self.backwards or self.begin["is_library"]
        used = [one for one in self.batches if one["used"] or is_all]
        return [sample for one in used for sample in one[which]]

    def content(self) -> dict[int, list[int]]:
        """Of some samples, what shows whether two are the same."""
        return {sample: row for one in self.batches for sample, row in one["rows"]}


class Rank:
    def __init__(self, file: Path):
        # Without a last line that the end of the rank has cut off.
        text = file.read_text().rpartition("\n")[0] if file.exists() else ""
        self.notes = [json.loads(line) for line in text.splitlines()]
        passes: dict[int, Pass] = {}
        batch: dict = {"own": [], "size": 0}
        latest = Pass({})
        for note in self.notes:
            match note["kind"]:
                case "pass":
                    passes[note["number"]] = Pass(note)
                case "batch":
                    latest, batch = passes[note["number"]], note | {"used": False, "size": 0}
                    latest.batches.append(batch)
                case "forward":
                    batch["size"] += note["size"] or len(batch["own"])
                case "backward":
                    latest.backwards += 1
                    batch["used"] = True
                case "step":
                    step = note["of"], note["held"], latest.backwards, note["at"]
                    latest.held.append(step)
                case "result":
                    latest.results.append(note)
        self.passes = [one for one in passes.values() if one.batches]
        self.training = [one for one in self.passes if one.backwards]
        self.validation = [one for one in self.passes if not one.backwards]

    def all(self, kind: str) -> list[dict]:
        return [note for note in self.notes if note["kind"] == kind]

    def steps(self) -> list[Counter]:
        """How often each sample counts in each step of an optimizer."""
        found, batch, samples = [], [], Counter[int]()
        for note in self.notes:
            match note["kind"]:
                case "batch":
                    batch = note["own"]
                case "backward":
                    samples.update(batch)
                    batch = []
                case "step":
                    found.append(samples)
                    samples = Counter[int]()
        return found

    def inputs(self) -> list[tuple[int, str]]:
        """What the model got where a backward follows, and in which line."""
        noted = [note for note in self.notes if note["kind"] in _COMPUTED]
        given = [a for a, b in pairwise(noted) if _is_computed(a, b) and a["content"]]
        return [(a["content"], a["at"]) for a in given]

    def draws(self) -> list[tuple[int, int]]:
        """The state of the random numbers before and after each forward that draws some."""
        noted = [note for note in self.notes if note["kind"] in _COMPUTED]
        states = [(a["state"], b["state"]) for a, b in pairwise(noted) if _is_computed(a, b)]
        return [(before, after) for before, after in states if before != after]


@dataclass
class Seen:
    """One process, several ranks, and these once more after a save.

    `verdict`: of the diagnosis, on several ranks, and `verdict_again`. `differs`: how their steps
    differ from those of one process. `root`: the folder of the copies.
    """

    one: Rank
    ranks: list[Rank]
    again: list[Rank]
    verdict: Verdict
    root: Path
    verdict_again: Verdict | None = None
    differs: str = ""

    def communicates(self) -> bool:
        """Whether a rank has called torch.distributed at all."""
        return any(rank.all("result") for rank in self.ranks)

    def is_sharded(self) -> bool:
        """Whether the ranks have parts of one model: then they may well compute the same batch."""
        return any(rank.all("sharded") for rank in self.ranks)

    def short(self, text: str) -> str:
        """With files as the reader knows them."""
        return re.sub(rf"{re.escape(str(self.root))}/rank-\d+/", "", text)


def _is_computed(note: dict, following: dict) -> bool:
    """Whether they are a forward and its backward."""
    return (note["kind"], following["kind"]) == _COMPUTED


def side_by_side(ranks: list[Rank], which: str) -> Iterator[tuple[Pass, ...]]:
    """The first pass of each rank, then the second, ... `which`: training or validation."""
    return zip(*(getattr(rank, which) for rank in ranks), strict=False)
