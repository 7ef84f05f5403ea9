"""What the lessons on training claim beside the model is proved, too.

Each fault here leaves parameters and gradients as they are, and makes a sentence of a lesson false.
"""

from functools import partial

import pytest
from planted import Planted, by_any_error, by_proof, unnoticed

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
    *(
        Planted(files.find(f"training/{name}"), old, new, says, step)
        for name, step, says, old, new in (
            # "Together, the ranks load all samples once in an epoch, in another order each time."
            (
                "sampler",
                "sampler",
                "computed 128 samples of 128, its share is 32",
                "loader = DataLoader(range(1797), size, sampler=shards, drop_last=True)",
                "shards = DistributedSampler(range(1797), 1, 0)\n"
                "    loader = DataLoader(range(1797), 128, sampler=shards, drop_last=True)",
            ),
            ("sampler", "sampler", "[three epochs", "        shards.set_epoch(epoch)\n", ""),
            (
                "sampler",
                "uneven_inputs",
                "[Join",
                "initial_world_size=False",
                "initial_world_size=True",
            ),
            # "All ranks need the same random numbers for the start, and different ones for dropout."
            (
                "seeds",
                "seeds",
                "[dropout",
                "torch.manual_seed(1 + rank)\n    trained",
                "torch.manual_seed(1)\n    trained",
            ),
            (
                "seeds",
                "on_my_shard",
                "[dropout",
                "model(images[rank::n]), labels[rank::n])",
                "model(images), labels)",
            ),
            ("seeds", "on_my_shard", "[dropout", "(loss / n).backward()", "loss.backward()"),
            (
                "seeds",
                "loader_workers",
                "[different numbers",
                "torch.manual_seed(seed)\n        draws",
                "torch.manual_seed(rank)\n        draws",
            ),
            (
                "seeds",
                "same_run_twice",
                "[parameters with equal bits",
                "torch.manual_seed(1 + rank)",
                "torch.seed()",
            ),
            # "A batch norm that normalizes over all ranks", also where their shards are not equal.
            (
                "buffers",
                "norm_of_all_ranks",
                "[batch norm of all ranks",
                "DDP(network(BatchNormOfAllRanks, device))",
                "DDP(network(nn.BatchNorm1d, device))",
            ),
            (
                "buffers",
                "BatchNormOfAllRanks",
                "[unequal shards",
                'mean = all_reduce(x.sum(0), "sum", dist.group.WORLD) / count',
                'mean = all_reduce(x.mean(0), "sum", dist.group.WORLD) / dist.get_world_size()',
            ),
            (
                "buffers",
                "BatchNormOfAllRanks",
                "[eval() reduces nothing",
                "if not self.training:",
                "if False:",
            ),
            # "Accelerate wraps a model, its optimizer and its loader."
            (
                "with_accelerate",
                "",
                "[prepare",
                "prepared = accelerator.prepare(model, optimizer, loader)",
                "prepared = DDP(model), optimizer, accelerator.prepare(loader)",
            ),
            (
                "with_accelerate",
                "exact_metrics",
                "[gather_for_metrics",
                "accelerator.gather_for_metrics(right)",
                "accelerator.gather(right)",
            ),
            # "A sum that depends on its order, and gradients on a grid, which add to the same bits."
            (
                "different_bits",
                "order_of_additions",
                "[equal bits",
                "accumulate(reversed(found))",
                "accumulate(found)",
            ),
            (
                "different_bits",
                "on_the_grid",
                "[parameters with equal bits",
                "(gradient * 2**40).round() / 2**40",
                "gradient",
            ),
            # "What `torch.compile` makes of the call."
            (
                "functional",
                "compiled",
                "[the graph",
                "torch.compile(functional_sum, backend=compiler, fullgraph=True)",
                "functional_sum",
            ),
            # "How many reductions `no_sync` saves, and with which weight each token must count."
            (
                "accumulation",
                "",
                "[reductions",
                "    with model.no_sync():\n        loss",
                "    if True:\n        loss",
            ),
            ("accumulation", "", "[tokens", "    dist.all_reduce(tokens)\n", "    tokens *= n\n"),
            # "Here its norm may be at most 0.5", and a smaller gradient is not scaled up.
            (
                "accumulation",
                "clipped",
                "[clipping",
                "model.parameters(), 0.5)",
                "model.parameters(), 0.4)",
            ),
            (
                "accumulation",
                "clipped",
                "[clipping",
                "nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())",
                "nn.utils.get_total_norm(one.grad for one in model.parameters()).item())\n"
                "    for one in model.parameters():\n        one.grad *= 0.5 / norms[-1]",
            ),
            # "Each of which computes the outputs of a part of the batch."
            (
                "threads",
                "threads",
                "[images of each replica",
                "lambda replica, x: replica(x), replicas, images.tensor_split(4))",
                "lambda one, k: one(images).tensor_split(4)[k], replicas, range(4))",
            ),
            # "What a step sends for each image."
            ("faster", "", "[bytes for each image", "mine = batch[rank::n]", "mine = batch"),
            (
                "faster",
                "bytes_for_each_image",
                "[bytes for each image",
                "hook=default_hooks.fp16_compress_hook",
                "hook=default_hooks.allreduce_hook",
            ),
        )
    ),
]

# "In every step it replicates the model for four threads."
ONE_THREAD = Planted(
    files.find("training/threads"),
    "ThreadPoolExecutor(4) as threads",
    "ThreadPoolExecutor(1) as threads",
    "BrokenBarrierError",
    "threads",
)


@pytest.mark.slow
def test_a_claim_beside_the_model_is_proved():
    assert unnoticed(FAULTS, by_proof) == {}


@pytest.mark.slow
def test_four_threads_are_four():
    assert unnoticed([ONE_THREAD], partial(by_any_error, timeout=200.0)) == {}
