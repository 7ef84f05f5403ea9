"""What each step of a lesson does, as a text that is compared: `python -m tools.step_records`.

    python -m tools.step_records all_reduce           write the record of a lesson
    python -m tools.step_records --check all_reduce   0: equal; 1: it differs; 2: it cannot be asked
    python -m tools.step_records --check --lessons DIR all_reduce   of a whole copy of `lessons/`

The text comes from the recorder and from torch's dispatcher, never from the step. For each rank:

- its calls in the order in which it starts them and waits (group, other side, elements and dtype);
  between them the operators of c10d and the functional ones, also those that DDP calls, with their
  bytes and those of the memory behind their buffers, what other operators write, and the files
  that the step opens. An operator of which the bytes are not known fails;
- the bytes of the memory that its operators make, and the most that autograd keeps;
- the rows that reach a model, with gradients and without, and the processes that it starts;
- what the numbers weigh that it gives to its calls: others, or in another order, weigh something
  else.

The proof is a part of the step, so a changed proof changes the text, too. Steps that cannot be
recorded are lines of the record, with the reason. `WITHOUT` names chapters and lessons that have
none.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from collectives import LaunchError, note_calls
from collectives.course import chapters, files, mistakes
from collectives.course.marks import WorldSpec, world_of
from collectives.launcher.launch import launch_in
from collectives.launcher.world import World
from collectives.recording.counts import SILENT, name_of
from collectives.semantics.calls import BY_NAME, POINT_TO_POINT

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tests" / "lessons" / "steps"
TORCH = "2.13.0"  # the tested one: another one has other operators
RANKS = 4
TIMEOUT = 400.0  # seconds, on a busy machine
# Of a rank: what happens, in order; what it makes and keeps; what it gives to its calls.
Record = tuple[list[str], list[str], list[str]]
WITHOUT = {
    "route": "its steps run the programs of examples/route, whose calls their proofs count",
    "machines": "its steps start machines, and the ranks there",
    "model_parallel/plan": "it plans, and hardly communicates",
    "model_parallel/choose": "it plans, and hardly communicates",
    "model_parallel/schedules": "the order in which a rank computes and sends is partly chance",
}
_ACCELERATE = "which files Accelerate reads depends on the machine"
# Steps of which no record would be equal twice, or none can be made.
NOT_RECORDED = {
    ("training/functional", "compiled"): "torch.compile compiles nothing that is watched",
    ("hearsay", "gather_returns_its_result"): _ACCELERATE,
    ("hearsay", "accelerate_keeps_the_prefix"): _ACCELERATE,
    ("hearsay", "accelerate_may_have_no_group"): _ACCELERATE,
    ("hearsay", "accelerate_starts_one_process"): _ACCELERATE,
}
# It trains until what a processor rounds has grown to 1 %. Elsewhere four digits are equal.
DIGITS = {"different_bits": 1}
_LONGEST_ROUND = 64  # lines
_MOST_LINES = 80  # of what happens in a rank
# A number in a line, but for those of ranks, tags and dtypes.
_SIZE = re.compile(r"(?<!\w)(?<!rank \+ )(?<!root )(?<!tag )\d+")
_OTHERS = ("importlib", "linecache", "sklearn", "collectives/")  # they open files of their own
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Watch(TorchDispatchMode):
    """What a rank's operators send, make and write, and the rows that reach its models."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        super().__init__()
        self.folder = folder  # of the lesson
        self.place = rank, world_size
        self.calls, self.seen = note_calls(), 0
        self.events: list[str] = []
        self.operators = self.written = 0  # since the last event
        self.made = self.kept = self.most_kept = self.depth = self.processes = 0
        self.weight = 0.0
        self.rows: Counter[str] = Counter()
        self.is_open = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.catch_up()
        given = _tensors((args, kwargs or {}))
        name = func._schema.name.partition("::")[2].removesuffix("_out").removesuffix("_")
        if func.namespace in _NAMESPACES and name not in SILENT:
            call = name_of(name)
            if call not in BY_NAME:
                raise ValueError(f"the bytes of the operator {func._schema.name} are not known")
            behind = sum(one.untyped_storage().nbytes() for one in given)
            nbytes = sum(one.nbytes for one in given)
            self.happens(f"{func.namespace}.{call}: {nbytes} bytes of {behind}")
            self.weight += sum(map(_weight, _tensors(_read(func.namespace, call, args))))
        result = func(*args, **(kwargs or {}))
        if func.namespace not in _NAMESPACES:
            known = {one.untyped_storage()._cdata for one in given}
            made = [one for one in _tensors(result) if one.untyped_storage()._cdata not in known]
            self.made += sum(one.untyped_storage().nbytes() for one in made)
            written = _tensors(result) if func._schema.is_mutable else made
            self.written += sum(one.numel() for one in written)
            self.operators += 1
        return result

    def catch_up(self) -> None:
        """Put down the calls that have begun since the last time."""
        new, self.seen = self.calls[self.seen :], len(self.calls)
        for call in new:
            self.happens(_text(call, *self.place))

    def happens(self, event: str) -> None:
        if self.operators:
            self.events.append(f"{self.operators} operators write {self.written} elements")
            self.operators = self.written = 0
        self.events.append(event)

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
        """Python tells of each file that it opens and each process, and does so for ever."""
        if not self.is_open:
            return
        self.processes += event in ("os.fork", "subprocess.Popen")
        if event == "open":
            event = "writes a file" if given[2] & (os.O_WRONLY | os.O_RDWR) else "reads a file"
        elif event not in ("os.rename", "os.remove"):
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not any(one in frame.f_code.co_filename for one in _OTHERS):
            if Path(frame.f_code.co_filename).parent == self.folder:
                self.catch_up()
                self.happens(event)
                return
            frame = frame.f_back

    def lines(self) -> list[str]:
        return [
            f"makes {self.made} bytes",
            *([f"keeps at most {self.most_kept} bytes for backward"] if self.most_kept else []),
            *(f"{rows} rows reach a model {how}" for how, rows in self.rows.items()),
            *([f"starts {self.processes} processes"] if self.processes else []),
        ]


