"""Trainings of large models, as their papers report them.

Megatron-LM: https://arxiv.org/abs/2104.04473, table 1. BLOOM: https://arxiv.org/abs/2211.05100.
Llama 3: https://arxiv.org/abs/2407.21783, table 4. We take micro-batches of one piece of text, and
the order 1F1B. BLOOM and the smaller one of Megatron-LM had two pieces in a micro-batch.

Links to other machines: 4 x 100 Gbit/s for 8 GPUs (BLOOM), 200 (Megatron-LM) and 400 for each GPU.
Measured: https://arxiv.org/abs/2205.05198, tables 3 and 5. Faster first: figures 13, 14 and 15 of
Megatron-LM. Shards: https://arxiv.org/abs/1910.02054, figure 1.

Peaks in bfloat16, and links inside a machine, of which we take half, for one direction:
https://www.nvidia.com/en-us/data-center/a100/ and https://www.nvidia.com/en-us/data-center/h100/.
"""

from typing import NamedTuple

from costs import Machine, Plan, Shape


class Run(NamedTuple):
    shape: Shape
    plan: Plan
    machine: Machine
    parameters: float  # reported, as the next one
    speed: float  # operations of a GPU in a second


def a100(gpus: int, outside: float) -> Machine:
    return Machine(gpus, 312e12, 300e9, outside)


def h100(gpus: int) -> Machine:
    return Machine(gpus, 989e12, 450e9, 50e9)


RUNS = {
    "BLOOM": Run(
        Shape(70, 14336, 2048, 250_680, 112),
        Plan(8, 12, 4, 2048, 256, "1F1B", recompute=True, zero=1),
        a100(384, 6.25e9),
        176.247e9,
        156e12,
    ),
    "Megatron-LM": Run(
        Shape(80, 12288, 2048, 51_200, 96),
        Plan(24, 8, 8, 2304, 96, "1F1B", recompute=True),
        a100(1536, 25e9),
        145.6e9,
        148e12,
    ),
    "Megatron 1T": Run(
        Shape(128, 25600, 2048, 51_200, 160),
        Plan(6, 64, 8, 3072, 512, "1F1B", recompute=True),
        a100(3072, 25e9),
        1008e9,
        163e12,
    ),
    "Llama 3": Run(
        Shape(126, 16384, 8192, 128_000, 128),
        Plan(64, 16, 8, 2048, 32, "1F1B", zero=2),
        h100(8192),
        405e9,
        430e12,
    ),
}

# By the size of a model: its shape, batch and GPUs; seconds of a step, and the part of the peak.
# Tensor parallel over 8 GPUs, and a pipeline over the others.
MEASURED = {
    "22B": (Shape(48, 6144, 2048, 51_200, 64), 4, 8, 1.10, 0.415),
    "175B": (Shape(96, 12288, 2048, 51_200, 96), 64, 64, 13.75, 0.514),
    "530B": (Shape(105, 20480, 2048, 51_200, 128), 280, 280, 37.83, 0.560),
    "1T": (Shape(128, 25600, 2048, 51_200, 160), 512, 512, 71.49, 0.563),
}
# On 64 GPUs, plans as (data, pipeline, tensor), of which each was faster than the next one. We
# leave out those whose tensor group is larger than a machine, and of figure 13 all but the fastest
# plan and the next longer pipeline: its text tells no order of the others.
SMALLER, LARGER = Shape(32, 3840, 2048, 51_200, 32), Shape(32, 20480, 2048, 51_200, 128)
FASTER_FIRST = {
    "a longer pipeline in place of data": (
        SMALLER,
        512,
        [(32, 2, 1), (16, 4, 1), (8, 8, 1), (4, 16, 1), (2, 32, 1)],
    ),
    "more tensor ranks in place of data": (SMALLER, 512, [(32, 1, 2), (16, 1, 4), (8, 1, 8)]),
    "a pipeline in place of tensor ranks": (LARGER, 128, [(1, 8, 8), (1, 16, 4)]),
}
# Of a model with 7.5e9 parameters on 64 GPUs: by the stage of ZeRO, GB of a GPU.
SHARDS = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
