"""What was seen of a training script, as text and as plain values."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable
from itertools import chain

from collectives.course import chapters
from collectives.own_script import rules
from collectives.own_script.rules import WRONG, Finding
from collectives.own_script.seen import Seen, all_samples, side_by_side
from collectives.recording.ending import Ending
from collectives.words import counted, printable


def faults() -> dict[str, dict]:
    """The table of the page: by fault, what to write instead, and more."""
    file = chapters.folder().parent / "examples" / "blog" / "faults.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: fault for name, fault in table.items() if isinstance(fault, dict)}


def judge(seen: Seen) -> dict[str, Finding]:
    """By fault, what its rule says; nothing of ranks that know nothing of each other."""
    if not seen.communicates():
        return {}
    return {name: getattr(rules, name)(seen) for name in faults()}


def cannot_run(seen: Seen) -> str:
    """Why nothing can be said of the script; empty where something can."""
    notes = list(chain.from_iterable(rank.notes for rank in seen.ranks))
    for note in notes:
        if note["kind"] == "spawn" and note["ranks"] != len(seen.ranks):
            spawns = f"{note['at']} spawns {counted(note['ranks'], 'rank')}"
            return f"{spawns}, and -n asks for {len(seen.ranks)}: make the two equal"
        if note.get("outside"):
            return f"{note['at']} saves to {note['file']}: name a file below the current folder"
    if seen.verdict.kind not in (Ending.OK, Ending.SLOW, Ending.NOT_DISTRIBUTED):
        says = f"it fails: {seen.short(seen.verdict.says)}"
        if seen.verdict.kind.is_explained and not seen.communicates():
            says += "\nIf it starts the ranks itself, let torchrun or mp.spawn start them"
        return says
    if not seen.communicates():
        return "it calls nothing of torch.distributed: begin with init_process_group"
    if any(note["kind"] == "backward" for note in notes):
        return ""
    for note in notes:
        if note.get("is_readers"):
            return f"it takes no step after it has loaded {note['file']}: start it without that"
    return "it took no step: give it fewer samples, or more time by --timeout"


def samples(seen: Seen) -> list[dict]:
    """By pass over the data: how many samples each rank had, none had, or more than one.

    Missing are those that one process had. None: it had no such pass, or each rank has data of its
    own, whose samples have the numbers of others.
    """
    rows = []
    for which in ("training", "validation"):
        for number, passes in enumerate(side_by_side(seen.ranks, which)):
            if counts := all_samples(passes):
                is_known = rules.have_same_content(*passes[:2]) is not False
                twice = counts.total() - len(counts) if is_known else None
                alone = getattr(seen.alone, which)[number : number + 1] if is_known else []
                missing = len(set(all_samples(alone)) - set(counts)) if alone else None
                row = {"pass": f"{which} {number}", "ranks": [len(it.samples()) for it in passes]}
                rows.append(row | {"missing": missing, "twice": twice})
    return rows


def have_equal_weights(seen: Seen) -> bool | None:
    """Whether all ranks have, as a pass begins, unless it is the first; None if none are seen."""
    lists = [[one.begin["weights"] for one in rank.passes[1:]] for rank in seen.ranks]
    return _are_equal(row for row in zip(*lists, strict=False) if any(row))


def have_equal_buffers(seen: Seen) -> bool | None:
    """Whether all ranks validate one model: the statistics of a batch norm may differ."""
    passes = side_by_side(seen.ranks, "validation")
    rows = [[one.buffers for one in each] for each in passes]
    return _are_equal(row for row in rows if None not in row and any(row))


def _are_equal(rows: Iterable[Iterable]) -> bool | None:
    """Whether all ranks have the same in each row; None if there is none."""
    # As text, because NaN is not equal to itself.
    equal = [len(set(map(str, row))) == 1 for row in rows]
    return all(equal) if equal else None


def are_apart(seen: Seen) -> bool:
    """Whether ranks that should have one model train several."""
    return have_equal_weights(seen) is False and not seen.may_share_a_model()


def difference(seen: Seen) -> str:
    """How far the weights lie apart after the first steps, on one rank and on several."""
    if seen.alone.draws():
        return "not compared, because forward draws random numbers"
    firsts = next(side_by_side([seen.alone, *seen.ranks], "training"), None)
    if firsts is None:
        return "not compared, because not all have loaded samples and trained with them"
    begins = [first.begin["weights"] for first in firsts[:2]]
    apart: list[float] = []
    count = 0
    for alone, *steps in zip(*(first.steps for first in firsts), strict=False):
        samples = sum((step["samples"] for step in steps), Counter[int]())
        if not samples or alone["samples"] != samples:
            break
        if not alone["weights"] or len(alone["weights"]) != len(steps[0]["weights"]):
            return "not compared, because not all weights can be seen, or a rank has others"
        pairs = zip(alone["weights"], steps[0]["weights"], strict=True)
        apart += [abs(a - b) for a, b in pairs]
        count += 1
    if not count:
        return "not compared, because a step has other samples there"
    if str(begins[0]) != str(begins[1]):
        return "not compared, because they begin with other weights"
    furthest = max(apart, key=lambda gap: (math.isnan(gap), gap))  # NaN, if there is one
    return f"at most {furthest:.1e} apart after {counted(count, 'step')}"


def libraries(seen: Seen) -> list[str]:
    names = {note["name"] for rank in seen.ranks for note in rank.all("library")}
    return sorted(names) + ["FSDP or tensor parallel"] * seen.is_sharded()


def as_json(seen: Seen, findings: dict[str, Finding], status: int) -> dict:
    return {
        "findings": {name: finding._asdict() for name, finding in findings.items()},
        "samples": samples(seen),
        "equal_weights": have_equal_weights(seen),
        "equal_buffers": have_equal_buffers(seen),
        "difference_from_one_rank": difference(seen),
        "not_looked_at": libraries(seen),
        "verdict": seen.short(seen.verdict.says),
        "status": status,
    }


def write(seen: Seen, findings: dict[str, Finding]) -> str:
    wrong = [name for name, finding in findings.items() if finding.state == WRONG]
    table = faults()
    lines = []
    for name in wrong:
        says = printable(findings[name].says).replace("\n", "\n  ")
        lines += [f"wrong: {name}, {findings[name].at or '?'}", f"  {says}"]
        lines += [f"  write: {table[name]['write']}"]
    for name, finding in findings.items():
        if name not in wrong:
            lines += [f"{finding.state}: {name}{finding.says and ', because '}{finding.says}"]
    rows: list[tuple] = [
        ("samples", *(f"rank {rank}" for rank in range(len(seen.ranks))), "missing", "twice"),
        *((it["pass"], *it["ranks"], it["missing"], it["twice"]) for it in samples(seen)),
    ]
    lines += ["", *(_row(["?" if cell is None else cell for cell in row]) for row in rows), ""]
    equal = {True: "equal on all ranks", False: "not equal on all ranks", None: "none"}
    lines += [f"weights that can be seen: {equal[have_equal_weights(seen)]}"]
    if are_apart(seen):
        lines += [
            "  So the ranks train several models. If no fault above says why: a forward that goes"
        ]
        lines += ["  past DDP, as model.module(x) does, averages no gradients."]
    lines += [f"buffers in the validation: {equal[have_equal_buffers(seen)]}"]
    if have_equal_buffers(seen) is False:
        lines += ["  as with a batch norm. So each rank measures another model: broadcast"]
        lines += ["  model.module.buffers() before."]
    lines += [f"steps, beside those of one rank: {difference(seen)}"]
    if seen.verdict.kind is Ending.SLOW:
        lines += ["it was stopped by --timeout: with fewer steps, or samples, more is seen"]
    if names := libraries(seen):
        lines += [f"not looked at: what {', '.join(names)} does by itself"]
    apart = ", and the ranks train several models" if are_apart(seen) else ""
    return "\n".join([*lines, "", f"{counted(len(wrong), 'fault')} found{apart}"])


def _row(cells: list) -> str:
    first, *others = cells
    return f"{first:<15}{''.join(f'{one:<9}' for one in others)}".rstrip()
