"""What can be wrong with a training script on several ranks: a function for each case. Pure.

Each looks at what the ranks had torch do, and knows nothing of the text of the script. It has the
name of its fault in examples/blog/faults.toml, where what to write instead stands.
"""

from collections import Counter
from itertools import chain, pairwise, takewhile
from typing import NamedTuple

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.own_script.seen import Pass, Seen, all_samples, side_by_side
from collectives.words import ranks

FINE, WRONG, UNSEEN = "fine", "wrong", "cannot be seen here"

# Calls by which no rank learns anything of another.
_NOTHING = {"init_process_group", "new_group", "new_subgroups", "barrier", "monitored_barrier"}

# So many samples come in the order of their numbers by no chance.
_NO_CHANCE = 8


class Finding(NamedTuple):
    """`says`: what happened, or why it cannot be seen. `at`: the line of the script."""

    state: str
    says: str = ""
    at: str = ""


def rank_0_validates_alone(seen: Seen) -> Finding:
    """One rank calls the DDP model where others do not: its forward broadcasts the buffers."""
    places = [{one["at"] for one in rank.all("validates") if one["buffers"]} for rank in seen.ranks]
    for at in sorted(set().union(*places)):
        alone = [rank for rank, place in enumerate(places) if at in place]
        if len(alone) < len(places):
            says = f"{ranks(alone)} alone calls the DDP model, whose forward broadcasts its buffers"
            says += ": the other ranks take them for what they call next"
            return Finding(WRONG, says, at)
    return Finding(FINE)


def collective_on_one_rank(seen: Seen) -> Finding:
    """A call that some ranks do not make. What the diagnosis knows is said in its words."""
    if not seen.verdict.kind.is_explained:
        return Finding(FINE)
    if rank_0_validates_alone(seen).state == WRONG:
        return Finding(UNSEEN, "the ranks come no further than where one validates alone")
    return Finding(WRONG, seen.short(seen.verdict.says), _guilty(seen, seen.verdict))


def _guilty(seen: Seen, verdict: Verdict) -> str:
    """The line to blame."""
    lines = [f"{call.file}:{call.line}" for call in verdict.guilty if call.line]
    return seen.short(lines[0]) if lines else ""


def no_set_epoch(seen: Seen) -> Finding:
    """A sampler that nobody tells the epoch has the order of the first one in every epoch."""
    loaders: dict[str, list[Pass]] = {}
    for epoch in seen.ranks[0].training:
        if epoch.samples("asked"):
            loaders.setdefault(epoch.begin["loader"], []).append(epoch)
    twice = [passes[:2] for passes in loaders.values() if len(passes) > 1]
    # One line may make the loaders of several data.
    twice = [passes for passes in twice if have_same_content(*passes) is not False]
    if not twice:
        return Finding(UNSEEN, "it had no two epochs of a DataLoader whose samples have numbers")
    for passes in twice:
        first, second = (epoch.samples("asked") for epoch in passes)
        same = min(len(first), len(second))
        has_one_order = first[:same] == second[:same] and same > 1
        if has_one_order and first == sorted(first):
            return Finding(FINE, "the data are not shuffled")
        if has_one_order:
            says = f"both epochs have one order, which begins with samples {first[:3]}"
            return Finding(WRONG, says, passes[0].begin["made"])
    return Finding(FINE)


def no_sampler(seen: Seen) -> Finding:
    """Every rank trains on all of the data."""
    if seen.may_share_a_model():
        return Finding(UNSEEN, "ranks that share one model may compute one batch")
    firsts = next(side_by_side(seen.ranks, "training"), None)
    if firsts is None:
        return _no_sampler_in_a_loop(seen)
    parts = [first.samples() for first in firsts]
    if not all(parts):
        return Finding(UNSEEN, "the samples have no numbers, as those of an IterableDataset")
    if any(len(set(part)) < len(part) for part in parts):
        return Finding(UNSEEN, "a rank draws samples with replacement")
    if any(batch["used"] and batch["size"] < len(batch["own"]) for batch in firsts[0].batches):
        return Finding(UNSEEN, "a rank takes a part of each batch by itself")
    common = set(parts[0]) & set(parts[1])
    if len(common) < len(parts[0]) / 2:
        return Finding(FINE)
    match have_same_content(*firsts[:2]):
        case None:
            return Finding(UNSEEN, "samples with equal numbers cannot be compared")
        case False:
            return Finding(FINE, "each rank has data of its own")
    says = f"ranks 0 and 1 train on the same {len(common)} of {len(parts[0])} samples in an epoch"
    return Finding(WRONG, says, firsts[0].begin["made"])


