"""Ray Train; the bug: rank 0 alone calls a collective, for a number that it logs."""

import sys
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(config):
    import torch
    import torch.distributed as dist

    model = prepare_model(torch.nn.Linear(4, 1))
    for step in range(3):
        model(torch.randn(2, 4)).sum().backward()
        if config["healthy"] or (dist.get_rank() == 0 and step == 1):
            dist.all_reduce(torch.ones(1))  # here
    dist.barrier()


with tempfile.TemporaryDirectory() as folder:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    TorchTrainer(
        train,
        train_loop_config={"healthy": sys.argv[1] == "healthy"},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    ray.shutdown()
    print("trained")
