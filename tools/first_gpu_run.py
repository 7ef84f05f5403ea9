"""The first thirty minutes on a machine with GPUs: what nobody has run yet, in order of its use.

    make gpu
    make gpu ARGS="--folder first-gpu-run --minutes 30"

Each step is a command with a time limit of its own, and its output is a file of the folder, without
the names of the machine and the user and without paths. A second run goes on where the first one
stopped. At the end, summary.md says how each step ended, and what is neither as we claim nor as we
have rehearsed. Send in the folder as it is.

The rehearsal lies in tools/rehearsed_gpu_run. This makes it anew, without any GPU:

    .venv/bin/python tests/rehearsal/rehearse.py --gpus 1 make gpu ARGS="--keep"
"""

import argparse
import contextlib
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What the steps found on GPUs that the CPU plays: rehearsed, not measured.
REHEARSED = Path(__file__).with_name("rehearsed_gpu_run")
IS_REHEARSAL = "REHEARSED_GPUS" in os.environ
# What a step of a lesson prints: that it is skipped, how its results are known, or how it failed.
FAILED = r"rank \d+ (?:raised|died|hung)|hang|slow|mismatch"
OF_A_LESSON = re.compile(
    rf"^(\w+): (?:(skipped)|(proved|computed|looked up)|{FAILED})", re.MULTILINE
)
PYTHON = sys.executable
COLLECTIVES = (PYTHON, "-m", "collectives")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run")
HERE = (PYTHON, "-m", "tools.first_gpu_run")
CALLS = ["start", "send_recv", "isend_irecv", "broadcast", "all_reduce", "reduce", "all_gather"]
CALLS += ["gather", "scatter", "reduce_scatter", "all_to_all", "barrier", "new_group"]
LAST_LINES = 15  # of the output of a step that failed
TRAINING_LIMIT = 170  # seconds, a little less than the step has


@dataclass(frozen=True)
class GpuStep:
    """One command, what it is to find out, and its time limit in seconds."""

    name: str
    question: str
    command: tuple[str, ...]
    limit: float


@dataclass(frozen=True)
class Ended:
    """How a step ended: `status` is its exit status, or None after its time limit.

    `lessons`: by name, whether each step of a lesson was skipped, passed or failed.
    """

    name: str
    status: int | None
    seconds: float
    lessons: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "ran into its limit" if self.status is None else f"exit status {self.status}"


def steps(folder: Path) -> list[GpuStep]:
    """All steps, the most useful first. `{n}` stands for two ranks, or one if two cannot run."""

    def run(*names: str, ranks: str = "{n}") -> tuple[str, ...]:
        return (*COLLECTIVES, "run", *names, "--backend", "nccl", "-n", ranks)

    def matrix(name: str, *options: str) -> tuple[str, ...]:
        return (*COLLECTIVES, "matrix", "--json", str(folder / f"{name}.json"), *options)

    return [
        GpuStep("environment", "Which torch, NCCL and GPUs are these?", (*COLLECTIVES, "env"), 60),
        GpuStep("one_rank", "Does NCCL run at all?", run("start", "all_reduce", ranks="1"), 120),
        GpuStep("two_ranks", "Do two ranks, on one GPU too?", run("all_reduce", ranks="2"), 120),
        GpuStep("calls", "Does each call give the right result?", run(*CALLS), 180),
        GpuStep("calls_4", "Also with four ranks?", run(*CALLS, ranks="4"), 180),
        GpuStep("hang", "Who is named if a rank stays away?", (*HERE, "--try", "hang"), 90),
        GpuStep("model", "Does a model come back whole?", (*HERE, "--try", "model"), 90),
        GpuStep(
            "quick",
            "Which forms work with float32?",
            matrix("quick", "--backend", "nccl", "--quick"),
            420,
        ),
        GpuStep("training", "Do the lessons on training hold?", run("training"), 300),
        GpuStep("model_parallel", "And those on large models?", run("model_parallel"), 300),
        GpuStep(
            "gloo_on_cuda",
            "What does gloo do with GPUs?",
            matrix("gloo", "--backend", "gloo", "--device", "cuda", "--quick"),
            300,
        ),
        GpuStep(
            "torchrun",
            "Does a lesson join torchrun's world?",
            (*TORCHRUN, "--nproc-per-node", "{n}", "lessons/all_reduce.py"),
            120,
        ),
        GpuStep(
            "train_ddp_1",
            "Does the program to take away train?",
            (*HERE, "--try", "train_ddp", "--ranks", "1"),
            180,
        ),
        GpuStep(
            "train_ddp_2",
            "And with two ranks, in how many seconds?",
            (*HERE, "--try", "train_ddp", "--ranks", "2"),
            180,
        ),
        GpuStep(
            "bandwidth",
            "How fast is all_reduce?",
            (*COLLECTIVES, "bench", "bus", "all_reduce", "--backend", "nccl", "-n", "{n}"),
            180,
        ),
        GpuStep(
            "pytest",
            "What does the pytest plugin say?",
            (PYTHON, "-m", "pytest", "-q", "--pyargs", "collectives.verify", "--backend", "nccl"),
            600,
        ),
        GpuStep("algorithms", "Do the textbook algorithms?", run("algorithms"), 300),
        GpuStep(
            "matrix", "Every call, type and reduction", matrix("nccl", "--backend", "nccl"), 1800
        ),
    ]