def _no_sampler_in_a_loop(seen: Seen) -> Finding:
    """Without a DataLoader: whether the model gets the same on all ranks."""
    forwards = [[forward for forward, _ in rank.computed()] for rank in seen.ranks]
    inputs = [[(one["content"], one["at"]) for one in rank if one["content"]] for rank in forwards]
    same = [one for one, *others in zip(*inputs, strict=False) if others == [one] * len(others)]
    if len(set(same)) < 2:
        return Finding(UNSEEN, "it trains with no DataLoader")
    return Finding(WRONG, "the model gets the same batches on all ranks", same[0][1])


def have_same_content(*passes: Pass) -> bool | None:
    """Whether samples with one number are the same, at least in a part that varies."""
    one, other = (dict(row for it in each.batches for row in it["rows"]) for each in passes)
    pairs = [zip(one[sample], other[sample], strict=True) for sample in one.keys() & other.keys()]
    parts = list(zip(*pairs, strict=True))
    if len(pairs) < 8 or not parts:
        return None
    return any(len(set(part)) > 1 and all(a == b for a, b in part) for part in parts)


def shuffle_beside_sampler(seen: Seen) -> Finding:
    """shuffle=True beside a sampler, which DataLoader refuses; or the wrong one shuffles."""
    if "mutually exclusive with shuffle" in seen.verdict.says:
        says = "DataLoader refuses shuffle=True beside a sampler"
        return Finding(WRONG, says, _guilty(seen, seen.verdict))
    for one in seen.ranks[0].validation:
        if one.begin["sampler_shuffles"]:
            says = "the sampler of the validation shuffles: which samples it pads with is chance"
            return Finding(WRONG, says, one.begin["made"])
    for alone, one in side_by_side([seen.alone, seen.ranks[0]], "training"):
        asked, asked_alone = one.samples("asked"), alone.samples("asked")
        is_long = len(asked) >= _NO_CHANCE
        if is_long and asked == sorted(asked) and asked_alone != sorted(asked_alone):
            return Finding(WRONG, "one process shuffles, and several do not", one.begin["made"])
    return Finding(FINE)


def data_parallel_left_over(seen: Seen) -> Finding:
    """nn.DataParallel in a rank would use the GPUs of the other ranks."""
    for note in seen.ranks[0].all("data_parallel"):
        says = "each rank takes all GPUs of its machine, and nobody averages the gradients"
        return Finding(WRONG, says, note["at"])
    return Finding(FINE)


def device_by_rank(seen: Seen) -> Finding:
    """GPUs are counted on each machine. Seen where each rank has a machine of its own."""
    if seen.verdict_again and "device ordinal" in seen.verdict_again.says:
        says = "a rank asks for a GPU that its machine, which has one for each rank, has not"
        return Finding(WRONG, says, _guilty(seen, seen.verdict_again))
    if any("cuda" in note["device"] for rank in seen.again for note in rank.all("ddp")):
        return Finding(FINE)
    return Finding(UNSEEN, "it was not started again on GPUs")


def every_rank_saves(seen: Seen) -> Finding:
    """All ranks write one file, each over the others; or the names in it are those of DDP."""
    saves = [rank.all("save") for rank in seen.ranks]
    writers = Counter(file for notes in saves for file in {note["file"] for note in notes})
    for note in chain(*saves):
        if writers[note["file"]] > 1:
            return Finding(WRONG, f"{writers[note['file']]} ranks write {note['file']}", note["at"])
        if note["wrapped"]:
            says = "the names in the file begin with module., which a model without DDP has not"
            return Finding(WRONG, says, note["at"])
    return Finding(FINE) if writers else Finding(UNSEEN, "torch.save wrote no file")


