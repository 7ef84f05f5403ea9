"""Ranks that are threads of one process: a world for the algorithms that starts in no time."""

import queue
import threading

import torch

from collectives.algorithms.links import as_bytes


def world(n, fn, limit=20.0):
    """`fn(links)` in `n` threads; the results in rank order. The first error is raised."""
    results, errors = [None] * n, []

    def run(links):
        try:
            results[links.rank] = fn(links)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(links,)) for links in ThreadLinks.world(n, limit)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class ThreadLinks:
    """Between threads of one process. A send waits for its receive, as gloo's and MPI's may.

    They count what passes: messages that were sent, and bytes sent and received.
    """

    def __init__(self, rank: int, queues: dict, limit: float):
        self.rank, self.size = rank, max(peer for peer, _ in queues) + 1
        self.queues, self.limit = queues, limit
        self.messages = self.sent = self.received = 0

    @classmethod
    def world(cls, n: int, limit: float = 20.0) -> list["ThreadLinks"]:
        """The links of all ranks. A message that takes longer than `limit` seconds is an error."""
        queues = {(a, b): queue.SimpleQueue() for a in range(n) for b in range(n)}
        return [cls(rank, queues, limit) for rank in range(n)]

    def send(self, peer, tensor):
        self._wait(self._start(peer, tensor), peer)

    def receive(self, peer, tensor):
        try:
            sent, taken = self.queues[peer, self.rank].get(timeout=self.limit)
        except queue.Empty:
            raise TimeoutError(f"rank {self.rank}: rank {peer} sent nothing") from None
        if (sent.numel(), sent.dtype) != (tensor.numel(), tensor.dtype):
            raise ValueError(
                f"rank {self.rank}: rank {peer} sent {sent.dtype}[{sent.numel()}], "
                f"should be {tensor.dtype}[{tensor.numel()}]"
            )
        as_bytes(tensor).numpy()[:] = as_bytes(sent).numpy()
        self.received += tensor.nbytes
        taken.set()

    def exchange(self, to, sent, source, received):
        first, second = sorted((sent, received), key=torch.Tensor.data_ptr)
        assert first.data_ptr() + first.nbytes <= second.data_ptr(), "both in the same memory"
        taken = self._start(to, sent)
        self.receive(source, received)
        self._wait(taken, to)

    def _start(self, peer, tensor) -> threading.Event:
        taken = threading.Event()
        self.messages, self.sent = self.messages + 1, self.sent + tensor.nbytes
        self.queues[self.rank, peer].put((tensor, taken))
        return taken

    def _wait(self, taken: threading.Event, peer: int) -> None:
        if not taken.wait(self.limit):
            raise TimeoutError(f"rank {self.rank}: rank {peer} received nothing")
