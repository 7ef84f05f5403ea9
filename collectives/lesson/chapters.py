"""The chapters: which lessons there are, and in which order to read them.

To add a chapter, add one record here and put its lessons into its folder. `collectives list` and
`run`, the notebooks and the tests read this registry. It imports no torch: `collectives list` is
quick.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Lesson:
    """One file of a chapter. `name` is the file's name without .py."""

    name: str
    summary: str


@dataclass(frozen=True)
class Chapter:
    """A chapter: its lessons in reading order, and the shape that all of them have.

    `folder` is below lessons/; empty for lessons/ itself. `sections` are the headings (`## Name`)
    of every lesson, in this order; empty where each lesson has headings of its own. `paragraphs`
    begin with **Name.** and follow, in this order, below every heading of a lesson.

    The steps of an `isolated` chapter start worlds of their own and choose their world size:
    `run --all` and the tests of every backend leave it out. So do they with a chapter that needs
    an `extra` of pyproject.toml.
    """

    name: str
    title: str
    folder: str
    lessons: tuple[Lesson, ...]
    sections: tuple[str, ...] = ()
    paragraphs: tuple[str, ...] = ()
    isolated: bool = False
    extra: str = ""

    @property
    def names(self) -> list[str]:
        """The names for `collectives run`, in reading order: all_reduce, mistakes/order."""
        return [str(PurePosixPath(self.folder, lesson.name)) for lesson in self.lessons]


