"""What each step of a lesson does, as a text that is compared: `python -m tools.step_records`.

    python -m tools.step_records all_reduce           write the record of a lesson
    python -m tools.step_records --check all_reduce   0: equal; 1: it differs; 2: it cannot be asked
    python -m tools.step_records --check --lessons DIR all_reduce   of a whole copy of `lessons/`

The text comes from the recorder and from torch's dispatcher, never from the step. For each rank:

- its calls in the order in which it starts them and waits: group, other side, elements and dtype;
- each operator of c10d and each functional one, with its bytes, and the bytes of the memory behind
  its buffers. An operator of which this is not known fails;
- the bytes of the memory that its operators make, and the elements that they write;
- the most bytes that autograd keeps for a backward pass;
- the rows that reach a model, with gradients and without;
- how many files the step opens for writing.

The proof is a part of the step, so a changed proof changes the text, too.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from collectives import LaunchError, note_calls
from collectives.course import files
from collectives.launcher.launch import launch_in
from collectives.launcher.world import World
from collectives.recording.counts import SILENT, name_of
from collectives.semantics.calls import BY_NAME, POINT_TO_POINT
from collectives.verify.lessons import runnable

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tests" / "lessons" / "steps"
TORCH = "2.13.0"  # the tested one: another one has other operators
RANKS = 4
_LONGEST_ROUND = 64  # lines
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Watch(TorchDispatchMode):
    """What a rank's operators send, make and write, and the rows that reach its models."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder  # of the lesson
        self.sent: list[str] = []
        self.made = self.written = self.kept = self.most_kept = self.depth = 0
        self.rows: Counter[str] = Counter()
        self.files, self.is_open = 0, True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _tensors((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2].removesuffix("_out").removesuffix("_")
        if func.namespace not in _NAMESPACES:
            known = {one.untyped_storage()._cdata for one in given}
            made = [one for one in _tensors(result) if one.untyped_storage()._cdata not in known]
            self.made += sum(one.untyped_storage().nbytes() for one in made)
            self.written += sum(one.numel() for one in made)
        elif name not in SILENT:
            call = name_of(name)
            if call not in BY_NAME:
                raise ValueError(f"the bytes of the operator {func._schema.name} are not known")
            behind = sum(one.untyped_storage().nbytes() for one in given)
            nbytes = sum(one.nbytes for one in given)
            self.sent.append(f"{func.namespace}.{call}: {nbytes} bytes of {behind}")
        return result

    def keep(self, tensor):
        self.kept += tensor.nbytes
        self.most_kept = max(self.most_kept, self.kept)
        return _Kept(self, tensor)

    def enter_model(self, module, given):
        if self.depth == 0 and (tensors := _tensors(given)):
            how = "with gradients" if torch.is_grad_enabled() else "without"
            self.rows[how] += len(tensors[0])
        self.depth += 1

    def leave_model(self, module, given, result):
        self.depth -= 1

    def audit(self, event: str, given: tuple) -> None:
        """Python tells of each file that it opens, and cannot be asked to stop."""
        if event == "open" and self.is_open and given[2] & (os.O_WRONLY | os.O_RDWR):
            frame: FrameType | None = sys._getframe()
            names: list[str] = []
            while frame is not None:
                names.append(frame.f_code.co_filename)
                frame = frame.f_back
            is_step = any(Path(name).parent == self.folder for name in names)
            self.files += is_step and not any("importlib" in name for name in names)

    def lines(self) -> list[str]:
        return [
            *self.sent,
            f"makes {self.made} bytes, and writes {self.written} elements",
            *([f"keeps at most {self.most_kept} bytes for backward"] if self.most_kept else []),
            *(f"{rows} rows reach a model {how}" for how, rows in self.rows.items()),
            *([f"opens {self.files} files for writing"] if self.files else []),
        ]


class _Kept:
    """What autograd keeps, for as long as it does."""

    def __init__(self, watch: Watch, tensor):
        self.watch, self.tensor = watch, tensor

    def __del__(self) -> None:
        self.watch.kept -= self.tensor.nbytes


def _tensors(value) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def _text(call, rank: int, world_size: int) -> str:
    """As in "isend int64[1] with rank + 1"."""
    words = [call.name + (f" of {call.awaited}" if call.awaited else ""), *map(str, call.tensors)]
    words += [call.op] if call.op else []
    if call.peer is not None:
        is_message = (call.awaited or call.name) in POINT_TO_POINT
        relative = f"with rank + {(call.peer - rank) % world_size}"
        words.append(relative if is_message else f"root {call.peer}")
    words += [f"tag {call.tag}"] if call.tag else []
    if len(call.members) not in (0, world_size):
        words.append(f"in {list(call.members)}")
    return " ".join(words)


def record_step(step, folder: Path, rank: int, world_size: int, device) -> list[str]:
    """In a rank: the lines of a step."""
    watch, calls = Watch(folder), note_calls()
    sys.addaudithook(watch.audit)
    modules = torch.nn.modules.module
    hooks = [
        modules.register_module_forward_pre_hook(watch.enter_model),
        modules.register_module_forward_hook(watch.leave_model, always_call=True),
    ]
    try:
        kept = torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda kept: kept.tensor)
        with kept, watch:
            step(rank, world_size, device)
    finally:
        watch.is_open = False
        for hook in hooks:
            hook.remove()
    return [*(_text(call, rank, world_size) for call in calls), *watch.lines()]


