"""The collectives in shared memory, as a pipeline of chunks.

Each chunk goes through stages: all ranks write it, then each reduces a part of it, then all read
it. In one step, chunk 7 is written while chunk 6 is reduced and chunk 5 is read, each in a bank of
its own, and at the end of the step the ranks meet once. Three banks are enough: when a bank is
written again, a meeting lies after the step in which it was last read.

Every element is reduced in the order of the ranks, by one rank or by all in the same way: so the
result has the same bits on all ranks and in every run.
"""

from collections.abc import Callable

import torch

from collectives.backends.algorithms.reductions import Reduction
from collectives.backends.by_hand.memory import BANKS, SLOT, SharedMemory, copy_bytes

# Up to so many bytes every rank reduces everything itself, which saves a meeting.
_SMALL = 2**16

# torch divides larger operations among threads, and the ranks need the cores themselves.
_BLOCK = 2**15  # elements


def _run(shared: SharedMemory, chunks: int, *stages: Callable[[int, int], None]) -> None:
    """Take every chunk through the stages. A stage is called with a chunk and its bank."""
    first = shared.chunk
    shared.chunk += chunks
    last_step = chunks + len(stages) - 2
    shared.label(first % BANKS)
    for step in range(last_step + 1):
        for delay, stage in enumerate(stages):
            chunk = step - delay
            if 0 <= chunk < chunks:
                stage(chunk, (first + chunk) % BANKS)
        if step < last_step:
            shared.meet()
        if step == 0:
            shared.compare_labels(first % BANKS)


def _write(shared: SharedMemory, bank: int, tensor: torch.Tensor, start: int, stop: int) -> None:
    """Copy these elements into this rank's slot."""
    width = tensor.element_size()
    to = shared.address + shared.offset(bank, shared.links.rank)
    copy_bytes(to, tensor.data_ptr() + start * width, (stop - start) * width)


def _read(
    shared: SharedMemory, bank: int, rank: int, tensor: torch.Tensor, start: int, stop: int
) -> None:
    """Copy these elements from the slot of a rank."""
    width = tensor.element_size()
    source = shared.address + shared.offset(bank, rank)
    copy_bytes(tensor.data_ptr() + start * width, source, (stop - start) * width)


def all_reduce(
    shared: SharedMemory, tensor: torch.Tensor, how: Reduction, root: int | None = None
) -> None:
    """`tensor` has one dimension. With a root, only that rank gets the result."""
    rank, size = shared.links.rank, shared.links.size
    length = SLOT // tensor.element_size()
    reads = root in (None, rank)

    def span(chunk):
        return chunk * length, min((chunk + 1) * length, tensor.numel())

    def write(chunk, bank):
        start, stop = span(chunk)
        _write(shared, bank, tensor, start, stop)
        how.before(shared.slot(tensor.dtype, bank, rank, 0, stop - start))

    def reduce_all(chunk, bank):
        if reads:
            _reduce(shared, bank, 0, tensor.numel(), how, tensor)

    def reduce_part(chunk, bank):
        start, stop = span(chunk)
        part = -(-(stop - start) // size)
        low, high = rank * part, min((rank + 1) * part, stop - start)
        if low < high:
            out = shared.slot(tensor.dtype, bank, 0, low, high)
            _reduce(shared, bank, low, high, how, out)

    def read(chunk, bank):
        if reads:
            _read(shared, bank, 0, tensor, *span(chunk))

    if tensor.nbytes <= _SMALL:
        _run(shared, 1, write, reduce_all)
    else:
        _run(shared, -(-tensor.numel() // length), write, reduce_part, read)


def _reduce(
    shared: SharedMemory, bank: int, start: int, stop: int, how: Reduction, out: torch.Tensor
) -> None:
    """Reduce the elements from `start` to `stop` of all slots into `out`, in blocks."""
    size = shared.links.size
    for low in range(start, stop, _BLOCK):
        high = min(low + _BLOCK, stop)
        result = out if high - low == stop - start else out[low - start : high - start]
        parts = [shared.slot(out.dtype, bank, rank, low, high) for rank in range(size)]
        how.combine(parts[0], parts[1], out=result)
        for part in parts[2:]:
            how.combine(result, part, out=result)
        how.after(result, size)


def reduce_scatter(
    shared: SharedMemory, output: torch.Tensor, inputs: list[torch.Tensor], how: Reduction
) -> None:
    """`inputs[r]` goes to rank r, which gets the sum of these. Their lengths may differ."""
    rank, size = shared.links.rank, shared.links.size
    length = SLOT // output.element_size() // size  # of each piece in a slot
    width = output.element_size()

    def write(chunk, bank):
        to = shared.address + shared.offset(bank, rank)
        for piece in inputs:
            count = min(length, piece.numel() - chunk * length)
            if count > 0:
                copy_bytes(to, piece.data_ptr() + chunk * length * width, count * width)
            to += length * width
        how.before(shared.slot(output.dtype, bank, rank, 0, length * size))

    def reduce_own(chunk, bank):
        start = chunk * length
        count = min(length, output.numel() - start)
        if count > 0:
            out = output[start : start + count]
            _reduce(shared, bank, rank * length, rank * length + count, how, out)

    _run(shared, _chunks(inputs, length), write, reduce_own)


def all_gather(shared: SharedMemory, outputs: list[torch.Tensor], own: torch.Tensor) -> None:
    """`outputs[r]` gets the tensor of rank r. Their lengths may differ."""
    rank = shared.links.rank
    length = SLOT // own.element_size()

    def span(chunk, tensor):
        return chunk * length, min((chunk + 1) * length, tensor.numel())

    def write(chunk, bank):
        start, stop = span(chunk, own)
        if start < stop:
            _write(shared, bank, own, start, stop)

    def read(chunk, bank):
        for source, output in enumerate(outputs):
            start, stop = span(chunk, output)
            if start < stop and source != rank:
                _read(shared, bank, source, output, start, stop)

    outputs[rank].copy_(own)
    _run(shared, _chunks(outputs, length), write, read)


def broadcast(shared: SharedMemory, tensor: torch.Tensor, root: int) -> None:
    """Every rank gets the root's tensor, which has one dimension."""
    length = SLOT // tensor.element_size()
    is_root = shared.links.rank == root

    def write(chunk, bank):
        if is_root:
            start = chunk * length
            _write(shared, bank, tensor, start, min(start + length, tensor.numel()))

    def read(chunk, bank):
        if not is_root:
            start = chunk * length
            _read(shared, bank, root, tensor, start, min(start + length, tensor.numel()))

    _run(shared, _chunks([tensor], length), write, read)


def barrier(shared: SharedMemory) -> None:
    _run(shared, 1, lambda chunk, bank: None, lambda chunk, bank: None)


def _chunks(tensors: list[torch.Tensor], length: int) -> int:
    """At least one, so that the ranks compare their calls even if there is nothing to move."""
    return max(1, *(-(-tensor.numel() // length) for tensor in tensors))
