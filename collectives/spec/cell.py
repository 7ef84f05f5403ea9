"""One cell of the matrix: which form of which call is tried, on which backend, with which dtype, reduction and world size."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What is tried: these fields are the key of its answer."""

    collective: str
    form: str
    backend: str
    device: str
    dtype: str | None
    op: str | None
    world_size: int

    @property
    def name(self) -> str:
        """The form without its variant."""
        return self.form.partition(":")[0]

    @property
    def variant(self) -> str:
        """As in "async"; "root" for every root (see `root`); empty for the plain form."""
        variant = self.form.partition(":")[2]
        return "root" if variant.startswith("root") else variant

    @property
    def root(self) -> int:
        """The global rank of the root. In a subgroup it is the second member, whose rank in the group is another number."""
        if self.variant == "root":
            return int(self.form.partition(":root")[2])
        return (
            self.ranks[1] if self.variant == "subgroup" and len(self.ranks) > 2 else self.ranks[0]
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part. A subgroup is all but the first, where that leaves two: else a second group of all."""
        everyone = tuple(range(self.world_size))
        return everyone[1:] if self.variant == "subgroup" and self.world_size > 2 else everyone
