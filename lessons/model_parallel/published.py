"""Trainings of large models, as their papers report them.

Megatron-LM: https://arxiv.org/abs/2104.04473, table 1. BLOOM: https://arxiv.org/abs/2211.05100.
Llama 3: https://arxiv.org/abs/2407.21783, table 4. We assume micro-batches of one piece of text.

Links to other machines: 4 x 100 Gbit/s for 8 GPUs (BLOOM), 200 (Megatron-LM) and 400 for each GPU.
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