# What no command of ours asks by itself.


def _stay_away(rank: int, world_size: int, device) -> None:
    """The last rank never comes to the all_reduce."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    if rank == world_size - 1:
        time.sleep(600)
    dist.all_reduce(x)
    x.item()  # on a GPU, it is here that the host waits


def try_hang(ranks: int) -> bool:
    """Print what `launch` says of a rank that stays away. Return whether it names that rank."""
    from collectives import LaunchError, launch

    try:
        launch(_stay_away, ranks, backend="nccl", timeout=20)
    except LaunchError as error:
        print(error)
        return error.rank == ranks - 1
    return False


def _a_model(rank: int, world_size: int, device):
    from torch import nn

    return nn.Linear(2, 2, device=device)


def try_model(ranks: int) -> bool:
    """Return whether a model that a rank returns is on the CPU and has its parameters."""
    from torch import nn

    from collectives import launch

    model = launch(_a_model, ranks, backend="nccl")[0]
    print(model, [(type(one).__name__, one.device) for one in model.parameters()])
    return all(
        isinstance(one, nn.Parameter) and one.device.type == "cpu" and one.requires_grad
        for one in model.parameters()
    ) and bool(list(model.parameters()))


def try_train_ddp(ranks: int) -> bool:
    """Train with the whole program, in a folder that goes again, since it keeps checkpoints."""
    program = ROOT / "examples/train_ddp.py"
    with tempfile.TemporaryDirectory() as folder:
        command = [*TORCHRUN, "--nproc-per-node", str(ranks), str(program)]
        return subprocess.run(command, cwd=folder, timeout=TRAINING_LIMIT).returncode == 0


TRIES: dict[str, Callable[[int], bool]] = {
    "hang": try_hang,
    "model": try_model,
    "train_ddp": try_train_ddp,
}


def perform(step: GpuStep, ranks: int, file: Path, hide: Callable[[str], str]) -> Ended:
    """Run a step, and write what it prints without what `hide` takes out."""
    command = [word.replace("{n}", str(ranks)) for word in step.command]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path()), "NO_COLOR": "1"},
        )
        try:
            status: int | None = process.wait(step.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also after Ctrl-C: the ranks end with the process that started them
            _end(process)
        output.seek(0)
        printed = output.read()
    shown = " ".join(["python", *command[1:]])
    file.write_text(hide(f"$ {shown}\n{printed}"), encoding="utf-8")
    seconds = round(time.monotonic() - begin, 1)
    return Ended(step.name, status, seconds, of_lessons(printed))


def of_lessons(printed: str) -> dict[str, str]:
    """By name, how each step of a lesson ended, in what a run of lessons prints."""
    found = OF_A_LESSON.findall(printed)
    return {name: skipped or ("passed" if known else "failed") for name, skipped, known in found}


def _import_path() -> list[str]:
    """The repository first: a machine without network cannot install it."""
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


def _end(process: subprocess.Popen) -> None:
    """SIGINT, after which a launch ends its ranks, and SIGKILL for what is left of the group."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def hiding() -> Callable[[str], str]:
    """A function that replaces the names of the machine and the user, and all paths here."""
    hidden = {
        str(ROOT): "CHECKOUT",
        sys.prefix: "PYTHON",
        sys.base_prefix: "PYTHON",
        str(Path.home()): "HOME",
        tempfile.gettempdir(): "TMP",
        socket.gethostname(): "HOST",
        getpass.getuser(): "USER",
    }
    longest_first = sorted((text for text in hidden if len(text) > 1), key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in longest_first))
    return lambda text: pattern.sub(lambda found: hidden[found[0]], text)


def summary(every: list[GpuStep], ended: dict[str, Ended], folder: Path) -> str:
    """How each step ended, and what is not as claimed and not as rehearsed."""
    title = "A rehearsal of it: no GPU was used" if IS_REHEARSAL else "The first run on GPUs"
    lines = [f"# {title}", "", "| step | question | it ended | seconds |"]
    lines.append("| --- | --- | --- | --- |")
    for step in every:
        found = ended.get(step.name)
        outcome = (str(found), f"{found.seconds:.0f}") if found else ("not yet run", "")
        lines.append(f"| {step.name} | {step.question} | {' | '.join(outcome)} |")
    for other, differences in (
        ("claimed", _not_as_claimed(folder)),
        ("rehearsed", _not_as_rehearsed(ended, folder)),
    ):
        lines += ["", f"## Not as {other}", ""]
        lines += [f"- {text}" for text in differences] or [
            "Nothing was found, or nothing measured."
        ]
    for name, found in ended.items():
        if found.status != 0:
            text = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
            lines += ["", f"## {name}: {found}", "", "```text", *text[-LAST_LINES:], "```"]
    return "\n".join(lines) + "\n"


