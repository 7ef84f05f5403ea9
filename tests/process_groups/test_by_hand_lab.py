"""by_hand on two machines of a lab with two ranks each: right, cut off, and one rank killed."""

import json
import re
import sys

import pytest
import torch
from machines import needs_a_lab, processes
from repository import SUPPORT

from collectives import Lab

pytestmark = [pytest.mark.slow, needs_a_lab]

PROGRAM = """
import contextlib, json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path

import psutil, torch
import torch._dynamo  # DDP imports it: once, before the ranks are forked
import torch.distributed as dist
import collectives.backends.register
from collectives.process_groups.by_hand.choice import Options
from ddp_losses import losses, with_ddp

node, folder = int(sys.argv[1]), Path(sys.argv[2])
rank = 2 * node + (os.fork() == 0)
other_machine = (rank + 2) % 4
dist.init_process_group("by_hand", init_method="tcp://node0:29500", rank=rank, world_size=4)

def group_of(algorithm, seconds=60):
    options = Options(algorithm)
    return dist.new_group(pg_options=options, timeout=timedelta(seconds=seconds))

def sent():
    return psutil.net_io_counters(pernic=True)["eth0"].bytes_sent

def sums():
    # Of each algorithm and size: as numbers, the first ones and a hash of all.
    found = {}
    for algorithm in (None, "ring", "halving_doubling", "binomial_tree", "double_tree"):
        group = group_of(algorithm)
        for length in (5, 1000, 100_003, 2_000_000):
            x = torch.randn(length, generator=torch.Generator().manual_seed(rank))
            dist.all_reduce(x, group=group)
            bits = x.view(torch.int32).long()
            found[f"{algorithm} {length}"] = [x[:5].tolist(), (bits * torch.arange(1, length + 1)).sum().item()]
    return found

def bytes_out(algorithm):
    # What leaves this machine in an all_reduce of 4 MB.
    group, x = group_of(algorithm), torch.ones(1_000_000)
    dist.barrier()
    before = sent()
    dist.barrier()
    dist.all_reduce(x, group=group)
    dist.barrier()
    return sent() - before

def messages():
    y = torch.empty(1000)
    works = [dist.isend(torch.full((1000,), float(rank)), other_machine), dist.irecv(y, other_machine)]
    for work in works:
        work.wait()
    return y.unique().tolist()

def addresses():
    group = group_of(None)
    found = {}
    for peer, connection in group.rendezvous.sockets[0].items():
        far = connection.family.name == "AF_INET"
        found[peer] = [*connection.getsockname()[:1], *connection.getpeername()[:1]] if far else "unix"
    open_ports = [one for one in psutil.Process().net_connections("inet") if one.status == "LISTEN"]
    return found, len(open_ports)

def near():
    # A group inside a machine. On node1, /dev/shm is full.
    group = dist.new_group([2 * node, 2 * node + 1], use_local_synchronization=True)
    dist.all_reduce(x := torch.ones(100_000), group=group)
    return x.sum().item(), group.shared is not None

def failing(group, x):
    begun = time.monotonic()
    try:
        while True:
            dist.all_reduce(x, group=group)
    except RuntimeError as error:
        return str(error), time.monotonic() - begun

def say(word):
    (folder / f"{rank} {word}").touch()
    if rank == 0:
        while len(list(folder.glob(f"? {word}"))) < 4:
            time.sleep(0.02)
        print(word, flush=True)

def hear(word):
    while not (folder / word).exists():
        time.sleep(0.02)

def unplugged(group):
    say("unplug")
    hear("unplugged")
    time.sleep(rank == 3)  # it finds that rank 2 has left, and asks the store why
    found = failing(group, torch.ones(1000))
    group.shutdown()
    say("plug")
    hear("plugged")
    return found

def killed(group):
    dist.all_reduce(torch.ones(1))
    if rank == 3:
        dist.all_reduce(torch.ones(500_000), group=group)
        (folder / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    text, _ = failing(group, torch.ones(500_000))
    return text, time.monotonic() - float((folder / "killed").read_text())

before_kill = group_of(None)
facts = {
    "sums": sums(), "bytes": [bytes_out("ring"), bytes_out(None)], "messages": messages(),
    "addresses": addresses(), "near": near(),
    "losses": losses(rank, 4, None, with_ddp, 20),
    "unplugged": unplugged(group_of(None, 4)),
}
if rank == 3:
    (folder / "3.json").write_text(json.dumps(facts))
facts["killed"] = killed(before_kill)
(folder / f"{rank}.json").write_text(json.dumps(facts))
while rank == 0 and len(list(folder.glob("?.json"))) < 4:  # it has the store
    time.sleep(0.02)
with contextlib.suppress(ChildProcessError):
    os.wait()
os._exit(0)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What each of four ranks on two machines found, rank 3 until it was killed; and what was left."""
    folder = tmp_path_factory.mktemp("world")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with Lab(2) as lab:
        lab.fill_disk(1, "/dev/shm")

        def tell(name, stream, line):
            if line == "unplug\n":
                lab.unplug(1)
                (folder / "unplugged").touch()
            elif line == "plug\n":
                lab.plug(1)
                (folder / "plugged").touch()

        command = ["env", f"PYTHONPATH={SUPPORT}", "OMP_NUM_THREADS=1"]
        command += [sys.executable, str(program), "{node}", str(folder)]
        done = lab.run(command, timeout=150, on_line=tell)
        left = [processes(lab, node, ["cat"]) for node in lab.nodes]
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)], left