_RECORDS = (
    Chapter(
        "start",
        "From one program to n processes that know each other",
        folder="",
        lessons=(Lesson("start", "One program becomes n processes, and they find each other."),),
        sections=(
            "One program, n processes",
            "A complete program",
            "In the other lessons",
            "What a rank must know",
            "Where to meet",
            "Four ways to start",
            "Backend and device",
            "Pitfalls",
            "Write it yourself",
            "Read on",
        ),
    ),
    Chapter(
        "collectives",
        "One lesson for each collective of torch.distributed",
        folder="",
        lessons=(
            Lesson(
                "all_reduce",
                "Every rank gets the sum (or max, ...) of all ranks' tensors, in place.",
            ),
            Lesson("broadcast", "Every rank's tensor becomes the root's."),
            Lesson("all_gather", "Every rank gets every rank's tensor, in rank order."),
            Lesson(
                "reduce_scatter",
                "The sum of all ranks' tensors, cut in pieces: rank r gets piece r.",
            ),
            Lesson("reduce", "One rank gets the sum (or max, ...) of all ranks' tensors."),
            Lesson("gather", "One rank gets every rank's tensor, in rank order."),
            Lesson("scatter", "One rank hands each rank its own piece."),
            Lesson(
                "all_to_all",
                "Every rank hands each rank its own piece: a transpose over ranks.",
            ),
            Lesson(
                "send_recv",
                "One rank sends a tensor, another receives it; both wait until it is done.",
            ),
            Lesson(
                "isend_irecv",
                "Send and receive without waiting; compute meanwhile, then wait.",
            ),
            Lesson(
                "new_group",
                "A group of some ranks, in which every collective works on its own.",
            ),
            Lesson("barrier", "No rank leaves before every rank has come."),
        ),
        sections=(
            "The call",
            "The cost",
            "Pitfalls",
            "Where it is used",
            "Change and try",
            "Write it yourself",
            "Read on",
        ),
    ),
    Chapter(
        "mistakes",
        "Programs with one bug each: what you see, the cause, and the cure",
        folder="mistakes",
        lessons=(
            Lesson("messages", "Ranks wait for each other's messages for ever."),
            Lesson("order", "One rank makes other calls than the rest, or in another order."),
            Lesson("arguments", "One rank passes another length, dtype, root or reduction."),
            Lesson("buffers", "A buffer is read too early, has holes, or has the wrong size."),
            Lesson("groups", "Ranks disagree about which groups there are, or who is who in one."),
            Lesson("processes", "A rank fails, leaves or is slow while the others wait for it."),
            Lesson("data", "The calls are right, but what the ranks put in or print is not."),
            Lesson("training", "The loop around the collectives: validation, DDP, checkpoints."),
            Lesson("start_up", "The ranks do not find each other."),
        ),
        paragraphs=("Symptom", "Cause", "Cure", "Early"),
        isolated=True,
    ),
    Chapter(
        "training",
        "Train a model on several ranks, and prove that it is the model of one process",
        folder="training",
        lessons=(
            Lesson("one_process", "The training that all others must equal."),
            Lesson(
                "data_parallel", "Every rank takes a share of the batch; gradients are averaged."
            ),
            Lesson("different_bits", "How far rounding goes, and how all bits become equal."),
            Lesson("buckets", "Gradients are reduced in buckets while `backward()` goes on."),
            Lesson("ddp", "DistributedDataParallel does the same, and reduces in buckets."),
            Lesson("sampler", "DistributedSampler tells each rank which samples to load."),
            Lesson("accumulation", "Several micro-batches on each rank, and one reduction."),
            Lesson("buffers", "The statistics of batch norm, of one rank and of all ranks."),
            Lesson(
                "unused_parameters", "A parameter without a gradient stops DDP, unless it looks."
            ),
            Lesson("seeds", "Equal random numbers for the start, different ones for dropout."),
            Lesson("validation", "Exact metrics on shards that are not equally large."),
            Lesson("checkpoint", "A training stops, and continues bit for bit from a file."),
            Lesson("failover", "Ranks are killed, and torchrun starts them again."),
            Lesson(
                "with_accelerate", "Hugging Face Accelerate wraps DDP, the sampler and the loader."
            ),
            Lesson("threads", "Threads of one process share the batch, as in nn.DataParallel."),
            Lesson("to_the_gpu", "Five changes, and what bfloat16 costs."),
        ),
        sections=(
            "The idea",
            "The code",
            "The proof",
            "Make it wrong",
            "Pitfalls",
            "Write it yourself",
            "Read on",
        ),
        extra="training",
    ),
    Chapter(
        "algorithms",
        "What is inside a collective: rings, trees, and what they cost",
        folder="algorithms",
        lessons=(
            Lesson("ring", "An all_reduce in which every rank talks to its neighbours alone."),
            Lesson("doubling", "The same in few steps: partners at distances 1, 2, 4, ..."),
            Lesson("tree", "Broadcast and reduce along a tree, and along two trees at once."),
            Lesson("bruck", "all_gather, all_to_all and barrier for any number of ranks."),
            Lesson("hierarchical", "First inside each machine, or in its memory, then between."),
            Lesson("which_one_when", "Which algorithm is the fastest: where the times cross."),
            Lesson("same_bits", "The order of additions; DDP and FSDP2 on these algorithms."),
        ),
        sections=(
            "The idea",
            "The code",
            "The count",
            "What libraries do",
            "Change and try",
            "Write it yourself",
            "Read on",
        ),
        extra="training",  # the last lesson trains
    ),
    Chapter(
        "machines",
        "Several machines, made on yours: how ranks meet, and what goes wrong between them",
        folder="machines",
        lessons=(
            Lesson("rendezvous", "Ranks on several machines meet at a store."),
            Lesson(
                "interfaces", "The address that a rank tells the others, and the ports it opens."
            ),
            Lesson("cables", "Bytes on each cable, and why the order of the ranks matters."),
            Lesson(
                "elastic", "Ranks, agents and machines go and come, and the training continues."
            ),
            Lesson(
                "slurm", "A scheduler starts the ranks, and queues a job again that lost a machine."
            ),
            Lesson("mpi", "mpiexec starts the ranks on several machines."),
            Lesson("slow_machine", "One slow cable slows everybody; lost packets are sent again."),
        ),
        sections=("The idea", "In the lab", "On your cluster", "Pitfalls", "Read on"),
        isolated=True,
    ),
    Chapter(
        "myths",
        "Claims that you have read, tested",
        folder="",
        lessons=(Lesson("hearsay", "Sentences that tutorials repeat, and a run for each."),),
        paragraphs=("Claim", "Verdict"),
        isolated=True,
    ),
)

CHAPTERS: dict[str, Chapter] = {chapter.name: chapter for chapter in _RECORDS}


def find(name: str) -> Chapter:
    """The chapter of this name. ValueError, with the nearest name, if there is none."""
    if name not in CHAPTERS:
        raise ValueError(
            f"there is no chapter {name!r}: {nearest(name, CHAPTERS)}"
            f"The chapters are {', '.join(CHAPTERS)}."
        )
    return CHAPTERS[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'all_reduce'? ", or nothing if no known name is similar."""
    similar = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
    return f"did you mean {similar[0]!r}? " if similar else ""
