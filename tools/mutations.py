"""Plant random faults, one at a time, and see which of them no test notices.

    make mutations ARGS="--number 30 --seed 7 diagnosis semantics"

A fault is one operator of Cosmic Ray at one place: another comparison, number or constant, `and`
for `or`, a loop that is left out. Each is planted in a copy of the repository. The tests of its
room run there until one fails; a run that takes far longer than usual counts as a failure, too.
What survives is printed with its difference. The exit status is 1 if that is more than a tenth.
The tests of a room take from seconds to minutes, and so many times that long takes the whole.
"""

import argparse
import ast
import contextlib
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parent.parent
# The folders of the package, each with its tests in the folder of the same name.
ROOMS = [
    path.name
    for path in sorted(ROOT.glob("tests/[a-z]*"))
    if (ROOT / "collectives" / path.name).is_dir()
]
# The matrix asks backends by what lies in `semantics`, and its tests lie to it.
# Exercises and what a run draws are in `course`.
ALSO = {
    "semantics": ["tests/matrix/test_matrix.py"],
    "course": ["tests/exercises", "tests/pictures/test_views.py"],
}
LONGEST = 600.0  # seconds for the tests of a room without a fault
PATIENCE = 3.0  # times as long they may take with one


def faults(code: str) -> list[list[tuple]]:
    """For each place where something can be wrong: the operators, and their occurrence there."""
    tree = get_ast(code)
    found: dict[tuple, list[tuple]] = {}
    for name in plugins.operator_names():
        # Some would have to be told names. `is` for `==` seldom makes a difference.
        if plugins.get_operator(name).arguments() or "_Is" in name:
            continue
        operator, occurrence = plugins.get_operator(name)(), 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                found.setdefault(start, []).append((operator, occurrence))
                occurrence += 1
    return list(found.values())


def meaning(code: str) -> str:
    """The program without its annotations, which no test can judge."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for field in {"annotation", "returns"} & set(node._fields):
            setattr(node, field, None)
    return ast.dump(tree)


def draw_faults(number: int, rooms: list[str], draw: random.Random) -> list[tuple[str, Path, str]]:
    """`number` faults at different places: the room, the file, and its code with the fault."""
    places = [
        (room, file, place)
        for room in rooms
        for file in sorted((ROOT / "collectives" / room).rglob("*.py"))
        for place in faults(file.read_text())
    ]
    found = []
    for room, file, place in draw.sample(places, len(places)):
        code = file.read_text()
        changed = mutate_code(code, *draw.choice(place))
        with contextlib.suppress(SyntaxError):
            if meaning(changed) != meaning(code):
                found.append((room, file.relative_to(ROOT), changed))
        if len(found) == number:
            break
    return found


def passes(copy: Path, room: str, limit: float) -> bool:
    # subtle: a .pyc is told from its source by seconds and size, which a fault may not change.
    environ = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-xq", "-m", "not slow", f"tests/{room}"]
    command += ALSO.get(room, [])
    process = subprocess.Popen(
        command, cwd=copy, env=environ, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def survives(copy: Path, limits: dict[str, float], room: str, file: Path, changed: str) -> bool:
    code = (ROOT / file).read_text()
    (copy / file).write_text(changed)
    survived = passes(copy, room, limits[room])
    (copy / file).write_text(code)
    if survived:
        lines = code.splitlines(), changed.splitlines()
        print(*difflib.unified_diff(*lines, str(file), n=1, lineterm=""), "", sep="\n", flush=True)
    return survived


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    # subtle: argparse holds a default list against `choices` as if it were one word.
    parser.add_argument("rooms", nargs="*", metavar=f"{{{','.join(ROOMS)}}}")
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    asked.rooms = asked.rooms or ROOMS
    if unknown := set(asked.rooms) - set(ROOMS):
        parser.error(f"there is no room {', '.join(sorted(unknown))} here: {', '.join(ROOMS)}")
    print(f"--number {asked.number} --seed {asked.seed} {' '.join(asked.rooms)}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy, limits = Path(folder, "copy"), {}
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for room in asked.rooms:
            begin = time.monotonic()
            if not passes(copy, room, LONGEST):
                raise SystemExit(f"the tests of {room} fail without any fault, or take too long")
            took = time.monotonic() - begin
            limits[room] = PATIENCE * took
            print(f"the tests of {room} take {took:.0f} s", flush=True)
        planted = draw_faults(asked.number, asked.rooms, random.Random(asked.seed))
        left = sum(survives(copy, limits, *fault) for fault in planted)
    print(f"{len(planted) - left} of {len(planted)} faults were noticed; {left} were not.")
    return int(left > len(planted) / 10)


if __name__ == "__main__":
    sys.exit(main())
