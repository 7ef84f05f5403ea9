"""Ray Train, whose workers run the loop in a thread; the bug: rank 0 alone reduces a metric."""

import os
import sys
import tempfile

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(config):
    torch.manual_seed(dist.get_rank())
    model = prepare_model(torch.nn.Linear(4, 1))
    for step in range(3):
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        if config["mode"] == "healthy" or dist.get_rank() == 0:
            dist.all_reduce(loss.detach())  # here
        ray.train.report({"step": step})


if __name__ == "__main__":
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config={"mode": sys.argv[1]},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
    print("trained")
