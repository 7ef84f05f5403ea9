"""The programs of examples/weight_update_engines, as forks of a process that has imported torch: a
start costs a tenth of a second.
"""

import contextlib
import importlib.util
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "weight_update_engines"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed"])
LIMIT = 4  # seconds


def module(name: str):
    """One of the folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found  # dataclasses look there
    spec.loader.exec_module(found)
    return found


def faults() -> dict[str, str]:
    """What each of them does, in a line."""
    names = module("faults").FAULTS
    return {name: plant.__doc__.splitlines()[0] for name, plant in names.items() if name != "none"}


def lacks(fault: str, protocol: str) -> str:
    """Why it is no fault there, or an empty text."""
    where, why = module("faults").LACKS.get(fault, ("", ""))
    return why if where == protocol else ""


def play(name: str, words: list, out: str, folder: Path = FOLDER) -> None:
    """One of the programs, in this process, with its stdout and stderr in files."""
    for number, file in ((1, out), (2, f"{out}.err")):
        with open(file, "wb") as stream:
            os.dup2(stream.fileno(), number)
    sys.path.insert(0, str(folder))
    sys.argv = [name, *map(str, words)]
    runpy.run_path(str(folder / name), run_name="__main__")


@contextlib.contextmanager
def engine(protocol: str, folder: Path = FOLDER, **options) -> Iterator[str]:
    """Its address."""
    words = [word for name, one in options.items() for word in (f"--{name}", one)]
    with tempfile.TemporaryDirectory() as outputs:
        out = Path(outputs, "engine")
        words = ["--protocol", protocol, *words]
        process = FORKS.Process(target=play, args=("stub_engine.py", words, str(out), folder))
        process.start()
        try:
            end = time.monotonic() + 60
            while not (out.exists() and "\n" in out.read_text("utf-8")):
                assert process.is_alive(), Path(f"{out}.err").read_text("utf-8")
                assert time.monotonic() < end
                time.sleep(0.01)
            yield out.read_text("utf-8").strip()
        finally:
            process.terminate()
            process.join(30)
            process.kill()
            process.join()


def trained(protocol: str, engines: list[str], *words) -> tuple[int, dict, list[str]]:
    """The trainer's exit status, the JSON of its last line, and the lines before it."""
    addresses = [word for one in engines for word in ("--engine", one)]
    command = ["--protocol", protocol.partition("-")[0], "--limit", LIMIT, *addresses, *words]
    with tempfile.TemporaryDirectory() as outputs:
        out = Path(outputs, "trainer")
        process = FORKS.Process(target=play, args=("trainer.py", command, str(out)))
        process.start()
        process.join(150)
        text = out.read_text("utf-8")
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(text)
        assert text.endswith("}\n"), text + Path(f"{out}.err").read_text("utf-8")
    *lines, last = text.splitlines()
    return process.exitcode, json.loads(last), lines


def met(fault: str, protocol: str, healthy: str) -> dict:
    """What a trainer says of an engine with a fault beside a healthy one, and who is left."""
    with engine(protocol, tp=2, fault=fault) as faulty:
        status, last, _ = trained(protocol, [healthy, faulty], "--updates", 2)
    names = {healthy: "healthy", faulty: "faulty", "trainer": "trainer"}
    said = [
        {
            "where": names[one["where"]],
            "what": one["what"].replace(faulty, "URL"),
            "next": one["next"],
        }
        for one in last["named"]
    ]
    seconds = max((one["seconds"] for one in last["named"]), default=0)
    held = [names[one] for one in last["held_by"]]
    return {"status": status, "said": said, "seconds": seconds, "held_by": held}
