"""Python runs this at its start in every process of a program that `collectives diagnose` runs: PYTHONPATH leads here.

It lets the recorder in, then runs the sitecustomize that would have run without us. The program never sees the modules of the
recorder: it may have a module `collectives` of its own, or none at all.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types


def _let_recorder_in(folder: str) -> None:
    package = types.ModuleType("collectives")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[2])]
    hidden = {"collectives": package}
    sys.modules["collectives"] = package
    try:
        from collectives.recording import inject

        inject.begin(folder, hidden)
    except Exception as error:  # the program runs on without it, and the report says so
        with open(os.path.join(folder, f"{os.getpid()}.unwatched"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
    finally:
        for name in [
            name for name in sys.modules if name == "collectives" or name.startswith("collectives.")
        ]:
            hidden[name] = sys.modules.pop(name)


def _run_the_one_behind() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("COLLECTIVES_DIAGNOSE"):
    _let_recorder_in(os.environ["COLLECTIVES_DIAGNOSE"])
_run_the_one_behind()