def test_sums_over_two_machines_are_right_and_have_the_same_bits_on_all_ranks(world):
    first, *others = [facts["sums"] for facts in world[0]]
    assert all(other == first for other in others)
    for key, (beginning, _) in first.items():
        length = int(key.split()[1])
        tensors = [
            torch.randn(length, generator=torch.Generator().manual_seed(rank)) for rank in range(4)
        ]
        assert beginning == pytest.approx(sum(tensors)[:5].tolist(), abs=1e-5), key


def test_the_hierarchical_algorithm_sends_less_between_machines_than_a_ring(world):
    """Of a ring of four ranks in blocks 2 * 3/4 of the tensor, of two machines 2 * 1/2 of it."""
    for facts in world[0]:
        ring, chosen = facts["bytes"]
        assert 1.5 <= ring / 4_000_000 <= 1.6
        assert 1.0 <= chosen / 4_000_000 <= 1.1


def test_links_inside_a_machine_are_unix_sockets_and_between_them_tcp(world):
    for rank, facts in enumerate(world[0]):
        own, other = f"10.13.0.{1 + rank // 2}", f"10.13.0.{2 - rank // 2}"
        addresses, open_ports = facts["addresses"]
        assert addresses == {
            str(peer): "unix" if peer // 2 == rank // 2 else [own, other]
            for peer in range(4)
            if peer != rank
        }
        assert open_ports == (1 if rank == 0 else 0), "the store's alone, once a group is complete"
        assert facts["messages"] == [(rank + 2) % 4]
        assert facts["near"] == [200_000.0, True], "the file of the memory is not in /dev/shm"


def test_ddp_over_two_machines_has_the_losses_of_gloo(world):
    for facts in world[0]:
        over_gloo, over_by_hand = facts["losses"]
        assert over_by_hand == pytest.approx(over_gloo, abs=1e-6)
        assert over_by_hand[-1] != over_by_hand[0]


def test_a_cable_that_is_out_ends_each_call_at_its_time_limit_with_rank_and_peer(world):
    for rank, facts in enumerate(world[0]):
        text, seconds = facts["unplugged"]
        print(rank, text, seconds)
        assert re.match(rf"rank {rank}/4: all_reduce.*(waiting for rank \d|rank \d has gone)", text)
        assert seconds < 4 + 1 + 3  # its limit, the question to a store that is away, and a reserve
    assert any("Timed out after 4 s" in facts["unplugged"][0] for facts in world[0])


def test_a_killed_rank_is_named_at_once_on_both_machines_and_nothing_is_left(world):
    found, left = world
    for rank, facts in enumerate(found[:3]):
        text, seconds = facts["killed"]
        print(text, seconds)
        assert text.startswith(f"rank {rank}/4: all_reduce failed: ")
        assert "rank 3 has gone" in text
        assert seconds < 10  # the time limit is 60 s
    assert left == [["cat"]] * 2
