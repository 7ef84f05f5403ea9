"""The collectives that torch's Flight Recorder noted, those from C++ too, as calls. Pure."""

from collections import Counter
from collections.abc import Iterator

from collectives.diagnosis.rules.matching import Matching
from collectives.recording.call import WORLD, Call, TensorKind, group_label, sequence_key


def match_records(
    answers: dict[int, dict], members: dict[str, tuple[int, ...]], world_size: int
) -> Matching:
    """`answers`: by rank, its last answer (see recording/rank_log.py). `members`: by group.

    A rank tells only its newest collectives. Of a group to which none of these belong it has told
    how many there were, or nothing is known.
    """
    answers = {rank: answer for rank, answer in answers.items() if answer}
    # A process may join one world after another. Its answer is about the last one.
    worlds: Counter[int] = Counter(answer["world"] for answer in answers.values())
    world = max(worlds, key=worlds.__getitem__, default=0)
    reported = {rank: answer for rank, answer in answers.items() if answer["world"] == world}
    members = {WORLD: tuple(range(world_size))} | {
        group: ranks for group, ranks in members.items() if ranks
    }
    answered = {
        group: tuple(rank for rank in ranks if rank in reported) for group, ranks in members.items()
    }
    matching = Matching(
        call
        for rank in reported
        for call in _calls(rank, reported[rank]["collectives"], answered, world)
    )
    for rank, answer in reported.items():
        for (name, description), count in answer["counts"]:
            sequence = matching.sequences[sequence_key(_label(name, description, world), "")]
            sequence.counts[rank] = count
            sequence.newest.setdefault(rank, 0)
        if answer["lost"]:
            matching.since[rank] = 0
    return matching


def _label(name: str, description: str, world: int) -> str:
    return WORLD if description == "default_pg" else group_label(name, world)


def _calls(rank: int, entries: list, members: dict, world: int) -> Iterator[Call]:
    for number, entry in enumerate(entries):
        (name, description), seq, profiling_name, sizes, dtypes, retired, where, does = entry
        group = _label(name, description, world)
        shapes = zip(sizes, dtypes, strict=False)
        file, line, function = where
        yield Call(
            rank=rank,
            number=number,
            name=profiling_name.partition(":")[2].lstrip("_"),  # "gloo:all_reduce"
            group=group,
            members=members.get(group, ()),
            seq=seq - 1,
            torch_seq=seq,
            tensors=tuple(TensorKind(dtype, tuple(size)) for size, dtype in shapes),
            left=1 if retired else None,
            file=file,
            line=line,
            function=function,
            torch_does=does,
        )
