"""Where PyTorch's docstrings and a measurement of gloo on the CPU differ, as a dated list.

`python -m tools.pytorch_docs` writes it into docs/pytorch-docs.md. It reads the matrix of
the installed torch, makes the calls that are no cells, and leaves out what docstrings say no
longer.
"""

import datetime
import importlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from collectives import LaunchError, launch
from collectives.matrix import recorded

PAGE = Path(__file__).parents[1] / "docs" / "pytorch-docs.md"


def average_of_large_numbers(rank, world_size, device) -> bool:
    large = torch.tensor([60000.0], dtype=torch.float16)  # float16 ends at 65504
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    return large.item() == 60000.0


def send_to_oneself(rank, world_size, device) -> bool:
    got, own = torch.full((3,), -1.0), torch.full((3,), float(rank))
    for work in [dist.isend(own, rank), dist.irecv(got, rank)]:
        assert work is not None
        work.wait()
    return torch.equal(got, own)


def reduce_scatter_of_a_stack(rank, world_size, device) -> bool:
    whole, got = torch.arange(2.0 * world_size).reshape(world_size, 2), torch.full((2,), -1.0)
    dist.reduce_scatter_tensor(got, whole)
    return torch.equal(got, whole[rank] * world_size)


def all_gather_into_a_stack(rank, world_size, device) -> bool:
    got = torch.full((world_size, 2), -1.0)
    dist.all_gather_into_tensor(got, torch.full((2,), float(rank)))
    return got.tolist() == [[float(source)] * 2 for source in range(world_size)]


def receive_objects_from_any(rank, world_size, device) -> bool:
    got = [None, None]
    if rank == 0:
        dist.recv_object_list(got)
    else:
        dist.send_object_list([rank, "a word"], dst=0)
    return rank > 0 or got == [1, "a word"]


def no_other_dimension_is_gathered(rank, world_size, device) -> bool:
    from torch.distributed import _functional_collectives as functional

    gathered = functional.all_gather_tensor(torch.ones(2, 1), 1, list(range(world_size)))
    return gathered.shape != (2, world_size)


# A function, words of its docstring, what they say of gloo, and how that is tried: by a call that
# should return True, or by cells of the matrix: their form, reduction, and the state that follows.
STATEMENTS: list[tuple[Any, ...]] = [
    (
        "ReduceOp",
        "``AVG`` is only available",
        "NCCL alone has AVG",
        ("all_reduce", "AVG", "refuses"),
    ),
    (
        "ReduceOp",
        "divides values by the world size before summing",
        "an average that fits into the dtype cannot overflow",
        average_of_large_numbers,
    ),
    (
        "all_gather",
        "Uneven sized tensors are supported",
        "the ranks' tensors may differ in size",
        ("all_gather:uneven", None, "works"),
    ),
    (
        "all_to_all",
        "input.split(input_splits)",
        "the pieces of an example differ in size",
        ("all_to_all:uneven", None, "works"),
    ),
    ("isend", "isend allows src == dst", "a rank may send to itself", send_to_oneself),
    (
        "reduce_scatter_single",
        "(ii) a stack of the output tensors",
        "the input may have a dimension for the ranks",
        reduce_scatter_of_a_stack,
    ),
    (
        "all_gather_single",
        "(ii) a stack of all the input tensors",
        "the output may have a dimension for the ranks",
        all_gather_into_a_stack,
    ),
    (
        "recv_object_list",
        "Will receive from any rank if set to None",
        "without a source it receives from any rank",
        receive_objects_from_any,
    ),
    (
        "_functional_collectives.all_gather_single",
        "only supports gather_dim = 0",
        "tensors are joined along dimension 0 only",
        no_other_dimension_is_gathered,
    ),
]


def differences() -> list[str]:
    matrix = recorded.named(torch.__version__.partition("+")[0])
    assert matrix is not None, "this version of torch is not recorded"
    states = [((cell["form"], cell["op"]), cell["state"]) for cell in matrix["cells"]]
    found = []
    for function, mark, says, test in STATEMENTS:
        module, _, name = f"torch.distributed.{function}".rpartition(".")
        text = " ".join((getattr(importlib.import_module(module), name).__doc__ or "").split())
        if mark not in text:
            continue
        if callable(test):
            measured = _try(test)
        else:
            others = {state for key, state in states if key == test[:2]} - {test[2]}
            measured = f"this {' or '.join(sorted(others))}" if others else ""
        if measured:
            found.append(f"docstring of `{function}`: {says}. Measured: {measured}")
    return found


def _try(call) -> str:
    try:
        results = launch(call, 2, backend="gloo", device="cpu", diagnose=False)
    except LaunchError as error:
        return f"`{str(error).splitlines()[0].partition(' raised ')[2]}`"
    return "" if all(results) else "another result"


if __name__ == "__main__":
    head = "# Where PyTorch's docstrings differ from gloo on the CPU\n\n"
    head += (
        f"`python -m tools.pytorch_docs`, torch {torch.__version__}, {datetime.date.today()}\n\n"
    )
    PAGE.write_text(head + "".join(f"- {text}\n" for text in differences()), encoding="utf-8")
