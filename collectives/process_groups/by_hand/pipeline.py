"""The collectives in shared memory, as a pipeline of chunks.

Each chunk goes through stages: all ranks write it, then each reduces a part of it, then all read
it. In one step, chunk 7 is written while chunk 6 is reduced and chunk 5 is read, each in a bank of
its own, and the step ends with one barrier. Three banks are enough: when a bank is written again,
a barrier lies after the step in which it was last read.

Every element is reduced in the order of the ranks, by one rank or by all in the same way: so the
result has the same bits on all ranks and in every run.
"""

from collections.abc import Callable, Sequence

import torch

from collectives.algorithms.reductions import Reduction
from collectives.algorithms.tensors import flat
from collectives.process_groups.by_hand.memory import BANKS, SLOT, SharedMemory, copy_bytes

Tensors = Sequence[torch.Tensor]

# Up to so many bytes every rank reduces everything itself, which saves a barrier.
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
            shared.barrier()
        if step == 0:
            shared.compare_labels(first % BANKS)


def _write(shared: SharedMemory, bank: int, tensor: torch.Tensor, start: int, stop: int) -> None:
    """Copy these elements into this rank's slot."""
    width = tensor.element_size()
    source = tensor.data_ptr() + start * width
    copy_bytes(shared.address(bank, shared.links.rank), source, (stop - start) * width)


def _read(
    shared: SharedMemory, bank: int, rank: int, tensor: torch.Tensor, start: int, stop: int
) -> None:
    """Copy these elements from the slot of a rank."""
    width = tensor.element_size()
    to = tensor.data_ptr() + start * width
    copy_bytes(to, shared.address(bank, rank), (stop - start) * width)


def _multiply(
    shared: SharedMemory, bank: int, tensor: torch.Tensor, count: int, reduction: Reduction
) -> None:
    """For PREMUL_SUM: the first elements of this rank's slot, times its factor."""
    if reduction.factor is not None and count:
        reduction.before(shared.slots(tensor.dtype, bank, 0, count)[shared.links.rank])


def all_reduce(shared: SharedMemory, tensor: torch.Tensor, reduction: Reduction) -> None:
    _reduce_whole(shared, flat(tensor), reduction, reads=True)


def reduce(shared: SharedMemory, tensor: torch.Tensor, root: int, reduction: Reduction) -> None:
    """Only the root's tensor changes."""
    _reduce_whole(shared, flat(tensor), reduction, reads=shared.links.rank == root)


