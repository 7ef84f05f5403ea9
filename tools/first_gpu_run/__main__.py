"""The first twelve minutes on a machine with GPUs: what nobody has run yet, in order of its use.

    make gpu
    make gpu ARGS="--minutes 6 --archive /somewhere/first-gpu-run.zip"
    make gpu ARGS="--plan"

Each step is a command with a time limit of its own, which is cut to what is left of the minutes.
Its output is a file of the folder first-gpu-run, without the names of the machine and its user and
without paths, and after each step the whole folder is packed anew into the archive. The same
command goes on where the last one stopped: from the folder, or, in another checkout, from the
archive. The file summary.md says how each step ended, and what is neither as we claim nor as we
have rehearsed. Send in the archive.

The rehearsal lies in tools/first_gpu_run/rehearsed. This makes it anew, without any GPU, on a
machine that does nothing else, because its seconds are kept; with NCCL 2.30.7 it has group 5, too:

    .venv/bin/python tests/rehearsal/rehearse.py --gpus 1 --nccl 2.28.9 make gpu ARGS=--keep
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tools.first_gpu_run import archive, failures, tries
from tools.first_gpu_run.perform import Ended, hiding, perform
from tools.first_gpu_run.plan import IS_REHEARSAL, PYTHON, Machine, steps
from tools.first_gpu_run.summary import keep, plan, summary

TRIES = tries.TRIES | failures.TRIES
BEGUN = time.monotonic()
MINUTES = 12.0
LEAST = 5.0  # seconds: less is no time in which a step could tell anything


def this_machine(library: Path | None) -> Machine:
    from collectives.backends import availability

    shares = library is not None or not availability.unavailable("nccl", "cuda", 4)
    return Machine(availability.gpu_count(), shares, library)


def run_all(
    folder: Path, packed: Path, minutes: float, machine: Machine, patience: float = 1
) -> int:
    """Run what is not yet there. 0: each step ended with 0; 1: not so.

    `patience`: the steps have so many times their limits.
    """
    every, hide = steps(folder, machine), hiding()
    every = [replace(step, limit=patience * step.limit) for step in every]
    folder.mkdir(parents=True, exist_ok=True)
    if packed.exists():
        archive.unpack(packed, folder)
    ended, cut_off = archive.read_state(folder), ""
    for step in every:
        if step.name in ended and not ended[step.name].is_cut:
            print(f"{step.name}: ended before ({ended[step.name]})")
            continue
        left = BEGUN + 60 * minutes - time.monotonic()
        if left < LEAST:
            again = cut_off or step.name
            print(f"{minutes:g} minutes are over. The same command goes on with {again}.")
            break
        limit = min(step.limit, left)
        print(f"{step.name}: {step.question} At most {limit:.0f} s ...", flush=True)
        library = machine.library if step.group == 5 else None
        ended[step.name] = perform(step, left, folder / f"{step.name}.txt", hide, library)
        print(f"  {ended[step.name]}, {ended[step.name].seconds:.0f} s", flush=True)
        cut_off = step.name if ended[step.name].is_cut else cut_off
        _write(folder, packed, hide, every, ended)
    _write(folder, packed, hide, every, ended)
    print(f"Look at {folder / 'summary.md'}, and send in {packed}.")
    known = [step.name for step in every if not step.is_open]
    return int(any(ended[name].status != 0 for name in known if name in ended))


def _write(folder: Path, packed: Path, hide, every: list, ended: dict[str, Ended]) -> None:
    archive.write_state(folder, ended)
    (folder / "summary.md").write_text(hide(summary(every, ended, folder)), encoding="utf-8")
    archive.pack(folder, packed, hide)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no step runs beyond them")
    parser.add_argument("--folder", type=Path, default=Path("first-gpu-run"))
    parser.add_argument("--archive", type=Path, help="written after each step; FOLDER.zip")
    parser.add_argument("--nccl-library", type=Path, metavar="FILE", help="newer, for group 5")
    parser.add_argument("--plan", action="store_true", help="print it for this machine, and end")
    parser.add_argument("--try", dest="tried", choices=TRIES, help="only this, as a step does")
    parser.add_argument("--ranks", type=int, default=2, help="of --try")
    if IS_REHEARSAL:
        parser.add_argument("--keep", action="store_true", help="to compare later runs with it")
        parser.add_argument("--patience", type=float, default=1, help="of a busy machine: limits")
    options = parser.parse_args()
    folder, library = options.folder.absolute(), options.nccl_library
    packed = (options.archive or folder.with_suffix(".zip")).absolute()
    if library is not None and not library.is_file():
        parser.error(f"--nccl-library {library}: there is no such file")
    try:
        if options.tried:
            return int(not TRIES[options.tried](options.ranks))
        machine = this_machine(library.absolute() if library else None)
        if options.plan:
            print(plan(steps(folder, machine)))
            return 0
        from collectives.backends import availability

        # Also whoever is told to end ends the step first, whose processes are a group of their own.
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
        if reason := availability.unavailable("nccl", "cuda", 1):
            print(f"Nothing can be run here: {reason}.")
            return 3
        if not IS_REHEARSAL:
            return run_all(folder, packed, options.minutes, machine)
        status = run_all(folder, packed, options.minutes, machine, options.patience)
        if options.keep:
            keep(folder)
        return status
    except KeyboardInterrupt:
        print("\nmake gpu: stopped; the same command goes on.", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        print(
            f"{PYTHON} has no {error.name}. With a network, `pip install -e '.[test]'` brings what "
            "is missing and keeps your torch. Without one, type "
            "`pip download -d wheels '.[test]'` elsewhere, copy the folder, and install from it "
            "by `pip install --no-index --find-links wheels NAME`.",
            file=sys.stderr,
        )
        return 2
    except ValueError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
