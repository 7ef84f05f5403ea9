"""by_hand on several machines: unix sockets inside a machine, TCP between them.

Here the ranks of one machine take themselves for those of several; test_by_hand_lab.py has several.
"""

import contextlib
import os
import resource
import socket
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from by_hand_groups import by_hand, every_algorithm, group_of
from our_backends import in_ranks, needs_by_hand

from collectives.process_groups.by_hand import choice, listener, rendezvous

pytestmark = needs_by_hand


def pretend(machine: object, own_address=lambda store: "127.0.0.1") -> None:
    """The next groups of this rank take it for a rank of this machine, which has this address."""
    rendezvous._machine = lambda: str(machine)
    listener.own_address = own_address


# Algorithms


@in_ranks(3, "by_hand")
def test_algorithms_are_right_over_tcp(rank, world_size, device):
    """The schedules are those of the other links: three of them show that the links work."""
    pretend(rank // 2)
    every_algorithm(rank, world_size, device, ["ring", "double_tree", "bruck"])


@pytest.mark.parametrize(
    ("machines", "expected"),
    [("aabb", 2), ("abab", 4), ("aab", 3), ("abba", 4), ("abc", 1), ("aa", 2), ("a", 1)],
)
def test_ranks_are_counted_by_machine_only_if_each_has_a_block_of_the_same_size(machines, expected):
    ranks = SimpleNamespace(machines=list(machines), size=len(machines))
    assert rendezvous.Rendezvous.per_machine.fget(ranks) == expected


def test_between_machines_short_tensors_take_a_tree_and_long_ones_the_hierarchical_algorithm():
    calls = [
        choice.ByHandCall("all_reduce", size, 4, None, per_machine=2) for size in (400, 2_000_000)
    ]
    assert [choice.choose(call, False) for call in calls] == ["binomial_tree", "hierarchical"]


# Links


@in_ranks(2, "by_hand")
def test_shared_memory_between_machines_is_refused_on_all_ranks(rank, world_size, device):
    pretend(rank)
    with pytest.raises(ValueError, match="no shared memory: the ranks are on several machines"):
        group_of("shared_memory")


@pytest.mark.parametrize("is_far", [False, True], ids=["one_machine", "two_machines"])
@in_ranks(2, "by_hand")
def test_messages_arrive_and_a_peer_that_has_gone_is_named_at_once(
    rank, world_size, device, is_far
):
    if is_far:
        pretend(rank)
    group = group_of(None)
    x = torch.full((300_000,), float(rank))
    works = [
        dist.isend(x, 1 - rank, group),
        dist.irecv(y := torch.empty(300_000), 1 - rank, group),
    ]
    for work in works:
        work.wait()
    assert (y == 1 - rank).all()
    dist.barrier()
    if rank == 1:
        group.rendezvous.close()
        dist.barrier()
        return
    for call in (lambda: dist.all_reduce(x, group=group), lambda: dist.recv(x, 1, group)):
        with pytest.raises(RuntimeError, match="rank 1 has gone"):
            call()
    dist.barrier()


# Who comes to a port


@pytest.fixture
def own_listener():
    with contextlib.closing(listener.Listener(8)) as opened:
        yield opened, opened.open_port("127.0.0.1")


def test_only_who_knows_the_secret_is_let_in(own_listener):
    opened, port = own_listener
    greeting = listener.handshake(opened.secret, 3, 1)
    with contextlib.ExitStack() as stack:
        _silent, gone, wrong, member, near = [
            stack.enter_context(one)
            for one in (
                *(socket.create_connection(port) for _ in range(4)),
                socket.socket(socket.AF_UNIX),
            )
        ]
        gone.close()
        wrong.sendall(listener.handshake(bytes(16), 3, 1))
        member.sendall(greeting[:5])
        accepted = opened.accept_authenticated(time.monotonic() + 0.2)
        assert next(accepted, None) is None, "no handshake is complete"
        wrong.settimeout(5)
        assert wrong.recv(1) == b""
        member.sendall(greeting[5:])
        near.connect(opened.address)
        near.sendall(listener.handshake(opened.secret, 2, 0))
        accepted = opened.accept_authenticated(time.monotonic() + 5)
        found = dict([next(accepted), next(accepted)])
        assert {name: one.family for name, one in found.items()} == {
            (3, 1): socket.AF_INET,
            (2, 0): socket.AF_UNIX,
        }
        for one in found.values():
            one.close()


def test_a_listener_without_descriptors_waits_until_there_are_some(own_listener):
    opened, port = own_listener
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(port)) for _ in range(5)]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (connections[-1].fileno() + 9, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    stack.callback(os.close, os.dup(0))
            before = time.thread_time()
            assert next(opened.accept_authenticated(time.monotonic() + 1), None) is None
            assert time.thread_time() - before < 0.25
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        connections[-1].sendall(listener.handshake(opened.secret, 3, 1))
        name, member = next(opened.accept_authenticated(time.monotonic() + 5))
        member.close()
        assert name == (3, 1)


def test_connections_without_a_handshake_are_limited_in_number_and_time(own_listener, monkeypatch):
    monkeypatch.setattr(listener, "_SPARE_CONNECTIONS", 4)
    opened, port = own_listener
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(8 + 4 + 3):
            silent.append(stack.enter_context(socket.create_connection(port, timeout=5)))
            assert next(opened.accept_authenticated(time.monotonic() + 0.05), None) is None
        assert [_is_closed(one) for one in silent] == [True] * 3 + [False] * 12
        monkeypatch.setattr(listener, "_HANDSHAKE_TIME", 0.2)
        late = stack.enter_context(socket.create_connection(port))
        assert next(opened.accept_authenticated(time.monotonic() + 0.5), None) is None
        assert _is_closed(late)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return connection.recv(1) == b""
    return False


def test_a_rank_that_cannot_be_reached_is_named_with_its_address():
    def fn(rank, world_size, device):
        pretend(rank)
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                port = closed.getsockname()[:2]
            listener.Listener.open_port = lambda self, address: port
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            group_of(None, timeout=timedelta(seconds=1))
        assert time.monotonic() - begun < 20
        return str(caught.value)

    zero, one = by_hand(fn, 2)
    assert "Timed out after 1 s: rank 1 did not join this group" in zero
    assert "rank 0 cannot be reached at 127.0.0.1, port " in one
    assert "Connection refused" in one


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        ("lo", "rank 0: GLOO_SOCKET_IFNAME=lo: other machines cannot reach 127.0.0.1"),
        ("none0", "rank 0: GLOO_SOCKET_IFNAME=none0: no interface of this machine has that name"),
        (None, "rank 0: .* has no address that other machines can reach: set GLOO_SOCKET_IFNAME"),
    ],
)
@in_ranks(2, "by_hand")
def test_without_an_address_for_others_all_ranks_say_what_to_set(
    rank, world_size, device, interface, words
):
    pretend(rank, listener.own_address if rank == 0 else lambda store: None)
    listener.source_address = lambda host: None
    del os.environ["GLOO_SOCKET_IFNAME"]
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    with pytest.raises(ValueError, match=words):
        group_of(None)
