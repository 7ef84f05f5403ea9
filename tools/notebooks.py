"""Make the notebooks from the lessons, cell by cell, and execute them: `make notebooks`.

The lesson is the source: to change a notebook, change its lesson. Whatever differs from run to run
(times, random ids, versions) is left out, so that executing twice changes nothing.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbformat

from collectives.course import chapters, files

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager

AT_A_TIME = 2
TIMEOUT = 300  # seconds for one cell

# The same on every machine. No log of gloo: some errors are made on purpose.
_ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    # No lesson uses what torch calls deprecated. ZeroRedundancyOptimizer does, and so does
    # Accelerate: a rule of tests/lessons/test_lesson_contract.py holds for the lessons themselves.
    "PYTHONWARNINGS": "error::FutureWarning,error::DeprecationWarning,"
    "ignore:`torch.jit.:DeprecationWarning,"
    "ignore:`torch.distributed.all_gather_into_tensor:FutureWarning,"
    "ignore:The module torch.distributed.launch:FutureWarning",  # `rendezvous` shows what it does
    # subtle: with the widest registers of a processor, sums are rounded in another order
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
}

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


def path_of(lesson: Path) -> Path:
    """The notebook of a lesson: notebooks/ lies beside lessons/, and has the same folders."""
    lessons = next(folder for folder in lesson.absolute().parents if folder.name == "lessons")
    return (
        lessons.parent / "notebooks" / lesson.absolute().relative_to(lessons).with_suffix(".ipynb")
    )


def unexecuted(lesson: Path) -> nbformat.NotebookNode:
    """The notebook of a lesson, without outputs. A cell's id: lesson and position (order-03).

    Jupyter hides the cure of a mistake until a click opens it. No other page can hide code.
    """
    notebook = jupytext.read(lesson)
    notebook.metadata = nbformat.from_dict(_METADATA)
    for position, cell in enumerate(notebook.cells, 1):
        cell.id = f"{lesson.stem}-{position:02}"
    for cure_and_its_run in _cures(notebook):
        for cell in cure_and_its_run:
            cell.metadata.jupyter = nbformat.from_dict({"source_hidden": True})
    return notebook


def _cures(notebook: nbformat.NotebookNode) -> Iterator[tuple]:
    """The two cells below each answer to "What is wrong?"."""
    cells = notebook.cells
    for answer, *cure_and_its_run in zip(cells, cells[1:], cells[2:], strict=False):
        if answer.source.startswith("<details><summary>What is wrong?"):
            yield tuple(cure_and_its_run)


async def executed(
    lesson: Path, kernel: "AsyncKernelManager | None" = None
) -> nbformat.NotebookNode:
    """The notebook of a lesson with its outputs.

    It is executed in a fresh kernel, or in `kernel`, which is started if it is not running and goes
    on afterwards. CellExecutionError if a cell fails.
    """
    from nbclient import NotebookClient

    notebook = unexecuted(lesson)
    folder = path_of(lesson).parent  # where a reader's kernel starts
    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        notebook,
        km=kernel,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    await client.async_execute(env=os.environ | _ENVIRON)
    if client.kc is not None:  # the kernel goes on, our connection to it does not
        client.kc.stop_channels()
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_passing(output)]
    return notebook


def _is_passing(output: nbformat.NotebookNode) -> bool:
    """Messages of libraries, and the note that a step was running, which is erased by now."""
    return output.get("name") == "stderr" or output.get("data", {}).get("text/html") == ""


async def _make(lesson: Path, turn: asyncio.Semaphore) -> bool:
    """When it is its turn, execute one notebook and write it. Return whether that went well."""
    from nbclient.exceptions import CellExecutionError

    async with turn:
        start = time.monotonic()
        try:
            notebook = await executed(lesson)
        except (CellExecutionError, TimeoutError) as error:
            print(f"{lesson.stem}: {error}", file=sys.stderr)
            return False
        nbformat.write(notebook, path_of(lesson))
        print(f"{lesson.stem}: executed in {time.monotonic() - start:.0f} s", flush=True)
        return True


async def _make_all(lessons: list[Path]) -> bool:
    turn = asyncio.Semaphore(AT_A_TIME)
    return all(await asyncio.gather(*(_make(lesson, turn) for lesson in lessons)))


if __name__ == "__main__":
    try:
        chosen = files.choose(sys.argv[1:] or list(chapters.read()), every=False)
    except ValueError as error:
        sys.exit(str(error))
    sys.exit(not asyncio.run(_make_all(chosen)))
