"""Refuse tensors that MPI would misread."""

import torch


def check_layout(what: str, tensors: tuple[torch.Tensor, ...]) -> None:
    """Raises ValueError unless all tensors are dense, contiguous and on the CPU."""
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ValueError(
                f"{what}: mpi takes dense tensors on the CPU, this one is {tensor.layout} "
                f"on {tensor.device}."
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"{what}: mpi takes contiguous tensors, this one has strides {tensor.stride()}: "
                "use contiguous()."
            )


def check_own_piece(what: str, place: torch.Tensor, piece: torch.Tensor) -> None:
    """Raises ValueError unless this rank's own piece fits its place in the other buffer."""
    if place.numel() != piece.numel() or place.dtype != piece.dtype:
        raise ValueError(
            f"{what}: this rank's own piece is {_kind(piece)}, its place is {_kind(place)}: "
            "they must be alike. [mpi]"
        )


def check_pieces(what: str, whole: torch.Tensor, count: int, piece: torch.Tensor) -> None:
    """Raises ValueError unless `whole` has the size of `count` pieces."""
    if whole.numel() != count * piece.numel() or whole.dtype != piece.dtype:
        raise ValueError(f"{what}: {_kind(whole)} is not {count} times {_kind(piece)}. [mpi]")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