class _Kept:
    """What autograd keeps, for as long as it does."""

    def __init__(self, watch: Watch, tensor):
        self.watch, self.tensor = watch, tensor

    def __del__(self) -> None:
        self.watch.kept -= self.tensor.nbytes


def _tensors(value) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def _read(namespace: str, call: str, args: tuple):
    """Of the arguments of an operator, those that it reads, where that is not chance."""
    if call == "recv":
        return ()
    if call == "broadcast" and namespace == "c10d":
        return args[0] if dist.ProcessGroup.unbox(args[1]).rank() == args[2] else ()
    is_second = namespace == "c10d" and ("gather" in call or "scatter" in call or "to_all" in call)
    return args[is_second]


def _weight(tensor: torch.Tensor) -> float:
    """Another one for other numbers, signs or places. Bytes are objects: these hold times."""
    if tensor.dtype == torch.uint8:
        return 0.0
    numbers = tensor.detach().double().flatten()
    places = torch.arange(len(numbers)) % 97 + 1
    # No simple fraction: with a half, the -2 of an empty buffer would weigh what 1 does.
    return (torch.where(numbers > 0, numbers, -0.618 * numbers) * places).sum().item()


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


def record_step(step, folder: Path, rank: int, world_size: int, device) -> Record:
    """In a rank: what a step does, also one that raises."""
    if world_of(step).isolated:
        torch.manual_seed(0)  # its model may be random
    tempfile.gettempdir()  # when it is first asked for, it writes a file to try
    watch = Watch(folder, rank, world_size)
    sys.addaudithook(watch.audit)
    modules = torch.nn.modules.module
    hooks = [
        modules.register_module_forward_pre_hook(watch.enter_model),
        modules.register_module_forward_hook(watch.leave_model, always_call=True),
    ]
    raised = []
    try:
        kept = torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda kept: kept.tensor)
        with kept, watch, _unseen_callbacks():
            step(rank, world_size, device)
    except Exception as error:
        if not world_of(step).symptom:
            raise
        raised = [f"raises {type(error).__name__}"]
    finally:
        watch.is_open = False
        for hook in hooks:
            hook.remove()
    watch.catch_up()
    watch.happens("ends")
    weight = f"its calls are given {watch.weight:.{DIGITS.get(step.__name__, 4)}g}"
    return watch.events, [*watch.lines(), *raised], [weight] if watch.weight else []


