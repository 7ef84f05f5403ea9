"""Refuse what a backend of ours would misread: tensors, pieces and splits that do not fit."""

import torch


def check_rank(what: str, rank: int, size: int, backend: str) -> None:
    """Raises ValueError unless the group has such a rank."""
    if not 0 <= rank < size:
        raise ValueError(f"{what}: the group has ranks 0 to {size - 1}, not {rank}. [{backend}]")


def check_list(what: str, tensors: list[torch.Tensor], size: int, backend: str) -> None:
    """Raises ValueError unless there is a tensor for each rank."""
    if len(tensors) != size:
        raise ValueError(f"{what}: {len(tensors)} tensors in a list for {size} ranks. [{backend}]")


def check_own_piece(what: str, place: torch.Tensor, piece: torch.Tensor, backend: str) -> None:
    """Raises ValueError unless this rank's own piece fits its place in the other buffer."""
    if place.numel() != piece.numel() or place.dtype != piece.dtype:
        raise ValueError(
            f"{what}: this rank's own piece is {kind(piece)}, its place is {kind(place)}: "
            f"they must be alike. [{backend}]"
        )


def check_pieces(
    what: str, whole: torch.Tensor, count: int, piece: torch.Tensor, backend: str
) -> None:
    """Raises ValueError unless `whole` has the size of `count` pieces."""
    if whole.numel() != count * piece.numel() or whole.dtype != piece.dtype:
        raise ValueError(f"{what}: {kind(whole)} is not {count} times {kind(piece)}. [{backend}]")


def lengths_of_parts(
    what: str, tensor: torch.Tensor, splits: list[int], size: int, backend: str
) -> list[int]:
    """The number of elements for each rank: `splits` rows each, or equal parts of all rows.

    Raises ValueError if the rows cannot be divided so.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    splits = [int(count) for count in splits]
    if not splits and rows % size:
        raise ValueError(
            f"{what}: {rows} rows cannot be split evenly among {size} ranks: say how. [{backend}]"
        )
    splits = splits or [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(
            f"{what}: splits {splits} do not divide {rows} rows among {size} ranks. [{backend}]"
        )
    row = tensor.numel() // max(1, rows)
    return [count * row for count in splits]


def kind(tensor: torch.Tensor) -> str:
    """As in "float32[3, 4]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
