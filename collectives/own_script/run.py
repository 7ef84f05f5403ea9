"""Start somebody's training script on one rank, on several, and on these once more."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy

from collectives.backends.availability import gpu_count
from collectives.course.console import print_text
from collectives.diagnosis import run as diagnosing
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.own_script.seen import Rank, Seen
from collectives.own_script.watch import AGAIN, HAS_GPU, NOTES, STEPS

_HANGS_AFTER = 10.0
_MOST_FILES = 50_000
_LEFT_OUT = {"__pycache__", "node_modules", "wandb", "mlruns"}


def _say(what: str) -> None:
    print_text(what, stderr=True)


def check(script: list[str], n: int, timeout: float, again: list[str], hides_gpus: bool) -> Seen:
    """`script`: its file and arguments; `again`: what its start after a save gets besides."""
    with tempfile.TemporaryDirectory(prefix="check-training-") as name:
        folder = Path(name).resolve()
        _say(f"{script[0]} on 1 rank ...")
        (one,), _ = _started(folder / "one", "first", script, 1, timeout, hides_gpus)
        _say(f"on {n} ranks ...")
        many, verdict = _started(folder / "many", "first", script, n, timeout, hides_gpus)
        seen = Seen(one, many, [], verdict, folder / "many")
        if any(rank.all("save") for rank in many):
            _say("and on these once more, after the save ...")
            command = [*script, *again]
            more = _started(folder / "many", AGAIN, command, n, timeout, hides_gpus)
            seen.again, seen.verdict_again = more
        seen.differs = _difference(folder, seen)
        return seen


def _started(
    folder: Path, start: str, script: list[str], n: int, timeout: float, hides_gpus: bool
) -> tuple[list[Rank], Verdict]:
    notes = folder / start
    notes.mkdir(parents=True)
    for rank in range(n):
        if not (scratch := folder / f"rank-{rank}").exists():
            _copy(Path.cwd(), scratch)
    (folder / "tmp").mkdir(exist_ok=True)
    variables = {
        "COLLECTIVES_WATCH": "own_script.watch",
        NOTES: notes,
        "OMP_NUM_THREADS": 1,
        "TMPDIR": folder / "tmp",
    }
    variables |= {"CUDA_VISIBLE_DEVICES": ""} if hides_gpus else {HAS_GPU: 1} if gpu_count() else {}
    ranks = ["--standalone", "--nproc-per-node", str(n), "--no-python"]
    # Each starts in its own folder, where Python looks for the script.
    enter = ["sh", "-c", f'cd "{folder}/rank-$RANK" && exec "$@"', "sh", sys.executable, "-u"]
    command = ["env", *(f"{name}={value}" for name, value in variables.items())]
    command += [sys.executable, "-m", "torch.distributed.run", *ranks, *enter, *script]
    with open(folder / f"{start}.log", "wb") as output:
        verdict, _ = diagnosing.run(
            command, _HANGS_AFTER, timeout, output=output, is_seen=(notes / "stop").exists
        )
    return [Rank(notes / f"{rank}.jsonl") for rank in range(n)], verdict


def _copy(source: Path, target: Path) -> None:
    """Programs are copied, since they may look for files beside them; all else becomes links."""
    count = 0
    for name, names, files in os.walk(source):
        names[:] = [one for one in names if one not in _LEFT_OUT and not one.startswith(".")]
        folder, here = Path(name), target / Path(name).relative_to(source)
        here.mkdir(parents=True)
        count += len(files)
        if count > _MOST_FILES:
            raise ValueError(f"{source} has more than {_MOST_FILES} files: go to your script's.")
        for file in files:
            if file.endswith(".py"):
                shutil.copyfile(folder / file, here / file)
            else:
                (here / file).symlink_to(folder / file)


def _difference(folder: Path, seen: Seen) -> str:
    """How far the weights lie apart after the first steps, on one rank and on several."""
    if seen.one.draws():
        return "no, forward draws random numbers"
    alone, together = seen.one.steps(), [rank.steps() for rank in seen.ranks]
    found = []
    for step in range(1, min(STEPS, len(alone), *map(len, together)) + 1):
        own = sum((one[step - 1] for one in together[1:]), together[0][step - 1])
        if not own or alone[step - 1] != own:
            break
        weights = [
            numpy.fromfile(file)
            for number in (step - 1, step)
            for side in ("one", "many")
            if (file := folder / side / "first" / f"0.{number}.weights").exists()
        ]
        if len(weights) < 4:
            break
        if step == 1 and (weights[0] != weights[1]).any():
            return "no, they begin with other weights"
        found.append(abs(weights[2] - weights[3]).max())
    if not found:
        return "no, a step has other samples on one rank"
    return f"at most {max(found):.1e} apart after {len(found)} steps"
