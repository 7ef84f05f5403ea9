"""The program that grows in nine files: each adds little, and trains the model of one process."""

import contextlib
import functools
import io
import itertools
import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from older_torch import C10D, make_older
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

from collectives import launch
from tools import route

PROGRAMS = route.programs()
MOST_NEW_LINES = {8: 32, 9: 25}
EXACT = PROGRAMS[3:]  # of these, any number of ranks takes the steps of one process


WITH_WORKERS = PROGRAMS[3], PROGRAMS[8]  # to start one takes a third of a second, on each rank


def without_dropout(program: str) -> str:
    return program.replace("3, 120, 4, 0.1\n", "3, 120, 4, 0.0\n").replace(
        '"--dropout", type=float, default=0.1', '"--dropout", type=float, default=0.0'
    )


def text_of(file: Path) -> str:
    text = file.read_text("utf-8")
    return text if file in WITH_WORKERS else text.replace("num_workers=1", "num_workers=0")


def run_in_rank(rank, world_size, device, programs, folder, older=False):
    """Runs in a rank: of each program, by the folder in which it runs, what it prints, and the
    parameters at the end.
    """
    torch.set_num_threads(1)
    if older:
        make_older(dist.distributed_c10d, C10D)
        assert not hasattr(dist, "all_gather_single")
    dist.destroy_process_group()
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
    real, found = dist.init_process_group, []
    store = dist.FileStore(str(Path(folder, "store")), world_size)
    for number, (name, text) in enumerate(programs):
        optimizers = []
        hook = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs, seen=optimizers: seen.append(optimizer)
        )
        place = {"store": dist.PrefixStore(str(number), store), "rank": rank}
        dist.init_process_group = functools.partial(real, **place, world_size=world_size)
        own = Path(folder, name)
        own.mkdir(exist_ok=True)
        (file := own / f"{rank}.py").write_text(text)
        sys.argv = [str(file)]
        with contextlib.chdir(own), contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(file), run_name="__main__")
        hook.remove()
        parameters = [one.detach().clone() for one in optimizers[-1].param_groups[0]["params"]]
        found.append((printed.getvalue().splitlines(), parameters))
    dist.init_process_group = real
    return found


def run(programs, n, older=False):
    """By program: by rank what it printed, and its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(
            run_in_rank, n, args=(programs, folder, older), backend="gloo", timeout=400.0
        )
    return list(zip(*ranks, strict=True))


@functools.cache
def one_process():
    """The parameters after three epochs, by a loop that has no part in common with the programs."""
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    torch.manual_seed(0)
    mixed = images / 16 @ (torch.randn(64, 64) / 8).double()
    layers = torch.nn.Linear(64, 32).double(), torch.nn.Linear(32, 10).double()
    parameters = [one for layer in layers for one in layer.parameters()]
    momenta = [torch.zeros_like(one) for one in parameters]
    for epoch in range(3):
        order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(120):
            loss = cross_entropy(layers[1](layers[0](mixed[batch]).relu()), labels[batch])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, momentum, gradient in zip(
                    parameters, momenta, gradients, strict=True
                ):
                    momentum.mul_(0.9).add_(gradient)
                    parameter.sub_(0.1 * momentum)
    return parameters


def differs(parameters, expected) -> float:
    pairs = zip(parameters, expected, strict=True)
    return max(((one - other).norm() / other.norm()).item() for one, other in pairs)


def test_each_program_is_the_one_before_with_a_few_lines():
    assert [file.stem[0] for file in PROGRAMS] == list("123456789")
    for number, (before, after) in enumerate(itertools.pairwise(PROGRAMS), 2):
        assert len(route.new_lines(before, after)) <= MOST_NEW_LINES.get(number, 15), after.name
    assert len(PROGRAMS[-1].read_text("utf-8").splitlines()) <= 110


def test_each_program_names_itself_and_imports_nothing_of_this_package():
    for file in PROGRAMS:
        text = file.read_text("utf-8")
        assert f"torchrun --nproc-per-node 2 {file.name}" in text.splitlines()[2]
        assert "collectives" not in text


# Program 8 once more, without the file of the last epoch.
RESUMES = text_of(PROGRAMS[7]).replace("epoch-*.pt", "epoch-00[01].pt")


# An older torch has other names for some calls: no program uses one that is new.
@pytest.mark.parametrize(
    ("n", "older"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(2, True),
        pytest.param(3, False, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_takes_the_steps_of_one_process_and_a_resumed_run_those_of_one_that_never_stopped(
    n, older
):
    texts = [(file.stem, without_dropout(text_of(file))) for file in PROGRAMS]
    texts += [("stops", text_of(PROGRAMS[7])), ("stops", RESUMES)]
    *found, stops, resumes = run(texts, n, older)
    for file, ranks in zip(PROGRAMS, found, strict=True):
        errors = [differs(parameters, one_process()) for _, parameters in ranks]
        assert (max(errors) < 1e-6) == (file in EXACT), (file.name, errors)
        assert [len(lines) for lines, _ in ranks] == [3] * n
    for (printed, parameters), (again, same) in zip(stops, resumes, strict=True):
        assert again == printed[2:]
        # DDP orders its buckets anew after a start: a sum of three is then rounded otherwise.
        assert differs(parameters, same) <= (1e-14 if n == 3 else 0.0)
        assert differs(parameters, one_process()) > 1e-3
