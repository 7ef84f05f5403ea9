"""How exact each lesson on training is and what it sends, in docs/lessons.md.

`python -m collectives.lesson.make.training_table` runs all of them with 1 to 5 ranks. Errors stand
there as bounds, because rounding differs from machine to machine; calls and bytes are exact.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from collectives.launcher.launch import launch
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make.generated_part import Part
from collectives.lesson.step import world_of
from collectives.spec.check_training import relative_errors

PART = Part("training", "collectives.lesson.make.training_table", "docs/lessons.md")
SIZES = (1, 2, 3, 4, 5)
DTYPES = ("float64", "float32")
BOUNDS = (1e-14, 1e-12, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def measured(rank, world_size, device, paths: dict[str, str]) -> dict:
    """Runs in a rank: by lesson, step and dtype, the largest relative error, calls and bytes.

    `paths`: the files of the lessons, by name. Steps that compare no training, start ranks of their
    own, or need more of them, are left out.
    """
    found = {}
    for name, path in paths.items():
        for dtype in DTYPES:
            module = files.load(path)
            with contextlib.ExitStack() as stack:
                if dtype == "float32":
                    stack.enter_context(_in_float32(module))
                for step in module.STEPS:
                    world = world_of(step)
                    compares = "check_training" in step.__code__.co_names
                    if compares and not world.isolated and world.ranks <= world_size:
                        key = name, step.__name__, dtype
                        found[key] = _measured_step(module, step, rank, world_size, device)
    return found


def _measured_step(module, step, rank, world_size, device) -> tuple[float, int, int]:
    """The largest error that it checks; calls and bytes of a step of its first training.

    That is the last step: in the first one, DDP also sends what it has to send once.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    errors: list[float] = []
    sent: list[tuple] = []  # of each optimizer: itself, and what the last step before its own sent
    counter = _counter()

    def note(optimizer, *_):
        sent[:] = [pair for pair in sent if pair[0] is not optimizer]
        sent.append((optimizer, counter.calls, counter.bytes))
        counter.calls = counter.bytes = 0

    def compare(got, expected, call, **_):
        errors.append(max(relative_errors(got, expected).values()))

    module.check_training = compare
    hook = register_optimizer_step_post_hook(note)
    with counter:
        step(rank, world_size, device)
    hook.remove()
    first = next((pair[1:] for pair in sent if pair[1]), (0, 0))
    return max(errors), *first


@contextlib.contextmanager
def _in_float32(module) -> Iterator[None]:
    """Let the lesson compute in float32, and pass over its checks, which expect float64."""
    from torch import nn

    double, digits = nn.Module.double, module.digits
    nn.Module.double = nn.Module.float
    module.digits = lambda *device: (digits(*device)[0].float(), digits(*device)[1])
    module.check = lambda *_, **__: None
    yield
    nn.Module.double = double


def _counter():
    """Counts the collectives of this rank, also those that DDP calls from C++, and their bytes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):
        calls = bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                self.calls += 1
                tensors = [one for one in tree_leaves(args[0]) if isinstance(one, torch.Tensor)]
                self.bytes += sum(tensor.nbytes for tensor in tensors)
            return func(*args, **(kwargs or {}))

    return Counting()


def measure(names: list[str], world_size: int) -> dict:
    """By lesson, step and dtype: the largest error on any rank, and what rank 0 sends in a step."""
    paths = {name: files.find(name) for name in names}
    ranks = launch(measured, world_size, args=(paths,), backend="gloo", device="cpu", timeout=600.0)
    return {
        key: (max(one[key][0] for one in ranks), calls, sent)
        for key, (_, calls, sent) in ranks[0].items()
    }


def bound(error: float) -> str:
    """The next bound that leaves room for the rounding of another machine."""
    found = next((one for one in BOUNDS if 10 * error <= one), None)
    return "-" if found is None else f"{found:.0e}"


def table() -> str:
    sizes = [f"{size} rank{'s' * (size > 1)}" for size in SIZES]
    lines = [["step", "dtype", *sizes, "calls", "bytes"]]
    lines.append(["---"] * len(lines[0]))
    found = {}
    for size in SIZES:
        print(f"{size} ranks", file=sys.stderr)
        found[size] = measure(CHAPTERS["training"].names, size)
    for key, (_, calls, sent) in found[4].items():
        name, step, dtype = key
        cells = [bound(found[size][key][0]) if key in found[size] else "-" for size in SIZES]
        lesson = f"[{PurePosixPath(name).name}](../lessons/{name}.py)"
        lines.append([f"{lesson}: `{step}`", dtype, *cells, str(calls), f"{sent:,}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows(text: str) -> dict[tuple[str, str, str], list[str]]:
    """The inverse of `table`: by lesson, step and dtype, the bounds by world size, calls, bytes."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {
        (f"training/{row[0][1:].partition(']')[0]}", row[0].split("`")[1], row[1]): row[2:]
        for row in cells[2:]
    }


if __name__ == "__main__":
    PART.write(table())
