"""Load the recorder at the start of each Python process that `collectives diagnose` runs.

It notes who this process is, before anything that may take long, loads the recorder, then runs the
sitecustomize that would have run without us. The recorder is loaded under a package name of its
own: the program may have a module `collectives` of its own, or none at all.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types


def _load_recorder(folder: str) -> None:
    package = sys.modules["_collectives_recorder"] = types.ModuleType("_collectives_recorder")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[2])]
    try:
        from _collectives_recorder.recording import process_start

        process_start.note(folder)
        from _collectives_recorder.recording import inject

        recording = inject.Recording(pathlib.Path(folder))
        recording.begin()
        if watch := os.environ.get("COLLECTIVES_WATCH"):  # of a tool that looks at more than calls
            importlib.import_module(f"_collectives_recorder.{watch}").begin(recording)
    except Exception as error:  # the program runs on without it, and the report says so
        with open(os.path.join(folder, f"{os.getpid()}.unwatched"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")


def _run_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("COLLECTIVES_DIAGNOSE"):
    _load_recorder(os.environ["COLLECTIVES_DIAGNOSE"])
_run_shadowed_sitecustomize()
