"""Dumps of torch's Flight Recorder, a file for each rank -> the verdict of the diagnosis."""

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from collectives.diagnosis.rules.flight_record import match_records
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.recording.ending import Ending
from collectives.recording.rank_log import newest_collectives
from collectives.words import ranks

# A dump of 2000 calls with their stacks has a few MB.
_LARGEST = 2**25
_DEFAULT_GROUP = ("default_pg", "")  # what gloo and NCCL write as its description

# What dumps are made of: numbers, texts, lists, tuples and dicts. There is no way to name a
# function, or a class.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE),
    *(pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM),
    *(pickle.SETITEMS, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2),
    *(pickle.TUPLE3, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET),
    pickle.LONG_BINGET,
)


class _Unpickler(pickle._Unpickler):
    """Python's own in Python: it does what `dispatch` holds for an opcode, and nothing else."""

    dispatch = {  # noqa: RUF012
        opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES
    }


@dataclass(frozen=True)
class Dump:
    """What a rank noted. `groups`: by torch's name, the description and the ranks of each."""

    records: list[dict]
    groups: dict[str, tuple[str, tuple[int, ...]]]


def is_dump(begin: bytes) -> bool:
    """Whether a file that begins so is a dump, and no log: a pickle of protocol 2 or later."""
    return len(begin) > 1 and begin[0] == pickle.PROTO[0] and begin[1] <= pickle.HIGHEST_PROTOCOL


def read(stream: BinaryIO) -> Dump:
    """Raises ValueError for what is no dump."""
    data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"is larger than {_LARGEST >> 20} MiB, the limit for a dump.")
    try:
        # subtle: from a file itself, a length that is too large would be allocated.
        dump = _Unpickler(io.BytesIO(data)).load()
        return Dump(
            list(map(_checked, dump["entries"])), dict(map(_group, dump["pg_config"].items()))
        )
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"is no dump of the Flight Recorder: {why}.") from None


def rank_of(file: Path) -> int:
    """The number at the end of its name: a dump itself does not say whose it is."""
    if (number := re.search(r"(\d{1,6})\D*$", file.name)) is None:
        raise ValueError(f"{file}: its name must end with the number of the rank.")
    return int(number[1])


def verdict(dumps: Mapping[int, Dump]) -> Verdict:
    """`dumps`: by rank."""
    groups = {name: group for dump in dumps.values() for name, group in dump.groups.items()}
    world = [members for desc, members in groups.values() if desc in _DEFAULT_GROUP]
    world_size = max((*map(len, world), max(dumps) + 1))
    answers = {
        rank: {
            "world": 1,
            **newest_collectives(dump.records, _first(dump.records), len(dump.records)),
        }
        for rank, dump in dumps.items()
    }
    states = {rank: State(in_torch=True) for rank in dumps}
    states |= {
        rank: State(Ending.ELSEWHERE, "no dump of it")
        for rank in set(range(world_size)) - dumps.keys()
    }
    members = {name: members for name, (_, members) in groups.items()}
    c10d = match_records(answers, members, world_size)
    verdict = judge(Matching(), states, world_size, stalled=True, c10d=c10d)
    if verdict.kind is Ending.OK:
        missing = states.keys() - dumps.keys()
        kind = Ending.PARTIAL if missing else Ending.OK
        what = f"the collectives of {ranks(dumps)} fit together, and none is under way"
        what += f"; there is no dump of {ranks(missing)}" if missing else ""
        verdict = replace(verdict, kind=kind, what=what)
    return verdict


def _first(records: list[dict]) -> int:
    """So that calls that a rank has overwritten do not count as lost."""
    return records[0]["record_id"] if records else 0


def _checked(record: dict) -> dict:
    """What is read of a record. Raises an error if it has another type."""
    name, description = record["process_group"]
    frames = [
        {
            "filename": _text(frame["filename"]),
            "line": int(frame["line"]),
            "name": _text(frame["name"]),
        }
        for frame in record["frames"]
    ]
    return {
        "record_id": int(record["record_id"]),
        "is_p2p": bool(record["is_p2p"]),
        "process_group": (_text(name), _text(description)),
        "collective_seq_id": int(record["collective_seq_id"]),
        "profiling_name": _text(record["profiling_name"]),
        "input_sizes": [[int(length) for length in shape] for shape in record["input_sizes"]],
        "input_dtypes": list(map(_text, record["input_dtypes"])),
        # NCCL's watchdog retires what it has seen completed.
        "retired": bool(record["retired"]) or record["state"] == "completed",
        "frames": frames,
    }


def _group(item: tuple[str, dict]) -> tuple[str, tuple[str, tuple[int, ...]]]:
    name, group = item
    return _text(name), (_text(group["desc"]), tuple(map(int, json.loads(group["ranks"]))))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a text")
    return value
