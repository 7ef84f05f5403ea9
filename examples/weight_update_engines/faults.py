"""What an engine can do wrong when weights come. stub_engine.py plants one: --fault NAME.

A function gets every rank of the engine, and then its server, and puts a wrong method in place of
a right one. Where others have met it stands behind its first line.
"""

import os
import signal
import threading

FAULTS = {}
LACKS = {  # a protocol in which the fault is none
    "other_group": ("vllm", "its groups have no name"),
    "same_port_again": ("vllm", "each init makes a communicator without a name"),
}


def in_ranks(plant):
    """A fault of the processes that hold the weights."""
    return _fault(plant, lambda target: hasattr(target, "weights"))


def in_server(plant):
    """A fault of the process that answers HTTP."""
    return _fault(plant, lambda target: not hasattr(target, "weights"))


def _fault(plant, concerned):
    def plant_if_concerned(target):
        if concerned(target):
            plant(target)

    plant_if_concerned.__doc__ = plant.__doc__
    FAULTS[plant.__name__] = plant_if_concerned
    return plant


@in_ranks
def none(rank):
    """a healthy engine"""


@in_ranks
def takes_nothing(rank):
    """answers 200 and keeps its old weights

    vllm-project/vllm PR 57022: without libnccl every broadcast did nothing.
    """
    rank.load = lambda tensors: None


@in_ranks
def hears_nothing(rank):
    """answers 200 and never joins a broadcast

    lightseekorg/tokenspeed 1373.
    """
    rank.receive = lambda *call: []


@in_ranks
def wrong_offset(rank):
    """counts its ranks from 1, whatever rank_offset says"""
    join = rank.join
    rank.join = lambda address, port, offset, *rest: join(address, port, 1, *rest)


@in_ranks
def other_group(rank):
    """joins a group of another name"""
    join = rank.join

    def join_another(address, port, offset, world_size, name, backend):
        join(address, port, offset, world_size, f"{name} of actors", backend)

    rank.join = join_another


@in_server
def world_too_large(server):
    """says that it has a rank more than it has

    As vLLM's get_world_size with data parallel ranks, if somebody adds them once more.
    """
    server.tp_told = server.tp + 1


def receive_in(rank, dtype):
    receive = rank.receive
    rank.receive = lambda names, dtypes, *rest: receive(names, [dtype] * len(names), *rest)


@in_ranks
def narrower(rank):
    """receives into its own narrower dtype

    OpenRLHF PR 1348: a trainer in float32, an engine in bfloat16.
    """
    receive_in(rank, "bfloat16")


@in_ranks
def wider(rank):
    """receives into its own wider dtype"""
    receive_in(rank, "float32")


def with_names(rank, renamed):
    load = rank.load
    rank.load = lambda tensors: load([(renamed.get(name, name), one) for name, one in tensors])


@in_ranks
def swapped(rank):
    """takes the query for the key, and the key for the query"""
    with_names(rank, {"query.weight": "key.weight", "key.weight": "query.weight"})


@in_ranks
def renamed(rank):
    """has another name for a tensor, as engines that fuse several

    alibaba/ROLL PR 500.
    """
    with_names(rank, {"up.weight": "gate_up.weight"})


@in_ranks
def tied_head_missing(rank):
    """does not set the head, which is the embedding and does not come by itself

    sgl-project/sglang PR 1508.
    """
    load = rank.load

    def load_without_the_head(tensors):
        old = rank.weights["head.weight"]
        load(tensors)
        rank.weights["head.weight"] = old

    rank.load = load_without_the_head


@in_ranks
def old_cache(rank):
    """says that it has flushed its cache, and keeps it

    InternLM/lmdeploy 4917, and in other words many others.
    """
    rank.flush = lambda: None


@in_server
def answers_during_update(server):
    """goes on answering while it is paused

    meta-pytorch/torchforge 251.
    """
    server.pause = lambda: None


@in_server
def error_while_sending(server):
    """answers with an error at once, while the trainer waits in broadcast"""
    ask = server.ask

    def refuse_updates(name, *args):
        if name == "update":
            raise RuntimeError("out of memory")
        return ask(name, *args)

    server.ask = refuse_updates


@in_ranks
def dies(rank):
    """is killed when the first tensors come"""
    receive = rank.receive

    def receive_and_die(*call):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return receive(*call)

    rank.receive = receive_and_die


@in_ranks
def same_port_again(rank):
    """still has the group of a trainer that crashed, and refuses its name

    huggingface/trl 3408.
    """
    join, names = rank.join, ["weight_update_group"]

    def refuse_a_known_name(address, port, offset, world_size, name, backend):
        if name in names:
            raise ValueError("group name has already been created")
        join(address, port, offset, world_size, name, backend)

    rank.join = refuse_a_known_name