def _not_as_claimed(folder: Path) -> list[str]:
    from collectives.matrix import recorded
    from collectives.matrix.claimed import differences

    # The whole matrix has what the quick one has.
    nccl = next((one for one in ("nccl.json", "quick.json") if (folder / one).exists()), "")
    paths = [folder / name for name in (nccl, "gloo.json") if name and (folder / name).exists()]
    return [one.text for path in paths for one in differences(recorded.read(path))]


def _not_as_rehearsed(ended: dict[str, Ended], folder: Path) -> list[str]:
    """The rehearsal knows what runs, and what torch and NCCL refuse. It knows no times."""
    from collectives.matrix import recorded

    before, found = _ended(REHEARSED), []
    for step in ended.values():
        was = before.get(step.name, step)
        # What failed there may be the fault of the rehearsal itself.
        if was.status == 0 and step.status != 0:
            found.append(f"{step.name}: {step}; rehearsed: {was}")
        for name, there in was.lessons.items():
            here = step.lessons.get(name, there)
            if here != there != "failed":
                found.append(f"{step.name}: {name} {here}; rehearsed: {there}")
    if (folder / "quick.json").exists():
        both = recorded.read(REHEARSED / "quick.json"), recorded.read(folder / "quick.json")
        cells = recorded.differences(*both)
        found += [text for kind, text in cells if kind in ("worse", "better")]
    return found


def _ended(folder: Path) -> dict[str, Ended]:
    """How the steps of a run ended, by name."""
    state = folder / "steps.json"
    rows = json.loads(state.read_text(encoding="utf-8")) if state.exists() else []
    return {row["name"]: Ended(**row) for row in rows}


def keep(folder: Path) -> None:
    """Make a rehearsed run the one to compare with, without its seconds, which mean nothing."""
    from collectives.matrix import recorded

    # The gloo of a CPU build has no all_reduce for GPUs, so this step cannot be rehearsed.
    rehearsed = [one for one in _ended(folder).values() if one.name != "gloo_on_cuda"]
    rows = [asdict(replace(one, seconds=0.0)) for one in rehearsed]
    (REHEARSED / "steps.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    found = recorded.read(folder / "quick.json")
    cells = [replace(cell, seconds=0.0) for cell in found.cells]
    text = recorded.as_json(replace(found, platform="rehearsed", cells=cells))
    (REHEARSED / "quick.json").write_text(text, encoding="utf-8")


def run_all(folder: Path, minutes: float) -> int:
    """Run what `folder` has not yet. 0: each step ended with 0; 1: not so; 3: there is no GPU."""
    from collectives.backends import availability

    if reason := availability.unavailable("nccl", "cuda", 1):
        print(f"Nothing can be run here: {reason}.")
        return 3
    folder.mkdir(parents=True, exist_ok=True)
    state, ended = folder / "steps.json", _ended(folder)
    every, hide = steps(folder), hiding()
    deadline = time.monotonic() + 60 * minutes
    for step in every:
        if step.name in ended:
            print(f"{step.name}: ended before ({ended[step.name]})")
            continue
        if time.monotonic() > deadline:
            print(f"{minutes:g} minutes are over. The same command goes on with {step.name}.")
            break
        two = ended.get("two_ranks")
        ranks = 2 if two and two.status == 0 else 1
        print(f"{step.name}: {step.question} At most {step.limit:.0f} s ...", flush=True)
        ended[step.name] = perform(step, ranks, folder / f"{step.name}.txt", hide)
        print(f"  {ended[step.name]}, {ended[step.name].seconds:.0f} s", flush=True)
        state.write_text(json.dumps([asdict(one) for one in ended.values()], indent=1))
        (folder / "summary.md").write_text(hide(summary(every, ended, folder)), encoding="utf-8")
    print(f"Look at {folder / 'summary.md'}, and send in the folder.")
    return int(any(one.status != 0 for one in ended.values()))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("first-gpu-run"))
    parser.add_argument("--minutes", type=float, default=30, help="no step begins after them")
    parser.add_argument("--try", dest="tried", choices=TRIES, help="only this, as a step does")
    parser.add_argument("--ranks", type=int, default=2)
    if IS_REHEARSAL:
        parser.add_argument("--keep", action="store_true", help="to compare later runs with it")
    options = parser.parse_args()
    try:
        if options.tried:
            return int(not TRIES[options.tried](options.ranks))
        status = run_all(options.folder.absolute(), options.minutes)
        if IS_REHEARSAL and options.keep:
            keep(options.folder)
        return status
    except ModuleNotFoundError as error:
        print(
            f"{PYTHON} has no {error.name}. With a network, `pip install -e '.[test]'` brings what "
            "is missing and keeps your torch. Without one, type "
            "`pip download -d wheels '.[test]'` elsewhere, copy the folder, and install from it "
            "by `pip install --no-index --find-links wheels NAME`.",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
