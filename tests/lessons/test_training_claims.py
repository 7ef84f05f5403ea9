"""What the lessons on training claim beside the model is proved, too.

Each fault here leaves parameters and gradients as they are, and makes a sentence of a lesson false.
"""

import pytest
from planted import Planted, by_proof, unnoticed

from collectives.course import files

WHOLE = "computed 64 samples of 64, its share is 16"
FAULTS = [
    # "Shard each batch: every rank takes another piece."
    *(
        Planted(files.find(f"training/{name}"), old, new, WHOLE)
        for name, old, new in (
            ("data_parallel", "batch[dist.get_rank() :: dist.get_world_size()]\n", "batch\n"),
            ("ddp", "images[rank::n], labels[rank::n])", "images, labels)"),
            ("buckets", "model, images[rank::n], labels[rank::n])", "model, images, labels)"),
            ("accumulation", "x, y = images[rank::n], labels[rank::n]", "x, y = images, labels"),
            (
                "to_the_gpu",
                "images[rank::n], labels[rank::n], autocast)",
                "images, labels, autocast)",
            ),
        )
    ),
    # "`all_reduce` starts and returns immediately, and `backward()` goes on."
    Planted(
        files.find("training/buckets"),
        "started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))",
        "started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))\n"
        "        started[-1][2].wait()",
        "[the others go on while rank 0 is late",
    ),
    # "Only 1.1958 is the loss of all images."
    Planted(
        files.find("training/validation"),
        '{"loss of all": sums[0] / sums[2],',
        '{"loss of all": mine[0] / mine[2],',
        "[loss of all",
    ),
]


@pytest.mark.slow
def test_a_claim_beside_the_model_is_proved():
    assert unnoticed(FAULTS, by_proof) == {}
