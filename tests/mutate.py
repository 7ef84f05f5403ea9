"""Apply the one-line faults of mutations.toml one by one, and see the tests named there turn red.

    make mutations                      all of them
    make mutations ARGS='--only claims' those whose name or file contains "claims"

Every change is made in a temporary copy of the working tree, which the tests import. The exit
status is 1 if a change does not turn its tests red: they pass (SURVIVED), reach their time limit
(timeout), do not run at all (broken), or need something that is not on this machine (skipped).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
MUTATIONS = ROOT / "tests" / "mutations.toml"

# For the tests of one change, in seconds: with a fault they may wait for what never comes.
LIMIT = 120.0

_NOT_COPIED = (".git", ".venv*", "__pycache__", ".pytest_cache", ".ruff_cache", "*.egg-info")

# By pytest's exit status. With any other one it did not run the tests.
_RESULTS = {0: "SURVIVED", 1: "killed"}

# pytest, ended at once: with a fault in the launcher, Python's exit may wait for ranks that go on.
_PYTEST = "import os, pytest, sys; status = pytest.main(); sys.stdout.flush(); os._exit(status)"

# Every process that a test run starts has this variable in its environment.
_MARK = "COLLECTIVES_MUTATION_RUN"


@dataclass(frozen=True)
class Mutation:
    """Replace `old`, a part of one line that occurs once in `file`, by `new`.

    `why` says what would be broken for a user; `tests` are the pytest node ids that must turn red.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.file}"
            )
        return text.replace(self.old, self.new)


def load(path: Path = MUTATIONS) -> list[Mutation]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**row | {"tests": tuple(row["tests"])}) for row in rows]


def copy_tree(folder: Path) -> Path:
    """A copy of the working tree in `folder`. RuntimeError if Python would import another one."""
    copy = folder / "tree"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    code = "import collectives; print(collectives.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=_environ(copy), cwd=folder, capture_output=True, text=True
    )
    if not found.stdout.startswith(str(copy)):
        raise RuntimeError(
            f"tests would import {found.stdout or found.stderr}, not the copy {copy}"
        )
    return copy


def _environ(copy: Path) -> dict[str, str]:
    # subtle: a change of the same length within a second leaves size and time of the file as they
    # were, so that Python would take the bytecode from before it.
    return os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(copy: Path, arguments: list[str], limit: float) -> tuple[str, str]:
    """Run the tests in the copy: a result as in the summary, and what pytest printed."""
    mark = uuid.uuid4().hex
    # conftest.py has the ranks' server import the compiler, which pays off for many tests only.
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "--tb=short"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PYTEST, *options, *arguments],
            cwd=copy,
            env=_environ(copy) | {_MARK: mark, "TMPDIR": str(copy.parent)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            result = _RESULTS.get(process.wait(limit), "broken")
        except subprocess.TimeoutExpired:
            result = "timeout"
        finally:
            _kill_marked(mark)
            process.wait()
        output.seek(0)
        text = output.read()
    if result == "SURVIVED" and " passed" not in text:
        result = "skipped"  # what the tests need is not on this machine
    return result, text


def _kill_marked(mark: str) -> None:
    """Kill what the run has left behind, in whatever session: a fault may leave ranks running."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                process.kill()
        except psutil.Error:  # it has ended, or is somebody else's
            continue


def try_mutation(copy: Path, mutation: Mutation, limit: float) -> tuple[str, str]:
    path = copy / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied(text), encoding="utf-8")
    try:
        return run_tests(copy, ["-x", *mutation.tests], limit)
    finally:
        path.write_text(text, encoding="utf-8")


def try_all(mutations: list[Mutation], workers: int, limit: float, verbose: bool) -> Counter:
    """Print a line for each mutation; return how often each result came."""
    waiting = iter(mutations)
    results: Counter = Counter()
    printing = threading.Lock()

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_tree(Path(folder))
            for mutation in waiting:  # shared: each worker takes the next one
                begin = time.monotonic()
                result, output = try_mutation(copy, mutation, limit)
                with printing:
                    results[result] += 1
                    count = f"{results.total()}/{len(mutations)}"
                    seconds = time.monotonic() - begin
                    print(f"{count:>7}  {result:<8}  {seconds:5.1f} s  {mutation.name}", flush=True)
                    if result != "killed":
                        print(f"         {mutation.file}: {mutation.why}", flush=True)
                    if verbose or result == "broken":
                        print(output, flush=True)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="WORD", help="of those with it in name or file"
    )
    parser.add_argument("-n", type=int, default=1, help="mutations at a time (default %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each (%(default)g)")
    parser.add_argument("--verbose", action="store_true", help="print what pytest prints")
    options = parser.parse_args()
    mutations = [one for one in load() if options.only in one.name or options.only in one.file]
    if not mutations:
        parser.error(f"--only {options.only}: no mutation has this in its name or file")
    begin = time.monotonic()
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    print(f"{len(mutations)} mutations; first their {len(tests)} tests without any ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result, output = run_tests(copy_tree(Path(folder)), tests, limit=LIMIT * 10)
    if result != "SURVIVED":
        print(f"{output}\nthe tests fail without a mutation: {result}")
        return 1
    results = try_all(mutations, options.n, options.limit, options.verbose)
    rate = results["killed"] / len(mutations)
    told = ", ".join(f"{count} {result}" for result, count in sorted(results.items()))
    print(f"{told}: kill rate {rate:.0%}, in {time.monotonic() - begin:.0f} s")
    return int(results["killed"] < len(mutations))


if __name__ == "__main__":
    sys.exit(main())
