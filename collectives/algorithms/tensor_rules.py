"""The tensors that the algorithms and our process groups take: they move memory as it is."""

import torch


def check_layout(what: str, *tensors: torch.Tensor) -> None:
    """Raises ValueError unless each tensor lies in CPU memory, without gaps, value for value."""
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout != torch.strided:
            raise ValueError(
                f"{what} takes dense tensors on the CPU, this one is {tensor.layout} on "
                f"{tensor.device}."
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"{what} takes contiguous tensors, this one has strides {tensor.stride()}: "
                "use contiguous()."
            )
        if tensor.is_neg() or tensor.is_conj():
            bit = "neg" if tensor.is_neg() else "conj"
            raise ValueError(
                f"{what} takes tensors whose values lie in memory as they are, this one is negated "
                f"or conjugated when it is read: use resolve_{bit}()."
            )
        if tensor.numel() and not tensor.data_ptr():
            name = type(tensor).__name__
            raise ValueError(
                f"{what} takes tensors with memory of their own, this one is a {name}."
            )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row of elements, in the same memory."""
    if tensor.dim() == 1 and not tensor.requires_grad:
        return tensor
    return tensor.detach().view(-1)