def each_decides_to_resume(seen: Seen) -> Finding:
    """Each rank looks for the file by itself: where one does not see it, they part."""
    if not seen.again:
        return Finding(UNSEEN, "nothing was saved, so it was not started again")
    if all(rank.all("save") for rank in seen.ranks):
        return Finding(UNSEEN, "every rank had saved a file of its own")
    loads = [[one for one in rank.all("load") if not one["is_readers"]] for rank in seen.again]
    if not any(loads):
        return Finding(UNSEEN, "the second start loaded nothing: does it need --again ARGS?")
    found = next(filter(None, loads))[0]
    for rank, own in zip(seen.again, loads, strict=True):
        before = takewhile(lambda note: note["kind"] != "backward", rank.notes)
        reduced = {note["name"] for note in before if note["kind"] == "result"} - _NOTHING
        if rank.all("backward") and not own and not reduced:
            says = f"a rank loads {found['file']}, and another, which sees none, begins anew"
            return Finding(WRONG, says, found["at"])
    return Finding(FINE)


def same_dropout_everywhere(seen: Seen) -> Finding:
    """One seed on every rank: all drop the same units, so that n samples share a mask."""
    if seen.may_share_a_model():
        return Finding(UNSEEN, "ranks that share one model may draw the same random numbers")
    if not all(rank.computed() for rank in seen.ranks):
        return Finding(UNSEEN, "no forward is seen, as under torch.compile")
    draws = [rank.draws() for rank in seen.ranks]
    if not all(draws):
        return Finding(FINE, "forward draws no random numbers")
    same = sum(len(set(one)) == 1 for one in zip(*draws, strict=False))
    if same < 2:
        return Finding(FINE)
    at = next((note["at"] for note in reversed(seen.ranks[0].all("seed")) if note["at"]), "")
    if at.startswith("/"):
        return Finding(UNSEEN, f"a library, in {at}, seeds all ranks alike")
    return Finding(WRONG, f"{same} times, forward drew the same random numbers on all ranks", at)


def padded_metric(seen: Seen) -> Finding:
    """The sampler gives every rank equally many samples: some of them twice."""
    if not all(rank.validation for rank in seen.ranks):
        return Finding(UNSEEN, "not every rank validates with a DataLoader")
    for passes in side_by_side(seen.ranks, "validation"):
        total, length = all_samples(passes).total(), len(all_samples(passes))
        if not length < total < 1.5 * length:  # or all ranks have all samples
            continue
        results = [note for one in passes for note in one.results]
        if any(note["size"] >= total for note in results):
            return Finding(UNSEEN, "what was computed of each sample is gathered, and may be cut")
        if {note["name"] for note in results} - _NOTHING:
            says = f"{total} samples are counted, of {length}: {total - length} twice"
            return Finding(WRONG, says, passes[0].begin["made"])
    return Finding(FINE)


def left_over_micro_batch(seen: Seen) -> Finding:
    """The last micro-batches of an epoch have no step: they are lost, or leak into the next one."""
    training = [epoch for epoch in seen.ranks[0].training if epoch.steps]
    if len(training) < 2:
        return Finding(UNSEEN, "it had no two epochs of a DataLoader")
    for before, epoch in pairwise(training):
        first = epoch.steps[0]
        steps = [step for step in before.steps if step["of"] == first["of"]]
        if not steps or not (left_over := before.backwards - steps[-1]["after"]):
            continue
        held = [step["held"] for step in steps]
        if first["held"] > max(held):
            says = f"the first step of an epoch adds up {first['held']} micro-batches"
            return Finding(WRONG, f"{says}, and others {max(held)}", first["at"])
        # With two optimizers, each may drop what the other's loss gives it, after every step.
        is_only_loss = sum(held) == steps[-1]["after"] and len(held) > 1
        if is_only_loss and first["held"] == first["after"]:
            says = f"the last {left_over} of an epoch are computed for no step"
            return Finding(WRONG, says, first["at"])
    return Finding(FINE)
