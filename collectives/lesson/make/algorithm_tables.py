"""The tables of docs/algorithms.md: what the algorithms send, the claim of 180 times, rounding.

`python -m collectives.lesson.make.algorithm_tables` computes and writes all of them.
"""

import torch

from collectives.backends.algorithms import count, nccl, rounding, table
from collectives.lesson.make.generated_part import Part

_MODULE = "collectives.lesson.make.algorithm_tables"

COUNTED = Part("what each algorithm sends", _MODULE, "docs/algorithms.md")
CLAIM = Part("the claim of 180 times", _MODULE, "docs/algorithms.md")
ROUNDING = Part("what rounding costs", _MODULE, "docs/algorithms.md")

# Ranks and bytes of the first table.
RANKS, NBYTES = 8, 16 * 2**20


def counted() -> str:
    rows = []
    for collective, known in table.ALGORITHMS.items():
        for name in known:
            found = count.traffic(collective, name, RANKS, NBYTES)
            rows.append(
                [
                    f"`{collective}`",
                    f"`{name}`",
                    found.steps,
                    max(found.messages),
                    sum(found.messages),
                    "-" if collective == "barrier" else f"{found.busiest() / NBYTES:.4g}",
                ]
            )
    heads = ["call", "algorithm", "steps", "messages of a rank", "of all", "busiest rank's share"]
    return _markdown([heads, *rows])


def claim() -> str:
    rows = []
    for assumption in nccl.ASSUMPTIONS:
        ring, tree = (one(assumption, 24_576, 6) * 1e3 for one in (nccl.ring_time, nccl.tree_time))
        sizes = [nccl.size_text(nccl.crossing(assumption, n, 6)) for n in (24, 24_576)]
        inside, between = zip(assumption.ring, assumption.tree, strict=True)
        hops = [f"{x:g} / {y:g}" for x, y in (inside, between)]
        rows.append(
            [assumption.name, *hops, f"{ring:.4g}", f"{tree:.3g}", f"{ring / tree:.0f}", *sizes]
        )
    heads = ["assumption", "hop inside a node, ring / tree, µs", "between nodes, µs"]
    heads += ["ring, ms", "tree, ms", "ratio", "ring wins from, 24 GPUs", "24,576 GPUs"]
    return _markdown([heads, *rows])


def rounded() -> str:
    rows = []
    for dtype in (torch.bfloat16, torch.float16):
        for name in ("normal", "between 0 and 1"):
            draw = torch.randn if name == "normal" else torch.rand
            for schedule in rounding.SCHEDULES:
                errors = [
                    f"{rounding.relative_error(schedule, n, dtype, draw):.1e}"
                    for n in (8, 64, 1024)
                ]
                rows.append([str(dtype).removeprefix("torch."), name, schedule, *errors])
    heads = ["dtype", "numbers", "added along", "8 ranks", "64 ranks", "1,024 ranks"]
    return _markdown([heads, *rows])


def _markdown(rows: list[list]) -> str:
    heads, *rest = rows
    lines = [heads, ["---"] * len(heads), *rest]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    COUNTED.write(counted())
    CLAIM.write(claim())
    ROUNDING.write(rounded())
