"""One cell of the matrix: a form of a call, with its backend, dtype, reduction and world size."""

from dataclasses import dataclass

from collectives.words import counted


@dataclass(frozen=True)
class Cell:
    """What is tried. Two cells are the same if all of these fields are."""

    collective: str
    form: str
    backend: str
    device: str
    dtype: str | None
    op: str | None
    world_size: int

    def __str__(self) -> str:
        """As in "all_reduce(SUM, int64) on gloo/cpu, 2 ranks"."""
        kind = ", ".join(word for word in (self.op, self.dtype) if word is not None)
        form = f"{self.form}({kind})" if kind else self.form
        return f"{form} on {self.place}, {counted(self.world_size, 'rank')}"

    @property
    def place(self) -> str:
        """The backend and the device, as in "gloo/cpu"."""
        return f"{self.backend}/{self.device}"

    @property
    def column(self) -> tuple[str, str, int]:
        """The backend, the device and the world size: these cells share a table."""
        return self.backend, self.device, self.world_size

    @property
    def name(self) -> str:
        """The form without the variant."""
        return self.form.partition(":")[0]

    @property
    def variant(self) -> str:
        """As in "async"; "root" for any root but rank 0; empty for the plain form."""
        variant = self.form.partition(":")[2]
        return "root" if variant.startswith("root") else variant

    @property
    def root(self) -> int:
        """The global rank of the root.

        In a subgroup of three or more it is the second member: its global rank is 2, its rank in
        the group 1.
        """
        if self.variant == "root":
            return int(self.form.partition(":root")[2])
        has_choice = self.variant == "subgroup" and len(self.ranks) > 2
        return self.ranks[1 if has_choice else 0]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks that take part.

        A subgroup has all ranks but the first. In a world of one or two it has all ranks.
        """
        leaves_one_out = self.variant == "subgroup" and self.world_size > 2
        return tuple(range(1 if leaves_one_out else 0, self.world_size))


@dataclass(frozen=True)
class DetailedCell(Cell):
    """A cell that also says how long, which data and which members; the matrix has none of these.

    `elements`, `data` and `salt` are those of a Case. `members` are global ranks; empty: as in any
    cell. `chosen_root` is a global rank; -1: as in any cell.
    """

    elements: int | None = None
    data: str = "exact"
    salt: int = 0
    members: tuple[int, ...] = ()
    chosen_root: int = -1

    @property
    def root(self) -> int:
        if self.chosen_root >= 0:
            return self.chosen_root
        return self.members[0] if self.members else super().root

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.members or super().ranks
