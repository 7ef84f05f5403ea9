"""What the lessons on memory, shards and slices claim beside the model: an edit that makes the
claim false, and leaves the model right, is noticed.
"""

import pytest
from planted import Planted, by_proof, unnoticed

from collectives.course import files


def false(lesson: str, old: str, new: str, says: str, function: str = "") -> Planted:
    return Planted(files.find(f"model_parallel/{lesson}"), old, new, says, function)


SHARE = "letters[rank::n], following[rank::n]"
WHOLE = "letters, following"
TWICE = "n = max(n // 2, 1)\n    rank %= n\n    "


FALSE = {
    # memory
    "the ranks share the batch": false("memory", SHARE, WHOLE, "[activations", "memory"),
    "only the input of each block is kept": false(
        "memory",
        "return block(x)\n\n    @staticmethod",
        "ctx.kept = []\n"
        "        block.up.register_forward_hook(lambda _, x, y, kept=ctx.kept: kept.extend([*x, y]))\n"
        "        return block(x)\n\n    @staticmethod",
        "[activations at the peak",
    ),
    "nothing else is made": false(
        "memory",
        "return block(x)\n\n    @staticmethod",
        "ctx.leak = [torch.zeros(20 * x.numel())]\n        return block(x)\n\n    @staticmethod",
        "[activations at the peak",
    ),
    "so does checkpoint": false(
        "memory",
        "return checkpoint(block, x, use_reentrant=False)",
        "return block(x)",
        "checkpoint",
    ),
    # zero
    "zero: each rank computes its share": false("zero", SHARE, WHOLE, "samples", "on_my_share"),
    "gradients of other shards are dropped": false(
        "zero",
        "    for parameter in layer.parameters():\n        parameter.grad = None",
        "    layer.kept = gradients\n"
        "    for parameter in layer.parameters():\n        parameter.grad = None",
        "",
    ),
    "gradients are dropped at once": false(
        "zero",
        "    for parameter in layer.parameters():\n        parameter.grad = None",
        "    shard.grad.kept = gradients\n"
        "    for parameter in layer.parameters():\n        parameter.grad = None",
        "",
    ),
    "the shard is a view, and takes no memory": false(
        "zero",
        "flat.chunk(n)[rank] for",
        "flat.chunk(n)[rank].clone() for",
        "",
    ),
    "the optimizer of torch shards": false(
        "zero",
        "ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam)",
        "torch.optim.Adam(ddp.parameters())",
        "ZeroRedundancyOptimizer",
    ),
    # fully_sharded
    "a layer is dropped after forward": false(
        "fully_sharded",
        "return functional_call(layer, whole(layer, shard)[1], (x,))",
        "ctx.kept = whole(layer, shard)\n        return functional_call(layer, ctx.kept[1], (x,))",
        "[activations",
    ),
    "activations are dropped, too": false(
        "fully_sharded",
        "return functional_call(layer, whole(layer, shard)[1], (x,))",
        "ctx.kept = functional_call(layer, whole(layer, shard)[1], (x,))\n        return ctx.kept * 1",
        "[activations",
    ),
    "fully_shard: each rank computes its share": false(
        "fully_sharded", "train(model, device, on_my_share)", "train(model, device)", "samples"
    ),
    # hybrid
    "hybrid: each rank computes its share": false("hybrid", SHARE, WHOLE, "samples", "on_my_share"),
    "the machines compute different samples": false(
        "hybrid", "    backward(model, letters[", f"    {TWICE}backward(model, letters[", "samples"
    ),
    # saving
    "saving: each rank computes its share": false("saving", SHARE, WHOLE, "samples", "clipped"),
    "a gradient below the limit stays": false(
        "saving",
        "min(1.0, LIMIT / (squares.sqrt() + 1e-6))",
        "LIMIT / (squares.sqrt() + 1e-6)",
        "clip_by_hand",
    ),
    "the learning rate comes from the checkpoint": false(
        "saving",
        "dcp.load(state,",
        'dcp.load({**state, "optimizer": {"state": state["optimizer"]["state"]}},',
        "four to two",
        "four_to_two",
    ),
    "set_state_dict is needed": false(
        "saving",
        "        set_state_dict(\n            model, optimizer,",
        "        dict(\n",
        "four to two",
        "four_to_two",
    ),
    "set_state_dict is needed for the optimizer, too": false(
        "saving",
        'optim_state_dict=state["optimizer"]',
        'optim_state_dict=states(model, torch.optim.Adam(model.parameters()))["optimizer"]',
        "four to two",
    ),
    # tensor_parallel
    "a rank keeps its slice of the activations": false(
        "tensor_parallel",
        "    def forward(self, x):\n        x = x + self.summed",
        "    kept = []\n\n    def forward(self, x):\n"
        "        self.kept.append(torch.cat([x] * 4))\n        x = x + self.summed",
        "[activations",
    ),
    # reshard
    "what arrives is copied into the slices": false(
        "reshard", "one.copy_(numbers.view_as(one))", "numbers.view_as(one)", "[wrong slices"
    ),
    "the bias of up is cut, too": false(
        "reshard",
        'if layer in ("query", "key", "value", "up"):',
        'if layer in ("query", "key", "value", "up") and len(shape) == 2:',
        "[wrong slices",
    ),
    # sequence_parallel
    "a rank keeps its part of the text": false(
        "sequence_parallel",
        "    return torch.cat(parts.chunk(n), dim=1)",
        "    KEPT.append(parts)\n    return torch.cat(parts.chunk(n), dim=1)\n\n\nKEPT = []",
        "[activations",
    ),
    # vocabulary
    "the largest logit is subtracted": false(
        "vocabulary", "most = logits.amax(dim=1)", "most = torch.zeros_like(logits[:, 0])", ""
    ),
    "no rank has all logits": false(
        "vocabulary",
        "ctx.save_for_backward(powers",
        "ctx.all = torch.cat([logits] * dist.get_world_size(), dim=1)\n"
        "        ctx.save_for_backward(powers",
        "[shards",
    ),
}


@pytest.mark.slow
def test_what_a_lesson_claims_is_proved():
    missed = unnoticed([*FALSE.values()], by_proof)
    assert [claim for claim, fault in FALSE.items() if fault in missed] == [], [*missed.values()]
