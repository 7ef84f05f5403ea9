"""Start somebody's training script on one rank, on several, and on these once more."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from collectives.backends.availability import gpu_count
from collectives.course.console import print_text
from collectives.diagnosis import run as diagnosing
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.own_script.seen import Rank, Seen
from collectives.own_script.watch import AGAIN, GPUS, NOTES

_HANGS_AFTER = 10.0
_MOST_FILES = 50_000
_LEFT_OUT = {"__pycache__", "node_modules", "wandb", "mlruns"}


def check(script: list[str], n: int, timeout: float, again: list[str], hides_gpus: bool) -> Seen:
    """`script`: its file and arguments; `again`: what its start after a save gets besides."""
    variables: dict[str, object] = {"CUDA_VISIBLE_DEVICES": ""} if hides_gpus else {}
    with tempfile.TemporaryDirectory(prefix="check-training-") as name:
        folder = Path(name).resolve()
        print_text(f"{script[0]} on 1 rank ...", stderr=True)
        (alone,), _ = _started(folder / "one", "first", script, 1, timeout, variables)
        print_text(f"on {n} ranks ...", stderr=True)
        many, verdict = _started(folder / "many", "first", script, n, timeout, variables)
        seen = Seen(alone, many, [], verdict, folder / "many")
        if any(rank.all("save") for rank in many):
            print_text("and on these once more, after the save ...", stderr=True)
            if not hides_gpus and gpu_count() >= n:
                all_gpus = ",".join(map(str, range(n)))
                variables = {GPUS: os.environ.get("CUDA_VISIBLE_DEVICES") or all_gpus}
            script = [*script, *again]
            more = _started(folder / "many", AGAIN, script, n, timeout, variables)
            seen.again, seen.verdict_again = more
        return seen


def _started(
    folder: Path, start: str, script: list[str], n: int, timeout: float, variables: dict
) -> tuple[list[Rank], Verdict]:
    notes = folder / start
    notes.mkdir(parents=True)
    (folder / "tmp").mkdir(exist_ok=True)
    for rank in range(n):
        if not (scratch := folder / f"rank-{rank}").exists():
            _copy(Path.cwd(), scratch)
    variables = {"COLLECTIVES_WATCH": "own_script.watch", NOTES: notes, **variables}
    variables |= {"OMP_NUM_THREADS": 1, "TMPDIR": folder / "tmp"}
    command = ["env", *(f"{name}={value}" for name, value in variables.items())]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    # Each starts in its own folder, where Python looks for the script.
    enter = f'cd "{folder}/rank-$RANK" && exec "$@"'
    command += [f"--nproc-per-node={n}", "--no-python", "sh", "-c", enter, "sh"]
    command += [sys.executable, "-u", *script]
    with open(folder / f"{start}.log", "wb") as output:
        verdict, _ = diagnosing.run(
            command, _HANGS_AFTER, timeout, output=output, is_seen=(notes / "stop").exists
        )
    return [Rank(notes / f"{rank}.jsonl") for rank in range(n)], verdict


def _copy(source: Path, target: Path) -> None:
    """Programs are copied, since they may look for files beside them; all else becomes links.

    So does a folder that is a link itself: it may hold all data, or a folder above it.
    """
    count = 0
    for folder, folders, files in os.walk(source):
        count += len(folders) + len(files)
        if count > _MOST_FILES:
            raise ValueError(f"{source} has more than {_MOST_FILES} files: go to your script's.")
        folders[:] = [name for name in folders if name not in _LEFT_OUT and name[0] != "."]
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True)
        for path in (Path(folder, name) for name in [*folders, *files] if name[0] != "."):
            if path.suffix == ".py" and path.is_file():
                shutil.copyfile(path, here / path.name)
            elif path.is_symlink() or path.is_file():
                (here / path.name).symlink_to(path)
