"""The single values in a rank's buffer: a tensor, a list of tensors, or plain Python objects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MOST_LETTERS = 9  # characters of a value in a cell


@dataclass(frozen=True)
class Element:
    """One value.

    `dtype` is torch's, or None for a plain Python value. `piece` is the index of its tensor in the
    rank's list, or of its piece in a flat tensor that is cut. `line`: the row of a matrix.
    """

    value: object
    dtype: Any = None
    piece: int = 0
    line: int = 0

    @property
    def traceable(self) -> bool:
        """Whether values of this kind can be compared: numbers and text."""
        return is_number(self.value) or isinstance(self.value, str)

    @cached_property
    def key(self):
        """Equal for equal values, also for two NaNs. Unique for a value that is not traceable."""
        if not self.traceable:
            return (id(self),)
        return ("nan",) if self.value != self.value else self.value

    @property
    def text(self) -> str:
        """The value in at most MOST_LETTERS characters."""
        value = self.value
        if isinstance(value, float):
            return f"{value:.4g}"
        if isinstance(value, complex):
            return f"{value.real:.3g}{value.imag:+.3g}j"
        text = repr(value) if self.traceable else f"<{type(value).__name__}>"
        if len(text) <= MOST_LETTERS:
            return text
        return f"{value:.3e}" if isinstance(value, int) else text[: MOST_LETTERS - 3] + "..."


def is_number(value) -> bool:
    return isinstance(value, int | float | complex)


def elements(entry, lengths: Sequence[int] = ()) -> list[Element] | None:
    """All elements of one rank's buffer, flat; None if it has none.

    `lengths`: of the pieces that a flat tensor is cut into.
    """
    if _is_tensor(entry) and entry.dim() == 1 and len(lengths) > 1:
        entry = entry.split(list(lengths))
    return None if entry is None else list(_each(entry))


def length(entry) -> int:
    """The number of elements."""
    return sum(part.numel() if _is_tensor(part) else 1 for part in _parts(entry))


def _parts(entry) -> list:
    if entry is None:
        return []
    return list(entry) if isinstance(entry, list | tuple) else [entry]


def _is_tensor(part) -> bool:
    # Without importing torch, which is slow.
    return hasattr(part, "numel") and hasattr(part, "dtype")


def _each(entry) -> Iterator[Element]:
    for piece, part in enumerate(_parts(entry)):
        if not _is_tensor(part):
            yield Element(part, None, piece)
            continue
        flat = part.detach().reshape(-1)
        # tolist does not know some of the small float types.
        exact = flat.double() if part.dtype.is_floating_point else flat
        width = part.shape[-1] if part.dim() > 1 else max(1, part.numel())
        for place, value in enumerate(exact.tolist()):
            yield Element(value, part.dtype, piece, place // width)
