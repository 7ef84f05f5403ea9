"""`practice("all_reduce_as_a_ring")`: try an exercise from a notebook or a Python session."""

import sys
from collections.abc import Callable
from types import FunctionType

from collectives.course.practice import answer, progress, registry
from collectives.course.practice.checker import try_program
from collectives.course.rich_console import print_block


def practice(name: str | None = None, function: Callable | None = None) -> None:
    """Try what you wrote for an exercise, and print what came of it.

    name: the exercise; without it, the next one that is not solved. function: what you wrote, for
    example in a notebook cell; without it, the file in your folder of exercises, which `collectives
    practice start FOLDER` makes.

    Raises ValueError if there is no such exercise, or no folder of exercises here.

    >>> practice("neighbours", lambda rank, n: ((rank - 1) % n, (rank + 1) % n))  # doctest: +SKIP
    """
    ranks = sys.modules.get("collectives.launcher.rank")
    if ranks is not None and ranks.inside:  # it stands in the file that is tried
        return
    said: Callable[[str], str] = str
    if function is None:
        here = progress.find()
        said = here.said
        wanted = registry.find(name) if name else here.next()
        if wanted is None:
            print(said("All exercises are solved."))
            return
        verdict = here.try_file(wanted)
    else:
        if not isinstance(function, FunctionType):
            raise ValueError(
                f"function={function!r} is no function: pass the one that the exercise asks for, "
                "without calling it."
            )
        wanted = registry.find(name or "")
        verdict = try_program(wanted.name, function)
    print_block(answer.block(wanted, verdict, said))
