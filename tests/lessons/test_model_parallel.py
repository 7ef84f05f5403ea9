"""The lessons on model parallelism draw no pipeline that would hang, say what torch does, and clip
on two meshes.
"""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import scaled_dot_product_attention

from collectives import check, check_training, launch
from collectives.course import chapters, files

with files.imports_from(chapters.folder() / "model_parallel"):
    from pipeline_slots import PipelineSlots


def test_passes_that_wait_for_each_other_have_no_picture():
    """Rank 0 wants to go back before rank 1 has the micro-batch."""
    orders = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match="naive: ranks wait for each other in slot 0"):
        PipelineSlots.of("naive", orders)


def attention_by_torch(rank, world_size, device):
    """Whether attention, imported before `context_parallel`, sees this rank's own text alone."""
    torch.manual_seed(0)
    buffers = list(torch.randn(3, 1, 2, 16, 4, dtype=torch.float64))
    whole = scaled_dot_product_attention(*buffers, is_causal=True)
    text = torch.arange(16)
    mesh = init_device_mesh(device.type, (world_size,))
    with context_parallel(mesh, buffers=[*buffers, text], buffer_seq_dims=[2, 2, 2, 0]):
        got = scaled_dot_product_attention(*buffers, is_causal=True)
        mine, parts = text.clone(), [one.clone() for one in buffers]
    within = scaled_dot_product_attention(*parts, is_causal=True)
    return torch.equal(got, within), torch.allclose(got, whole[:, :, mine])


def test_context_parallel_replaces_no_attention_that_was_imported_before():
    assert launch(attention_by_torch, 2, backend="gloo") == [(True, False)] * 2


def clip_on_two_meshes(rank, world_size, device):
    """Runs in a rank: two replicas of two ranks each, which share the layers `up` and `down`."""
    lesson = files.load(files.find("model_parallel/saving"))
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("data", "tensor"))
    data = mesh["data"]

    def trained(clip, norms):
        model = lesson.network(device)
        for block in model[1:3]:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tensor"], plan)
        on_my_share = lesson.clipped(clip, norms, data.get_local_rank(), 2)
        return lesson.train(lesson.sharded(model, data), device, on_my_share)

    # torch 2.9 says it in other words.
    with pytest.raises(RuntimeError, match=r"must have the same mesh|Sharding propagation failed"):
        trained(lesson.clip_by_pytorch, [])
    alone = lesson.clipped(lesson.clip_by_pytorch, expected := [])
    right = lesson.train(lesson.network(device), device, alone)
    got = lesson.whole(*trained(lesson.clip_by_mesh, norms := []), device)
    check_training(got, right, "clip_by_mesh")
    check(torch.stack(norms), torch.stack(expected), "norms", rtol=1e-9)
    return [norm.item() > lesson.LIMIT for norm in norms]


def test_clip_grad_norm_raises_on_two_meshes_and_the_norm_of_each_mesh_is_the_cure():
    found = launch(clip_on_two_meshes, 4, backend="gloo", device="cpu", timeout=100.0)
    assert found == [[True, False, True]] * 4