@contextlib.contextmanager
def _unseen_callbacks() -> Iterator[None]:
    """Whether the callback of a future, as of a communication hook, computes in this thread or in
    one of the backend is chance. So it is never counted.
    """
    then = torch._C.Future.then

    def then_unseen(future, callback):
        def unseen(done):
            with _disable_current_modes():
                return callback(done)

        return then(future, unseen)

    torch._C.Future.then = then_unseen  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch._C.Future.then = then  # type: ignore[method-assign]


def _rounds(lines: list[str]) -> list[str]:
    """Lines that come several times one after the other once, and how often; then rounds of these.
    A round is one text of several lines.
    """
    found, place = [], 0
    while place < len(lines):
        for size in range(1, min(_LONGEST_ROUND, (len(lines) - place) // 2) + 1):
            block, times = lines[place : place + size], 1
            while lines[place + size * times : place + size * (times + 1)] == block:
                times += 1
            if times > 1:
                break
        else:
            size, block, times = 1, lines[place : place + 1], 1
        if times > 1 and (size > 1 or "\n" in block[0]):
            block = ["\n  ".join([f"x {times}:", *"\n".join(_rounds(block)).splitlines()])]
        elif times > 1:
            block = [f"{block[0]}  x {times}"]
        found += block
        place += size * times
    return found if found == lines else _rounds(found)


def _shown(lines: list[str]) -> list[str]:
    """The lines in rounds. If they are many, what operators do is added up behind the others; if
    these are many as well, all are.
    """
    text = "\n".join(_rounds(lines)).splitlines()
    if len(text) > _MOST_LINES:
        beside = [line for line in lines if " operators write " in line or " bytes of " in line]
        others = [line for line in lines if line not in set(beside)]
        text = "\n".join([*_rounds(others), *_added_up(beside)]).splitlines()
    return text if len(text) <= _MOST_LINES else _added_up(lines)


def _added_up(lines: list[str]) -> list[str]:
    """Lines that differ in sizes alone are one, with the sums of their numbers."""
    found: dict[str, list[list[int]]] = {}
    for line in lines:
        sizes = [int(one) for one in _SIZE.findall(line)]
        found.setdefault(_SIZE.sub("{}", line), []).append(sizes)
    return [
        f"{kind.format(*map(sum, zip(*sizes, strict=True)))}, in {len(sizes)} lines"
        for kind, sizes in sorted(found.items())
    ]


class StepFailed(Exception):
    """A step in a world of its own failed, so that there is nothing to record."""


def _why_not(name: str, step: str, world: WorldSpec) -> str:
    """Why a step has no record; "" if it has one."""
    if world.lab or world.seconds:
        return "it starts processes of its own"
    if world.symptom and chapter_of(name) == "mistakes":
        return "it is a mistake, and how it ends is compared with its symptom"
    if world.symptom in ("hangs", "dies", "breaks off"):
        return f"it {world.symptom}, and when is chance"
    return NOT_RECORDED.get((name, step), "")


def _records_of(path: Path, names: list[str], world: WorldSpec) -> list[dict[str, Record]]:
    """What these steps do, by rank: those of one world together, an isolated one by itself."""

    def in_rank(rank: int, world_size: int, device) -> dict[str, Record]:
        module, found = files.load(path), {}
        for name in names:
            if not world.isolated:
                dist.barrier()
            step = vars(module)[name]
            found[name] = record_step(step, path.parent, rank, world_size, device)
        return found

    if world.isolated:
        # So it has the time of any step: with a symptom it counts as hanging after 1.5 s.
        in_rank.world = replace(world, symptom=None)  # type: ignore[attr-defined]
        outcomes, records = mistakes.run_isolated(in_rank, mistakes.own_world(in_rank))
        if len(records) < len(outcomes) or None in records:
            told = [f"rank {rank}: {one}, line {one.line}" for rank, one in enumerate(outcomes)]
            raise StepFailed(f"{names[0]} fails: {'; '.join(told)}")
        return records
    return launch_in(World.chosen(RANKS, "gloo", "cpu", TIMEOUT), in_rank, diagnose=False)


def text_of(name: str, folder: Path) -> str:
    """The record of a lesson. Ranks that do the same share their lines."""
    if reason := WITHOUT.get(name) or WITHOUT.get(chapter_of(name)):
        raise ValueError(f"it has no record: {reason}")
    path = folder / f"{name}.py"
    worlds = {step.__name__: world_of(step) for step in files.load(path).STEPS}
    reasons = {step: _why_not(name, step, world) for step, world in worlds.items()}
    shared = [step for step in worlds if not worlds[step].isolated and not reasons[step]]
    records = _records_of(path, shared, WorldSpec()) if shared else []
    found, last = [], ""
    for step, world in worlds.items():
        if reasons[step]:
            found.append(f"{step}: not recorded: {reasons[step]}")
            continue
        ranks = _records_of(path, [step], world) if world.isolated else records
        for part in zip(*(record[step] for record in ranks), strict=True):
            by_lines: dict[tuple[str, ...], list[str]] = {}
            for rank, lines in enumerate(part):
                by_lines.setdefault(tuple(lines), []).append(str(rank))
            for lines, who in by_lines.items():
                text = _shown(list(lines))
                head = f"{step}, rank {', '.join(who)}:"
                if text:
                    found += [*([head] if head != last else []), *(f"  {line}" for line in text)]
                    last = head
    return "\n".join([*found, ""])


def chapter_of(name: str) -> str:
    """ValueError if there is no such lesson."""
    files.find(name)
    return next(one.name for one in chapters.read().values() if name in one.names)


def record_file(name: str) -> Path:
    return RECORDS / chapter_of(name) / f"{Path(name).name}.txt"


def difference(name: str, got: str, wanted: str) -> str:
    """The first line that differs, with its step and rank; "" if all are equal."""
    head, ours, theirs = "", got.splitlines(), wanted.splitlines()
    for number in range(max(len(ours), len(theirs))):
        line, right = (text[number : number + 1] for text in (ours, theirs))
        if line != right:
            does, wants = (_with_its_first(text[number:]) for text in (ours, theirs))
            return f"{name}, {head or does} it does: {does}; its record: {wants}"
        head = head if line[0].startswith(" ") else line[0]
    return ""


def _with_its_first(lines: list[str]) -> str:
    """The first line; that of a round, or of a rank, with the one below it."""
    first = next((number for number, line in enumerate(lines) if line[-1:] != ":"), len(lines) - 1)
    return " ".join(line.strip() for line in lines[: first + 1]) or "nothing"


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
        try:
            file = record_file(name)
            text = text_of(name, options.lessons.resolve())
            if options.check and not file.exists():
                raise ValueError(f"no record lies in {file.relative_to(ROOT)}")
        except (OSError, ValueError) as error:
            print(f"{name}: {error}")
            return 2
        except (LaunchError, StepFailed) as error:
            print(f"{name}: {getattr(error, 'headline', error)}")
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
