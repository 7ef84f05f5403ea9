"""Run a command as if this machine had GPUs and NCCL: `rehearse.py --gpus 2 COMMAND`.

The `cuda` device is the CPU, and messages go over gloo, so this shows what a program asks of a GPU
and of NCCL. It shows neither numbers nor times of a GPU.
"""

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "cuda.cpp"
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
NAME = "rehearsed_cuda"


def missing() -> str | None:
    """Why this machine cannot rehearse, or None."""
    tested = re.search(r"^torch==(.*)$", CONSTRAINTS.read_text(), re.MULTILINE)[1]
    here = importlib.metadata.version("torch")
    if sys.platform != "linux":
        return "a rehearsal of the GPUs needs Linux"
    if here != f"{tested}+cpu":
        return f"a rehearsal of the GPUs needs torch {tested}+cpu, this is {here}"
    return None


def missing_tools() -> str | None:
    """What .ci/install brings, if it is not here."""
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    if shutil.which("g++") and headers:
        return None
    return "a rehearsal of the GPUs needs g++ and Python's headers: install them"


def built() -> Path:
    """The library that plays the GPUs, which lies in the virtual environment."""
    text = SOURCE.read_bytes() + importlib.metadata.version("torch").encode()
    name = f"{NAME}-{hashlib.sha256(text).hexdigest()[:12]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    library = Path(sys.prefix, "rehearsal", name)
    if not library.exists():
        print("building what plays the GPUs: a minute", file=sys.stderr, flush=True)
        library.parent.mkdir(exist_ok=True)
        torch = Path(importlib.metadata.distribution("torch").locate_file("torch"))
        includes = [torch / "include", torch / "include/torch/csrc/api/include"]
        includes.append(sysconfig.get_paths()["include"])
        # Under another name until it is whole: others may build it at the same time.
        unfinished = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                *("nice", "g++", "-std=c++20", "-O0", "-fPIC", "-shared", "-w"),
                *(f"-DTORCH_EXTENSION_NAME={NAME}", "-DUSE_DISTRIBUTED"),
                *(f"-isystem{folder}" for folder in includes),
                *(SOURCE, "-o", unfinished, f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib"),
                *("-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"),
            ],
            check=True,
            timeout=900,
        )
        for older in library.parent.glob(f"{NAME}-*.so"):
            older.unlink()
        unfinished.rename(library)
    return library


def environment(gpus: int, nccl: str = "2.30.7", torch_names: str = "") -> dict[str, str]:
    """The variables of a process on a machine with so many GPUs, this NCCL and an older torch."""
    paths = [str(HERE / "startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "REHEARSED_CUDA": str(built()),
        "REHEARSED_GPUS": str(gpus),
        "REHEARSED_NCCL": nccl,
    }
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    if torch_names:
        environ["REHEARSED_TORCH_NAMES"] = torch_names
    return environ


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=4, help="so many (default: %(default)s)")
    parser.add_argument("--nccl", default="2.30.7", help="its version (default: %(default)s)")
    parser.add_argument("--torch-names", choices=["2.11"], help="only what this torch has")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    words = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit()
    if reason := missing_tools():
        sys.exit(reason)  # no skip: nothing else is in the way
    print(f"rehearsed, not run on a GPU: {words.gpus} GPUs", file=sys.stderr, flush=True)
    environ = environment(words.gpus, words.nccl, words.torch_names)
    os.execvpe(words.command[0], words.command, environ)
