"""What a step of each lesson on training sends, in docs/exactness.md."""

from pathlib import Path, PurePosixPath

from collectives.course import chapters, files
from collectives.course.marks import world_of
from collectives.launcher.launch import launch
from collectives.recording.counts import Count, counting
from tools import markdown

RANKS = 4


def measured(rank, world_size, device, paths: dict[str, Path]) -> dict[tuple[str, str], Count]:
    """Runs in a rank: calls and bytes, by lesson and step.

    Steps that compare no training, start ranks of their own, or need more of them, are left out.
    """
    found = {}
    for name, path in paths.items():
        module = files.load(path)
        for step in module.STEPS:
            world = world_of(step)
            compares = "check_training" in step.__code__.co_names
            if compares and not world.isolated and world.ranks <= world_size:
                found[name, step.__name__] = _measured_step(step, rank, world_size, device)
    return found


def _measured_step(step, rank, world_size, device) -> Count:
    """Calls and bytes of a step of its first optimizer that sends anything.

    That is the last step: in the first one, DDP also sends what it has to send once.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    sent: list[tuple] = []  # of each optimizer: itself, and what the last step before its own sent

    def note(optimizer, *_):
        sent[:] = [pair for pair in sent if pair[0] is not optimizer]
        sent.append((optimizer, counts.total()))
        counts.clear()

    hook = register_optimizer_step_post_hook(note)
    try:
        with counting() as counts:
            step(rank, world_size, device)
    finally:
        hook.remove()
    return next((count for _, count in sent if count.calls), Count())


def table() -> str:
    """A row for each step, as rank 0 counts it."""
    paths = {lesson.name: lesson.path for lesson in chapters.read()["training"].lessons}
    found = launch(measured, RANKS, args=(paths,), backend="gloo", device="cpu", timeout=600.0)[0]
    rows = [
        [f"[{PurePosixPath(name).name}](../lessons/{name}.py): `{step}`", calls, f"{sent:,}"]
        for (name, step), (calls, sent) in found.items()
    ]
    return markdown.table(["step", "calls", "bytes"], rows)
