"""What was seen of a training script: the notes of its ranks, pass by pass over the data. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from collectives.diagnosis.rules.snapshot import Verdict


@dataclass
class Pass:
    """One pass of a rank over the data of a DataLoader. `begin`: the note of its begin.

    `batches`: each with `used`, whether a backward came before the next one, and the `size` of what
    the model got. `steps`: each with `after`, how many backward passes this pass had had, and its
    `samples`, how often each counts. `results`: what collectives returned until the next pass.
    `buffers`: some values of each, as it ends; None if it was not seen to end.
    """

    begin: dict
    batches: list[dict] = field(default_factory=list)
    backwards: int = 0
    steps: list[dict] = field(default_factory=list)
    results: list[dict] = field(default_factory=list)
    buffers: list[float] | None = None

    def samples(self, which: str = "own") -> list[int]:
        """The samples by number. `own`: in the data themselves; `asked`: in a Subset of them."""
        is_all = not self.backwards or self.begin["loads_ahead"]
        used = [one for one in self.batches if one["used"] or is_all]
        return [sample for one in used for sample in one[which]]


class Rank:
    def __init__(self, file: Path):
        # Without a last line that the end of the rank has cut off.
        text = file.read_text().rpartition("\n")[0] if file.exists() else ""
        self.notes = [json.loads(line) for line in text.splitlines()]
        passes = {0: Pass({})}  # 0: what is in no pass
        latest = trained = passes[0]
        samples = Counter[int]()
        batch: dict = {"own": [], "used": False, "size": 0}
        for note in self.notes:
            match note["kind"]:
                case "pass":
                    passes[note["number"]] = Pass(note)
                case "batch":
                    latest = trained = passes[note["number"]]
                    batch = note | {"used": False, "size": 0}
                    latest.batches.append(batch)
                case "forward":
                    batch["size"] += note["size"] or len(batch["own"])
                case "backward":
                    trained.backwards += 1
                    samples.update(batch["own"] if not batch["used"] else [])
                    batch["used"] = True
                case "step":
                    step = note | {"after": trained.backwards, "samples": samples}
                    trained.steps.append(step)
                    samples = Counter()
                case "end":
                    passes[note["number"]].buffers = note["buffers"]
                    if not note["trains"]:  # what is trained from here on has other samples
                        trained, batch = passes[0], {"own": [], "used": False, "size": 0}
                case "result":
                    latest.results.append(note)
        self.passes = [pass_ for number, pass_ in passes.items() if number and pass_.batches]
        self.training = [pass_ for pass_ in self.passes if pass_.backwards]
        # And what it has trained with may be read again, as for the statistics of a batch norm.
        loaders = {pass_.begin["loader"] for pass_ in self.training}
        self.validation = [pass_ for pass_ in self.passes if pass_.begin["loader"] not in loaders]

    def all(self, kind: str) -> list[dict]:
        return [note for note in self.notes if note["kind"] == kind]

    def computed(self) -> list[tuple[dict, dict]]:
        """Each forward that a backward follows, with that."""
        kinds = "forward", "backward"
        recorded = [note for note in self.notes if note["kind"] in kinds]
        return [(a, b) for a, b in pairwise(recorded) if (a["kind"], b["kind"]) == kinds]

    def draws(self) -> list[tuple[int, int]]:
        """The state of the random numbers before and after each forward that draws some."""
        states = [(forward["state"], backward["state"]) for forward, backward in self.computed()]
        return [(before, after) for before, after in states if before != after]


@dataclass
class Seen:
    """One process, several ranks, and these once more after a save.

    `verdict`: of the diagnosis, on several ranks, and `verdict_again`. `root`: the folder of the
    copies.
    """

    alone: Rank
    ranks: list[Rank]
    again: list[Rank]
    verdict: Verdict
    root: Path
    verdict_again: Verdict | None = None

    def communicates(self) -> bool:
        """Whether a rank has called torch.distributed at all."""
        return any(rank.all("result") for rank in self.ranks)

    def is_sharded(self) -> bool:
        """Whether torch has divided one model among the ranks."""
        return any(rank.all("sharded") for rank in self.ranks)

    def may_share_a_model(self) -> bool:
        """Whether the ranks may have parts of one: then they may well compute the same batch."""
        weights = [[one["weights"] for one in rank.all("step")[:1]] for rank in self.ranks]
        is_copied = any(rank.all("ddp") or rank.all("data_parallel") for rank in self.ranks)
        return self.is_sharded() or (not is_copied and any(one != weights[0] for one in weights))

    def short(self, text: str) -> str:
        """With files as the reader knows them."""
        return re.sub(rf"{re.escape(str(self.root))}/rank-\d+/", "", text)


def side_by_side(ranks: list[Rank], which: str) -> Iterator[tuple[Pass, ...]]:
    """The first pass of each rank, then the second, ... `which`: training or validation."""
    return zip(*(getattr(rank, which) for rank in ranks), strict=False)


def all_samples(passes: Iterable[Pass]) -> Counter[int]:
    """How often the ranks had each sample."""
    return Counter(sample for one in passes for sample in one.samples())
