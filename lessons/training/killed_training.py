"""The training of the lesson failover with a rank that is killed: torchrun starts this file."""

import os
import pkgutil
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

import failover
from accidents import BATCHES, at_call
from collectives import check_training
from one_process import network


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder, victim, call, number):
    failover.meet()
    rank, restart = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (restart, rank) == ("0", int(victim)):
        owner, _, name = call.rpartition(".")
        at_call(pkgutil.resolve_name(owner), name, int(number), kill).start()

    def noted(model, images, labels):
        if rank == 0:
            with Path(folder, "log").open("a") as log:
                log.write(f"{restart} {time.time()}\n")
        return failover.on_my_shard(model, images, labels)

    trained, _ = failover.train(network(0, "cpu"), noted, BATCHES, "cpu", folder)
    undisturbed, _ = failover.train(network(0, "cpu"), failover.on_my_shard, BATCHES, "cpu")
    check_training(trained, undisturbed, "failover", limit=0.0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