def _reduce_whole(
    shared: SharedMemory, tensor: torch.Tensor, reduction: Reduction, reads: bool
) -> None:
    rank, size = shared.links.rank, shared.links.size
    length = SLOT // tensor.element_size()
    numel = tensor.numel()
    if tensor.nbytes <= _SMALL:
        _reduce_small(shared, tensor, reduction, reads)
        return

    def span(chunk: int) -> tuple[int, int]:
        return chunk * length, min((chunk + 1) * length, numel)

    def write(chunk: int, bank: int) -> None:
        start, stop = span(chunk)
        _write(shared, bank, tensor, start, stop)
        _multiply(shared, bank, tensor, stop - start, reduction)

    def reduce_part(chunk: int, bank: int) -> None:
        start, stop = span(chunk)
        part = -(-(stop - start) // size)
        low, high = rank * part, min((rank + 1) * part, stop - start)
        if low < high:
            out = shared.slots(tensor.dtype, bank, low, high)[0]
            _reduce(shared, bank, low, high, reduction, out)

    def read(chunk: int, bank: int) -> None:
        if reads:
            _read(shared, bank, 0, tensor, *span(chunk))

    _run(shared, -(-numel // length), write, reduce_part, read)


def _reduce_small(
    shared: SharedMemory, tensor: torch.Tensor, reduction: Reduction, reads: bool
) -> None:
    """One chunk, which every rank reduces itself: written out, because small calls are many."""
    bank, numel = shared.chunk % BANKS, tensor.numel()
    shared.chunk += 1
    shared.label(bank)
    _write(shared, bank, tensor, 0, numel)
    _multiply(shared, bank, tensor, numel, reduction)
    shared.barrier()
    shared.compare_labels(bank)
    if reads and numel:
        _reduce(shared, bank, 0, numel, reduction, tensor)


def _reduce(
    shared: SharedMemory, bank: int, start: int, stop: int, reduction: Reduction, out: torch.Tensor
) -> None:
    """Reduce the elements from `start` to `stop` of all slots into `out`, in blocks."""
    combine = reduction.combine
    for low in range(start, stop, _BLOCK):
        high = min(low + _BLOCK, stop)
        result = out if high - low == stop - start else out[low - start : high - start]
        first, second, *others = shared.slots(out.dtype, bank, low, high)
        combine(first, second, out=result)
        for slot in others:
            combine(result, slot, out=result)
        if reduction.average:
            reduction.after(result, shared.links.size)


def reduce_scatter(
    shared: SharedMemory, output: torch.Tensor, inputs: Tensors, reduction: Reduction
) -> None:
    """`inputs[r]` goes to rank r, which gets the sum of these. Their lengths may differ."""
    output, inputs = flat(output), [flat(piece) for piece in inputs]
    rank, size = shared.links.rank, shared.links.size
    length = SLOT // output.element_size() // size  # of each piece in a slot
    width = output.element_size()

    def write(chunk: int, bank: int) -> None:
        to = shared.address(bank, rank)
        for piece in inputs:
            count = min(length, piece.numel() - chunk * length)
            if count > 0:
                copy_bytes(to, piece.data_ptr() + chunk * length * width, count * width)
            to += length * width
        _multiply(shared, bank, output, length * size, reduction)

    def reduce_own(chunk: int, bank: int) -> None:
        start = chunk * length
        count = min(length, output.numel() - start)
        if count > 0:
            out = output[start : start + count]
            _reduce(shared, bank, rank * length, rank * length + count, reduction, out)

    _run(shared, _chunks(inputs, length), write, reduce_own)


def all_gather(shared: SharedMemory, outputs: Tensors, own: torch.Tensor) -> None:
    """`outputs[r]` gets the tensor of rank r. Their lengths may differ."""
    outputs, own = [flat(piece) for piece in outputs], flat(own)
    rank = shared.links.rank
    length = SLOT // own.element_size()

    def span(chunk: int, tensor: torch.Tensor) -> tuple[int, int]:
        return chunk * length, min((chunk + 1) * length, tensor.numel())

    def write(chunk: int, bank: int) -> None:
        start, stop = span(chunk, own)
        if start < stop:
            _write(shared, bank, own, start, stop)

    def read(chunk: int, bank: int) -> None:
        for source, output in enumerate(outputs):
            start, stop = span(chunk, output)
            if start < stop and source != rank:
                _read(shared, bank, source, output, start, stop)

    outputs[rank].copy_(own)
    _run(shared, _chunks(outputs, length), write, read)


def broadcast(shared: SharedMemory, tensor: torch.Tensor, root: int) -> None:
    """Every rank gets the root's tensor."""
    tensor = flat(tensor)
    length = SLOT // tensor.element_size()
    is_root = shared.links.rank == root

    def write(chunk: int, bank: int) -> None:
        if is_root:
            start = chunk * length
            _write(shared, bank, tensor, start, min(start + length, tensor.numel()))

    def read(chunk: int, bank: int) -> None:
        if not is_root:
            start = chunk * length
            _read(shared, bank, root, tensor, start, min(start + length, tensor.numel()))

    _run(shared, _chunks([tensor], length), write, read)


def barrier(shared: SharedMemory) -> None:
    _run(shared, 1, lambda chunk, bank: None, lambda chunk, bank: None)


def _chunks(tensors: Tensors, length: int) -> int:
    """At least one, so that the ranks compare their calls even if there is nothing to move."""
    return max(1, *(-(-tensor.numel() // length) for tensor in tensors))
