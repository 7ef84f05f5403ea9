"""What the lessons on pipelines, long texts, experts, meshes and plans claim beside the model: an
edit that makes the claim false, and leaves the model right, is noticed.
"""

import pytest
from lesson_source import Source
from planted import Planted, by_proof, unnoticed

from collectives.course import chapters, files

FOLDER = chapters.folder() / "model_parallel"


def false(lesson: str, says: str, old: str, new: str) -> Planted:
    return Planted(files.find(f"model_parallel/{lesson}"), old, new, says)


def false_in(module: str, lesson: str, step: str, says: str, old: str, new: str) -> Planted:
    """In a module that this step of the lesson uses."""
    return Planted(FOLDER / f"{module}.py", old, new, says, step, FOLDER / f"{lesson}.py")


def false_plan(says: str, old: str, new: str) -> Planted:
    return false_in("costs", "plan", "published_runs", says, old, new)


def false_choice(says: str, old: str, new: str) -> Planted:
    return false_in("costs", "choose", "seventy_billion", says, old, new)


SCHEDULES = "__import__('torch.distributed.pipelining').distributed.pipelining"
BUBBLE = "bubble = (plan.micro_batches + plan.pipeline - 1) / plan.micro_batches"
LINKS = "max(1, machine.per_machine // (plan.pipeline * plan.tensor))"
FALSE = {
    "torch's schedule is 1F1B": false(
        "pipeline",
        "[order of Schedule1F1B",
        "Schedule1F1B(part",
        f"{SCHEDULES}.ScheduleGPipe(part",
    ),
    "torch's order is interleaved 1F1B": false(
        "schedules",
        "[order of ScheduleLoopedBFS",
        "pipelining.ScheduleInterleaved1F1B",
        "pipelining.ScheduleLoopedBFS",
    ),
    "torch's order is interleaved zero bubble": false(
        "schedules",
        "[order of ScheduleLoopedBFS",
        "pipelining.ScheduleInterleavedZeroBubble",
        "pipelining.ScheduleLoopedBFS",
    ),
    "zero bubble computes the gradients of the weights later": false(
        "schedules",
        "[passes with gradients of weights, zero bubble",
        """            if kind == "backward":
                result.backward(gradient)
            else:
                kept[number, part] = x, result, gradient
                if stage > 0:
                    result.backward(gradient, retain_graph=True, inputs=[x])
""",
        """            result.backward(gradient, retain_graph=True)
            if kind == "input":
                nothing = sum(0 * one.sum() for one in parts[part].parameters())
                kept[number, part] = x, nothing, None
""",
    ),
    "a rank computes while the next block travels": false(
        "long_text",
        "[computed before the next block is sent, in order",
        "        yield chunks(theirs, *block), Round(owner, theirs, pairs)\n",
        "        for message in messages:\n            message.wait()\n"
        "        messages = []\n"
        "        yield chunks(theirs, *block), Round(owner, theirs, pairs)\n",
    ),
    "an expert has room for 1.25 times its part": false_in(
        "mixture",
        "experts",
        "experts",
        "relative error",
        "len(hits) / EXPERTS",
        "len(hits) / EXPERTS - 1",
    ),
    "the factor is how the router learns": false_in(
        "mixture",
        "experts",
        "experts",
        "mixture.router.weight",
        "        return (best[..., None] * answers)",
        "        half = best[..., None] / 2\n        return ((half + half.detach()) * answers)",
    ),
    "the router's favourite is chosen": false_in(
        "mixture",
        "experts",
        "experts",
        "relative error",
        "self.chances.topk(self.favourites)",
        "self.chances.topk(self.favourites, largest=False)",
    ),
    "each of two experts counts by its own probability": false_in(
        "mixture",
        "experts",
        "two_experts",
        "relative error",
        "(best[..., None] * answers)",
        "(best.mean(-1)[..., None, None] * answers)",
    ),
    "the penalty is E times the sum": false_in(
        "mixture",
        "experts",
        "collapsing_router",
        "[tokens, 0.1 times the penalty",
        "return EXPERTS * (asked",
        "return 7 * (asked",
    ),
    "a data coordinate chooses a share of the batch": false(
        "mesh",
        "its share is",
        "(one.chunk(n)[d].chunk(MICRO_BATCHES)",
        "(one.chunk(MICRO_BATCHES)",
    ),
    "a rank holds slices of the weights": false_in(
        "sliced",
        "mesh",
        "three_ways",
        "[bytes sent in a step, and of parameters",
        "slice_of(name, one.data, group).clone()",
        "slice_of(name, one.data, group)",
    ),
    "a rank waits in the bubble": false_plan("[a longer pipeline", BUBBLE, "bubble = 1"),
    "Adam's state takes 12 bytes": false_plan(
        "[GB with stage 0", '"optimizer state": 12', '"optimizer state": 8'
    ),
    "the fullest GPU is told": false_plan("[activations of Llama 3", "held = max(", "held = min("),
    "a rank waits for its tensor group": false_plan(
        "[more tensor ranks", 'computing + sent["tensor"] / machine.inside', "computing"
    ),
    "the bubble decides": false_choice("[the fastest that fits", BUBBLE, "bubble = 1"),
    "layers count if they take longer": false_choice(
        "[slow links", "max(in_turn, travelling)", "in_turn"
    ),
    "layers and gradients take time": false_choice(
        "[slow links", 'sent["data"] / min(', '0 * sent["data"] / min('
    ),
    "a machine has a link for each GPU of a data group": false_choice(
        "[slow links, 8x1x8", LINKS, "machine.per_machine"
    ),
}

# What no proof notices, and the lesson says so.
SAID = {
    "a rank keeps a result that it sends until it has arrived": (
        "pipeline",
        "They are what autograd keeps, so a result that travels is not among them.",
    ),
    "blocks of others are not kept": (
        "long_text",
        "What `ctx` holds beside saved tensors is not counted.",
    ),
    "an exchange keeps nothing, and a rank computes its heads alone": (
        "ulysses",
        "Operations are not counted, nor what `ctx` holds beside saved tensors.",
    ),
}


@pytest.mark.slow
def test_what_a_lesson_claims_is_proved():
    missed = unnoticed([*FALSE.values()], by_proof)
    assert [claim for claim, fault in FALSE.items() if fault in missed] == [], [*missed.values()]


def test_what_no_proof_notices_is_said():
    for lesson, sentence in SAID.values():
        proof = Source(f"model_parallel/{lesson}").section("The proof")
        assert sentence in " ".join(proof.split())
