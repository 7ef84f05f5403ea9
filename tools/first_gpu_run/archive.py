"""The folder of a run as one file to send in, and back."""

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tools.first_gpu_run.perform import Ended

STATE = "steps.json"
# What a step writes. Nothing else is packed, and nothing else is unpacked.
OURS = re.compile(r"\w+\.(?:txt|json|md)")
# A zip says when each file was written; this is its first day.
NO_TIME = (1980, 1, 1, 0, 0, 0)


def read_state(folder: Path) -> dict[str, Ended]:
    """How the steps of a run ended, by name."""
    state = folder / STATE
    rows = json.loads(state.read_text(encoding="utf-8")) if state.exists() else []
    return {row["name"]: Ended(**row) for row in rows}


def write_state(folder: Path, ended: dict[str, Ended]) -> None:
    rows = [asdict(one) for one in ended.values()]
    (folder / STATE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def pack(folder: Path, archive: Path, hide: Callable[[str], str]) -> None:
    """Write the archive anew. It replaces the older one when all of it is on the disk."""
    unfinished = archive.with_name(f"{archive.name}.unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(folder.iterdir()):
            if OURS.fullmatch(file.name):
                member = zipfile.ZipInfo(f"first-gpu-run/{file.name}", NO_TIME)
                member.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(member, hide(file.read_text(encoding="utf-8")))
    unfinished.replace(archive)


def unpack(archive: Path, folder: Path) -> None:
    """Bring back into `folder` the steps of an archive that it does not have.

    ValueError, in one sentence, if the file is no archive of a run.
    """
    here = read_state(folder)
    try:
        with zipfile.ZipFile(archive) as packed:
            files = {Path(one).name: packed.read(one) for one in packed.namelist()}
        there = {row["name"]: Ended(**row) for row in json.loads(files[STATE])}
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{archive} is no archive of `make gpu`, so it stays as it is ({error}): "
            "name another one with --archive."
        ) from None
    taken = {name: one for name, one in there.items() if name not in here or here[name].is_cut}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if OURS.fullmatch(name) and Path(name).stem in taken:
            (folder / name).write_bytes(data)
    write_state(folder, here | taken)
