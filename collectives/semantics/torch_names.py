"""Give an older torch the names that torch 2.13 brought: nothing else here asks for its version.

Lessons and this package use today's names, such as `dist.all_gather_single`. torch 2.9 to 2.12 has
the same functions under the names that they had before. So a process that imports `collectives`
finds them under both, whichever of the two it imports first. A name that torch has stays as it is.

The methods that torch calls on a process group in Python have older names as well: see
`PythonProcessGroup`, which answers to both.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from .on_import import OnImport

# Those of torch.distributed._functional_collectives: today's name, and the one before.
FUNCTIONAL = {
    "all_gather_single": "all_gather_tensor",
    "all_gather_single_autograd": "all_gather_tensor_autograd",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}

_given: list[str] = []  # what this torch lacked


def _to_c10d(c10d: ModuleType) -> None:
    from .calls import CALLS  # with torch, so that `import collectives` stays quick

    today = {call.name: call.aliases[0] for call in CALLS.values() if call.aliases}
    for name in _give(c10d, today):
        setattr(sys.modules["torch.distributed"], name, getattr(c10d, name))
    # In a program under diagnosis the calls may be noted already: these, too, then.
    if (recorder := getattr(c10d.all_reduce, "recorder", None)) is not None:
        recorder.install()


def _to_functional(functional: ModuleType) -> None:
    list(_give(functional, FUNCTIONAL))


def _give(module: ModuleType, today: dict[str, str]) -> Iterator[str]:
    for name, before in today.items():
        if not hasattr(module, name) and hasattr(module, before):
            function = getattr(module, before)
            if hasattr(function, "recorder"):  # which notes a call by the name that was used
                function = function.__wrapped__
            setattr(module, name, function)
            _given.append(name)
            yield name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """gloo of torch 2.9 prints a line to stdout for each group that it makes: not in here."""
    if not _given:
        yield
        return
    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


def give() -> None:
    """Give the names, now or when torch is imported."""
    todo = {
        "torch.distributed.distributed_c10d": _to_c10d,
        "torch.distributed._functional_collectives": _to_functional,
    }
    for name, to in todo.items():
        if name in sys.modules:
            to(sys.modules[name])
    OnImport({name: to for name, to in todo.items() if name not in sys.modules})
