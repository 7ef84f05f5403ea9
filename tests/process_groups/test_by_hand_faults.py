"""What a group of by_hand does not keep, and how its calls end when a thread of it fails."""

import gc
import os
import socket
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from by_hand_groups import by_hand, group_of
from our_backends import in_ranks, needs_by_hand
from torch.multiprocessing.reductions import StorageWeakRef

from collectives.process_groups.by_hand import messages

pytestmark = needs_by_hand


@in_ranks(2, "by_hand")
def test_a_group_does_not_keep_the_tensors_of_a_call_that_has_ended(rank, world_size, device):
    x = torch.ones(1000)
    memory = StorageWeakRef(x.untyped_storage())
    dist.all_reduce(x, async_op=True).wait()
    del x
    until = time.monotonic() + 5
    while not memory.expired() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert memory.expired()


@in_ranks(2, "by_hand")
def test_a_thread_for_messages_that_fails_ends_all_calls_with_a_sentence(rank, world_size, device):
    """Rank 1 sends a frame whose number rank 0 never gave."""
    group = group_of(None)
    if rank == 0:
        receive = dist.irecv(torch.ones(1), src=1, group=group)
        with pytest.raises(RuntimeError, match=r"failed: the thread for messages ended: Key"):
            receive.wait(timedelta(seconds=20))
        with pytest.raises(RuntimeError, match="this group cannot be used any more"):
            dist.recv(torch.ones(1), src=1, group=group)
    else:
        peer = group.messages.peers[0]
        peer.put(messages.TAKE, 77)
        peer.write()
        with pytest.raises(RuntimeError, match=r"the thread for messages ended|rank 0 has gone"):
            dist.recv(torch.ones(1), src=0, group=group)
    dist.barrier()


def test_a_wait_ends_at_the_time_limit_of_the_group_even_if_nothing_executes_the_call():
    def fn(rank, world_size, device):
        group = group_of(None, timeout=timedelta(seconds=0.5))
        hold = threading.Event()
        group.queue.add(SimpleNamespace(execute=lambda: hold.wait(20)), is_async=True)
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match=r"all_reduce: Timed out after 0.5 s"):
            dist.all_reduce(torch.ones(1), group=group)
        hold.set()
        return time.monotonic() - begun

    assert max(by_hand(fn, 2)) < 15


def test_a_group_that_is_closed_while_a_message_begins_writes_into_no_other_file(
    monkeypatch, tmp_path
):
    one, other = socket.socketpair()
    group = messages.SocketMessages({1: one})
    write, closing, files = os.eventfd_write, [], []

    def switch_threads_then_write(fd, value):
        if not closing:
            closing.append(threading.Thread(target=group.close))
            closing[0].start()
            closing[0].join(0.5)
            files.extend(os.open(tmp_path / f"{i}", os.O_CREAT | os.O_WRONLY) for i in range(20))
        write(fd, value)

    monkeypatch.setattr(messages.os, "eventfd_write", switch_threads_then_write)
    group.add(SimpleNamespace(peer=1, refuse=print, end=print, is_completed=lambda: True))
    closing[0].join(10)
    assert not closing[0].is_alive()
    for fd in (*files, one.detach(), other.detach()):
        os.close(fd)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 20
