"""The lessons on model parallelism draw no pipeline that would hang, and say what torch does."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import scaled_dot_product_attention

from collectives import launch
from collectives.course import chapters, files

with files.imports_from(chapters.folder() / "model_parallel"):
    from pipeline_slots import PipelineSlots


def test_passes_that_wait_for_each_other_have_no_picture():
    """Rank 0 wants to go back before rank 1 has the micro-batch."""
    orders = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match="naive: ranks wait for each other in slot 0"):
        PipelineSlots.of("naive", orders)


def attention_by_torch(rank, world_size, device):
    """Whether `context_parallel` gives this rank attention within its own part of the text."""
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


def test_context_parallel_of_torch_is_wrong_on_a_cpu():
    assert launch(attention_by_torch, 2, backend="gloo") == [(True, False)] * 2