def _record(rank: int, world_size: int, device, path: str) -> dict[str, list[str]]:
    module, wanted = files.load(Path(path)), {}
    for step in module.STEPS:
        dist.barrier()
        wanted[step.__name__] = record_step(step, Path(path).parent, rank, world_size, device)
    return wanted


def _rounds(lines: list[str]) -> list[str]:
    """Lines that come several times one after the other once, and how often: the shortest rounds
    first, then rounds of these.
    """
    found, place = [], 0
    while place < len(lines):
        size, times = 1, 1
        for size in range(1, min(_LONGEST_ROUND, (len(lines) - place) // 2) + 1):
            block, end = lines[place : place + size], place + size
            while lines[end : end + size] == block:
                end, times = end + size, times + 1
            if times > 1:
                break
        else:
            size = 1
        block = lines[place : place + size]
        if times > 1 and size > 1:
            block = [f"x {times}:", *(f"  {line}" for line in block)]
        elif times > 1:
            block = [f"{block[0]}  x {times}"]
        found += block
        place += size * times
    return found if found == lines else _rounds(found)


def text_of(name: str, folder: Path) -> str:
    """The record of a lesson. Ranks that do the same share their lines."""
    path = folder / f"{name}.py"
    lesson = files.load(path)
    if len(runnable(name, "gloo", "cpu", RANKS)) != len(lesson.STEPS):
        raise ValueError(f"{name} has steps that this world cannot run")
    world = World.chosen(RANKS, "gloo", "cpu", 300.0)
    ranks = launch_in(world, _record, (str(path),), diagnose=False)
    found = []
    for step in ranks[0]:
        by_lines: dict[tuple[str, ...], list[str]] = {}
        for rank, record in enumerate(ranks):
            by_lines.setdefault(tuple(_rounds(record[step])), []).append(str(rank))
        for lines, who in by_lines.items():
            found += [f"{step}, rank {', '.join(who)}:", *(f"  {line}" for line in lines)]
    return "\n".join([*found, ""])


def record_file(name: str) -> Path:
    return RECORDS / f"{name if '/' in name else f'calls/{name}'}.txt"


def difference(name: str, got: str, wanted: str) -> str:
    """The first line that differs, with its step and rank; "" if all are equal."""
    head, ours, theirs = "", got.splitlines(), wanted.splitlines()
    for number in range(max(len(ours), len(theirs))):
        line, right = ((*text[number : number + 1], "nothing")[0] for text in (ours, theirs))
        if line != right:
            return f"{name}, {head or line} it does: {line.strip()}; its record: {right.strip()}"
        head = line if not line.startswith(" ") else head
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.step_records")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lessons", type=Path, default=ROOT / "lessons")
    parser.add_argument("names", nargs="+", metavar="LESSON")
    options = parser.parse_args()
    if torch.__version__.partition("+")[0] != TORCH:
        print(f"records are those of torch {TORCH}, and this is {torch.__version__}")
        return 2
    status = 0
    for name in options.names:
        file = record_file(name)
        if options.check and not file.exists():
            print(f"{name} has no record: {file.relative_to(ROOT)}")
            return 2
        try:
            text = text_of(name, options.lessons.resolve())
        except (OSError, ValueError) as error:
            print(f"{name}: {error}")
            return 2
        except LaunchError as error:
            print(f"{name}: {error.headline}")
            status = 1
            continue
        if not options.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        elif differs := difference(name, text, file.read_text("utf-8")):
            print(differs)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
