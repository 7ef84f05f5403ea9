"""The twelve collectives, in reading order: one frozen record each, and one lesson of the same name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# The reductions of dist.ReduceOp, in the order of the grid.
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


@dataclass(frozen=True)
class Collective:
    """What is known of a collective without running it.

    `bus_factor` turns algorithm bandwidth (bytes of the whole array / time) into bus bandwidth, as nccl-tests' PERFORMANCE.md
    defines it, for n ranks; None where no data moves. `min_world_size` is the fewest ranks with which the lesson can show anything;
    `steps` holds the steps that need more than one rank. Names of steps are unique among all lessons.
    """

    name: str
    summary: str
    bus_factor: str | None
    min_world_size: int = 1
    steps: Mapping[str, int] = field(default_factory=dict)

    def bus_bandwidth_factor(self, world_size: int) -> float | None:
        return None if self.bus_factor is None else eval(self.bus_factor, {"n": world_size})


_RECORDS = (
    Collective(
        "send_recv",
        "One rank sends a tensor, another receives it; both wait until it is done.",
        "1",
        min_world_size=2,
        steps={"all_send_first": 2, "tags": 2, "receive_from_any": 2},
    ),
    Collective(
        "isend_irecv",
        "Send and receive without waiting; compute meanwhile, then wait.",
        "1",
        min_world_size=2,
        steps={"overlap_by_order": 2, "buffer_rules": 2, "ring_exchange": 2},
    ),
    Collective("broadcast", "Every rank's tensor becomes the root's.", "1"),
    Collective(
        "all_reduce",
        "Every rank gets the sum (or max, ...) of all ranks' tensors, in place.",
        "2 * (n - 1) / n",
    ),
    Collective("reduce", "One rank gets the sum (or max, ...) of all ranks' tensors.", "1"),
    Collective("all_gather", "Every rank gets every rank's tensor, in rank order.", "(n - 1) / n"),
    Collective("gather", "One rank gets every rank's tensor, in rank order.", "(n - 1) / n"),
    Collective("scatter", "One rank hands each rank its own piece.", "(n - 1) / n"),
    Collective(
        "reduce_scatter",
        "The sum of all ranks' tensors, cut in pieces: rank r gets piece r.",
        "(n - 1) / n",
    ),
    Collective(
        "all_to_all",
        "Every rank hands each rank its own piece: a transpose over ranks.",
        "(n - 1) / n",
    ),
    Collective(
        "barrier",
        "No rank leaves before every rank has come.",
        None,
        steps={
            "barrier_in_the_background": 2,
            "barrier_of_a_group": 2,
            "work_in_another_group": 2,
            "monitored_barrier": 2,
        },
    ),
    Collective(
        "new_group",
        "A group of some ranks, in which every collective works on its own.",
        None,
        min_world_size=2,
        steps={"halves_do_not_wait": 2, "global_and_group_ranks": 2, "grid": 4},
    ),
)

COLLECTIVES: dict[str, Collective] = {record.name: record for record in _RECORDS}


def fewest_ranks(step: str) -> int:
    """The fewest ranks with which a step of any lesson can show something."""
    if step in COLLECTIVES:
        return COLLECTIVES[step].min_world_size
    return max((record.steps.get(step, 1) for record in COLLECTIVES.values()), default=1)
