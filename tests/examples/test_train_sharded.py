"""The program for sharded training trains the model of one process: on a mesh, also when it is killed,
stopped, and continued by another number of ranks, under each launcher.
"""

import argparse
import contextlib
import signal
import types

import pytest
import torch
import torch.distributed as dist
from planted import Planted, unnoticed
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, gelu

from collectives import launch
from collectives.course import chapters

FILE = chapters.folder().parent / "examples" / "train_sharded.py"
STEPS, CLIP = 4, 0.6


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()


def heads(x):
    return x.view(len(x), 8, 4, 8)


def one_process():
    """The parameters by name, by a program that has no part in common with the example; and how
    many steps it has clipped.
    """
    torch.manual_seed(0)
    layers = {"line": nn.Linear(8, 32), "place": nn.Embedding(8, 32)}
    for block in ("blocks.0", "blocks.1"):
        for name in ("query", "key", "value"):
            layers[f"{block}.{name}"] = nn.Linear(32, 32, bias=False)
        layers[f"{block}.out"] = nn.Linear(32, 32)
        layers |= {f"{block}.up": nn.Linear(32, 128), f"{block}.down": nn.Linear(128, 32)}
    layers["head"] = nn.Linear(32, 10)
    p = {f"{name}.{k}": v for name, one in layers.items() for k, v in one.named_parameters()}
    for block in ("blocks.0", "blocks.1"):
        sizes = {"norm1": 32, "norm2": 32, "query_norm": 8, "key_norm": 8}
        p |= {f"{block}.{name}.weight": torch.ones(size) for name, size in sizes.items()}
    p = {name: one.detach().double().requires_grad_() for name, one in p.items()}

    def linear(name, x):
        y = x @ p[f"{name}.weight"].T
        return y + p[f"{name}.bias"] if f"{name}.bias" in p else y

    def network(images):
        x = linear("line", images) + p["place.weight"]
        for block in ("blocks.0", "blocks.1"):
            y = rms(x, p[f"{block}.norm1.weight"])
            q, k, v = (heads(linear(f"{block}.{name}", y)) for name in ("query", "key", "value"))
            q, k = rms(q, p[f"{block}.query_norm.weight"]), rms(k, p[f"{block}.key_norm.weight"])
            weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5).softmax(-1)
            y = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
            x = x + linear(f"{block}.out", y)
            y = rms(x, p[f"{block}.norm2.weight"])
            x = x + linear(f"{block}.down", gelu(linear(f"{block}.up", y)))
        return linear("head", x.mean(1))

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images).view(-1, 8, 8) / 16, torch.tensor(labels)
    optimizer, clipped = torch.optim.AdamW(p.values()), 0
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    for step in range(STEPS):
        batch = order[step * 64 :][:64]
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / STEPS)
        optimizer.zero_grad()
        cross_entropy(network(images[batch]), labels[batch]).backward()
        norm = torch.cat([one.grad.flatten() for one in p.values()]).norm()
        clipped += norm > CLIP
        for one in p.values():
            one.grad *= min(1, CLIP / (norm + 1e-6))  # as PyTorch does
        optimizer.step()
    return p, int(clipped)


def error(folder, expected):
    """The largest relative error of a parameter in the last checkpoint."""
    dcp_to_torch_save(folder / f"step-{STEPS:06}", folder / "model.pt")
    got = torch.load(folder / "model.pt", weights_only=False)["model"]
    assert got.keys() == expected.keys()
    return max(((got[name] - one).norm() / one.norm()).item() for name, one in expected.items())


# In a world of `launch`: all but the meeting of the ranks and its end.


def train(rank, world_size, device, texts, folder, tensor, **changed):
    """Runs in a rank: each program is stopped after its second step, and continues."""
    torch.set_num_threads(1)
    group = types.ModuleType("dist")
    vars(group).update(vars(dist), destroy_process_group=lambda: None)
    for number, text in enumerate(texts):
        program = {"__name__": "example", "__file__": str(FILE)}
        exec(compile(text, FILE, "exec"), program)
        program["dist"] = group
        program["variable"] = lambda name, *_: {"RANK": rank, "WORLD_SIZE": world_size}[name]
        program["start"] = lambda rank, n, shape: init_device_mesh(
            "cpu", shape, mesh_dim_names=("data", "tensor")
        )
        step, calls = program["train_step"], []

        def with_a_signal(*arguments, step=step, calls=calls):
            calls.append(1)
            if len(calls) == 2 and rank == world_size - 1:
                signal.raise_signal(signal.SIGTERM)
            return step(*arguments)

        program["train_step"] = with_a_signal
        options = {"tensor": tensor, "steps": STEPS, "batch": 64, "accumulation": 2, "clip": CLIP}
        options |= {"double": True, "bf16": False, "log_every": 1, "save_every": 10}
        options |= {"checkpoint": folder / str(number)} | changed
        for _ in range(2):
            with contextlib.suppress(SystemExit):
                program["main"](argparse.Namespace(**options))


def test_it_trains_the_model_of_one_process_also_when_it_is_stopped(tmp_path):
    launch(train, 2, args=([FILE.read_text("utf-8")], tmp_path, 2), backend="gloo", timeout=200.0)
    expected, clipped = one_process()
    assert 0 < clipped < STEPS
    assert error(tmp_path / "0", expected) < 1e-9
