"""What the lessons on pipelines, long texts, experts, meshes and plans claim beside the model: an
edit that makes the claim false, and leaves the model right, is noticed.
"""

from planted import Planted, by_proof, unnoticed

from collectives.course import chapters, files

FOLDER = chapters.folder() / "model_parallel"


def false(lesson: str, old: str, new: str, says: str = "", function: str = "") -> Planted:
    return Planted(files.find(f"model_parallel/{lesson}"), old, new, says, function)


def false_in(module: str, lesson: str, step: str, old: str, new: str, says: str = "") -> Planted:
    """In a module that this step of the lesson uses."""
    return Planted(FOLDER / f"{module}.py", old, new, says, step, FOLDER / f"{lesson}.py")


SCHEDULES = "__import__('torch.distributed.pipelining').distributed.pipelining"
BUBBLE = "bubble = (plan.micro_batches + plan.pipeline - 1) / plan.micro_batches"
TWELVE = '"optimizer state": 12', '"optimizer state": 8'
WAITS = 'computing + sent["tensor"] / machine.inside'
LONGER = "max(in_turn, travelling)"
TRAVEL = 'sent["data"] / min('
LINKS = "max(1, machine.per_machine // (plan.pipeline * plan.tensor))"
FALSE = {
    # pipeline
    "torch's schedule is 1F1B": false(
        "pipeline", "Schedule1F1B(part", f"{SCHEDULES}.ScheduleGPipe(part"
    ),
    # schedules
    "torch's order is interleaved 1F1B": false(
        "schedules", "pipelining.ScheduleInterleaved1F1B", "pipelining.ScheduleLoopedBFS"
    ),
    "torch's order is interleaved zero bubble": false(
        "schedules", "pipelining.ScheduleInterleavedZeroBubble", "pipelining.ScheduleLoopedBFS"
    ),
    "zero bubble computes the gradients of the weights later": false(
        "schedules",
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
    # long_text
    "a rank computes while the next block travels": false(
        "long_text",
        "        yield chunks(theirs, *block), Round(owner, theirs, pairs)\n",
        "        for message in messages:\n            message.wait()\n"
        "        messages = []\n"
        "        yield chunks(theirs, *block), Round(owner, theirs, pairs)\n",
    ),
    "blocks of others are not kept": false(
        "long_text",
        "            attend(rows, columns, one.pairs)\n",
        "            attend(rows, columns, one.pairs)\n"
        "            ctx.kept = [*getattr(ctx, 'kept', []), columns]\n",
    ),
    # ulysses
    "an exchange keeps nothing": false(
        "ulysses", "        ctx.back = join, cut\n", "        ctx.back, ctx.kept = (join, cut), x\n"
    ),
    "a rank computes some of the heads": false(
        "ulysses",
        "    result = scaled_dot_product_attention(*heads, is_causal=True)\n",
        "    with torch.no_grad():\n"
        "        every = torch.cat([heads] * dist.get_world_size(), dim=BY_HEADS)\n"
        "        scaled_dot_product_attention(*every, is_causal=True)\n"
        "    result = scaled_dot_product_attention(*heads, is_causal=True)\n",
    ),
    # experts
    "an expert has room for 1.25 times its part": false_in(
        "mixture", "experts", "experts", "len(hits) / EXPERTS", "len(hits) / EXPERTS - 1"
    ),
    "the factor is how the router learns": false_in(
        "mixture",
        "experts",
        "experts",
        "        return (self.chances.amax(-1, keepdim=True) * answers)",
        "        half = self.chances.amax(-1, keepdim=True) / 2\n"
        "        return ((half + half.detach()) * answers)",
    ),
    "the router's favourite is chosen": false_in(
        "mixture", "experts", "experts", "self.chances.argmax(-1)", "self.chances.argmin(-1)"
    ),
    "the penalty is E times the sum": false_in(
        "mixture", "experts", "collapsing_router", "return EXPERTS * (asked", "return 7 * (asked"
    ),
    # mesh
    "its data coordinate chooses a share of the batch": false(
        "mesh", "(one.chunk(n)[d].chunk(MICRO_BATCHES)", "(one.chunk(MICRO_BATCHES)"
    ),
    "a rank holds slices of the weights": false_in(
        "sliced",
        "mesh",
        "three_ways",
        "slice_of(name, one.data, group).clone()",
        "slice_of(name, one.data, group)",
    ),
    # plan and choose
    **{
        f"{claim}, {step}": false_in("costs", lesson, step, old, new)
        for lesson, step, claim, old, new in (
            ("plan", "published_runs", "a rank waits in the bubble", BUBBLE, "bubble = 1"),
            ("choose", "seventy_billion", "a rank waits in the bubble", BUBBLE, "bubble = 1"),
            ("plan", "published_runs", "Adam's state takes 12 bytes", *TWELVE),
            ("plan", "published_runs", "the fullest GPU is told", "held = max(", "held = min("),
            ("plan", "published_runs", "a rank waits for its tensor group", WAITS, "computing"),
            ("choose", "seventy_billion", "layers travel", LONGER, "in_turn"),
            ("choose", "seventy_billion", "to travel takes time", TRAVEL, f"0 * {TRAVEL}"),
            ("choose", "seventy_billion", "a machine has links", LINKS, "machine.per_machine"),
        )
    },
}


def test_what_a_lesson_claims_is_proved():
    missed = unnoticed([*FALSE.values()], by_proof)
    assert [claim for claim, fault in FALSE.items() if fault in missed] == [], [*missed.values()]
