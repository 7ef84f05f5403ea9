"""What a run has found: how each step ended, and what is not as claimed and not as rehearsed.

The rehearsal lies in rehearsed/. Its steps ran on GPUs that the CPU plays: it knows what runs and
what is refused, and how long that takes here, but nothing of the time that a GPU takes.
"""

from dataclasses import replace
from pathlib import Path

from tools.first_gpu_run.archive import read_state, write_state
from tools.first_gpu_run.perform import Ended
from tools.first_gpu_run.plan import GROUPS, IS_REHEARSAL, GpuStep

REHEARSED = Path(__file__).with_name("rehearsed")
# The kept seconds are those for which the processors worked, or, after --keep, those of a machine
# that does nothing else. With GPUs each world also makes a context and NCCL's connections.
FACTOR = 1.4
LAST_LINES = 15  # of the output of a step that failed


def expected(step: GpuStep) -> float | None:
    """The seconds that a step may take, from those of its rehearsal; None without one."""
    before = read_state(REHEARSED).get(step.name)
    return FACTOR * before.seconds if before else None


def plan(every: list[GpuStep]) -> str:
    """The steps, with the expected seconds and the limit of each."""
    lines, in_all = [], 0.0
    for group, title in GROUPS.items():
        steps = [step for step in every if step.group == group]
        seconds = sum(expected(step) or step.limit for step in steps)
        in_all += seconds
        lines.append(f"{group}. {title}: {f'about {seconds:.0f} s' if steps else 'not here'}")
        for step in steps:
            about = expected(step)
            times = "not rehearsed" if about is None else f"about {about:.0f} s"
            lines.append(f"   {step.name:18}{times}, at most {step.limit:.0f} s. {step.question}")
    lines.append(f"In all {len(every)} steps, about {in_all / 60:.1f} minutes.")
    return "\n".join(lines)


def summary(every: list[GpuStep], ended: dict[str, Ended], folder: Path) -> str:
    """How each step ended, and what is not as claimed and not as rehearsed."""
    title = "A rehearsal of it: no GPU was used" if IS_REHEARSAL else "The first run on GPUs"
    lines = [f"# {title}", "", "| step | question | it ended | seconds |"]
    lines.append("| --- | --- | --- | --- |")
    for step in every:
        found = ended.get(step.name)
        outcome = (str(found), f"{found.seconds:.0f}") if found else ("not yet run", "")
        lines.append(f"| {step.name} | {step.question} | {' | '.join(outcome)} |")
    for other, differences in (
        ("claimed", _not_as_claimed(folder)),
        ("rehearsed", _not_as_rehearsed(ended, folder)),
    ):
        lines += ["", f"## Not as {other}", ""]
        lines += [f"- {text}" for text in differences] or [
            "Nothing was found, or nothing measured."
        ]
    for name, found in ended.items():
        if found.status != 0:
            text = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
            lines += ["", f"## {name}: {found}", "", "```text", *text[-LAST_LINES:], "```"]
    return "\n".join(lines) + "\n"


def _not_as_claimed(folder: Path) -> list[str]:
    from collectives.matrix import recorded
    from collectives.matrix.claimed import differences

    paths = sorted(folder.glob("quick_*.json"))
    return [one.text for path in paths for one in differences(recorded.read(path))]


def _not_as_rehearsed(ended: dict[str, Ended], folder: Path) -> list[str]:
    """The rehearsal knows what runs, and what torch and NCCL refuse. It knows no times."""
    from collectives.matrix import recorded

    before, found = read_state(REHEARSED), []
    for step in ended.values():
        was = before.get(step.name, step)
        # What failed there may be the fault of the rehearsal itself.
        if was.status == 0 and step.status != 0:
            found.append(f"{step.name}: {step}; rehearsed: {was}")
        for name, there in was.lessons.items():
            here = step.lessons.get(name, there)
            if here != there != "failed":
                found.append(f"{step.name}: {name} {here}; rehearsed: {there}")
    for file in sorted(REHEARSED.glob("quick_*.json")):
        if (folder / file.name).exists():
            cells = recorded.differences(recorded.read(file), recorded.read(folder / file.name))
            found += [text for kind, text in cells if kind in ("worse", "better")]
    return found


def keep(folder: Path) -> None:
    """Make the steps of a rehearsed run those to compare with. Those of gloo ran on the CPU."""
    from collectives.matrix import recorded

    ended = {name: one for name, one in read_state(folder).items() if not one.is_cut}
    write_state(REHEARSED, read_state(REHEARSED) | ended)
    for file in folder.glob("quick_[0-9].json"):
        found = recorded.read(file)
        cells = [replace(cell, seconds=0.0) for cell in found.cells]
        text = recorded.as_json(replace(found, platform="rehearsed", cells=cells))
        (REHEARSED / file.name).write_text(text, encoding="utf-8")
