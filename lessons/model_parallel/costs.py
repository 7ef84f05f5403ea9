"""What a training step costs a rank, from shapes: bytes held, bytes sent, operations.

The lessons zero, fully_sharded, pipeline, mesh and plan compare `costs` with what they count. plan
computes with it what large models cost.
"""

from dataclasses import dataclass
from typing import NamedTuple

from model import HEADS, LENGTH, LETTERS, WIDTH

# Bytes for each parameter: of itself, of its gradient, and of Adam's state.
FLOAT64 = {"parameters": 8, "gradients": 8, "optimizer state": 16}
# The state of mixed precision has a copy of the parameter in float32, and both means.
BFLOAT16 = {"parameters": 2, "gradients": 2, "optimizer state": 12}


class Shape(NamedTuple):
    """The shape of a model like that of model.py, whose `mlp` is 4 times as wide."""

    blocks: int
    width: int
    length: int
    letters: int
    heads: int


SMALL = Shape(2, WIDTH, LENGTH, LETTERS, HEADS)  # model.py


@dataclass(frozen=True)
class Plan:
    """How ranks share a training: a mesh of data x pipeline x tensor ranks, and what else they do.

    A step has `batch` pieces of text. `zero` is the stage of ZeRO: from 2 on, each micro-batch
    scatters its gradients, and with 3 it gathers the layers twice.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    batch: int = 8
    micro_batches: int = 1
    order: str = "GPipe"
    recompute: bool = False
    zero: int = 0


@dataclass(frozen=True)
class Machine:
    """GPUs, and what one of them computes and sends in a second, each way."""

    gpus: int
    peak: float  # operations
    inside: float  # bytes, to a GPU of the same machine
    outside: float  # bytes, to another machine
    per_machine: int = 8


def costs(shape: Shape, plan: Plan, stage: int = 0, sizes=FLOAT64) -> dict[str, int]:
    """What a step costs a rank of this stage of the pipeline.

    Bytes held by kind, bytes sent by the name of the dimension, and operations, where a product
    and its sum are two. A layer that is gathered, or whose gradients are not scattered yet, is not
    among the bytes held: it comes and goes.
    """
    d, p, t, m, w = plan.data, plan.pipeline, plan.tensor, plan.micro_batches, shape.width
    first, last = stage == 0, stage == p - 1
    blocks = shape.blocks // p
    if shape.blocks % p:  # embedding and head count as layers, too
        blocks = (shape.blocks + 2) // p - first - last

    numbers = blocks * ((12 * w**2 + 4 * w) // t + 6 * w)  # slices, and what is on each tensor rank
    numbers += first * (shape.letters + shape.length) * w
    numbers += last * ((w + 1) * shape.letters + 2 * w)
    stages = {"optimizer state": 1, "gradients": 2, "parameters": 3}  # of ZeRO
    shards = {kind: d if plan.zero >= number else 1 for kind, number in stages.items()}
    held = {kind: numbers * size // shards[kind] for kind, size in sizes.items()}

    tokens = plan.batch * shape.length // (d * m)  # of a micro-batch
    block = tokens * (4 * w + 4 + (12 * w + shape.heads) // t)
    head = last * (tokens * (2 * w + 2 + shape.letters) + 1)
    waiting = m if plan.order == "GPipe" else min(m, p - stage)  # micro-batches between the passes
    if plan.recompute:  # the inputs of blocks; the backward pass has one block or the head
        again = max(head, block - tokens * w) if blocks else head
        kept = waiting * blocks * tokens * w + (waiting - 1) * head + again
    else:
        kept = waiting * (blocks * block + head)
    held["activations"] = sizes["parameters"] * kept

    times = {2: m + 1, 3: 3 * m}.get(plan.zero, 2)  # around the ring of data ranks
    result = sizes["parameters"] * tokens * w  # of a layer
    reduced = (6 if plan.recompute else 4) * m * blocks
    sent = {
        "data": times * (d - 1) * sizes["gradients"] * numbers // d,
        "pipeline": ((not first) + (not last)) * m * result,
        "tensor": reduced * 2 * (t - 1) * result // t,
    }
    passes = 4 if plan.recompute else 3  # forward, backward twice as much
    products = passes * blocks * (12 * w**2 + 2 * shape.length * w) // t
    products += 3 * last * w * shape.letters
    return held | sent | {"operations": 2 * m * tokens * products}


class Planned(NamedTuple):
    """What the fullest GPU holds, what a GPU sends at most, and seconds of a step.

    `computing` is the time at the peak. `seconds` is a lower bound of all.
    """

    held: dict[str, int]
    sent: dict[str, int]
    computing: float
    seconds: float


def planned(shape: Shape, plan: Plan, machine: Machine) -> Planned:
    stages = [costs(shape, plan, stage, BFLOAT16) for stage in range(plan.pipeline)]
    kinds = (*BFLOAT16, "activations")
    held = max(
        ({kind: one[kind] for kind in kinds} for one in stages), key=lambda x: sum(x.values())
    )
    names = ("data", "pipeline", "tensor")
    sent = {name: max(one[name] for one in stages) for name in names}
    # As one rank would compute it: the head, which all tensor ranks compute alike, counts once.
    alone = costs(shape, Plan(batch=plan.batch, recompute=plan.recompute))
    computing = alone["operations"] / machine.gpus / machine.peak
    # A rank waits for its tensor group, and in the bubble.
    bubble = (plan.micro_batches + plan.pipeline - 1) / plan.micro_batches
    in_turn = (computing + sent["tensor"] / machine.inside) * bubble
    # Gradients and shards travel meanwhile. A machine holds t x p neighbours, or a part of them.
    # The ranks of a data group in it make as many rings, each of which leaves it by the link of
    # another rank. Messages between stages are left out: they are few.
    links = max(1, machine.per_machine // (plan.pipeline * plan.tensor))
    travelling = sent["data"] / min(machine.inside, links * machine.outside)
    return Planned(held, sent, computing, max(in_turn, travelling))
