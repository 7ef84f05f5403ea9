"""Take from this process's torch the names that came with torch 2.13.

`make_older()` leaves their functions, under the names that torch 2.9 to 2.12 has for them.
"""

import sys

from collectives.semantics.calls import CALLS
from collectives.semantics.on_import import OnImport
from collectives.semantics.torch_names import FUNCTIONAL

C10D = {call.name: call.aliases for call in CALLS.values() if call.aliases}


def _c10d(c10d):
    for module in (c10d, sys.modules["torch.distributed"]):
        for name, before in C10D.items():
            if (function := vars(module).pop(name, None)) is not None:
                function = function.__wrapped__ if hasattr(function, "recorder") else function
                vars(module).update(dict.fromkeys(before, function))
    c10d.__all__ = [name for name in c10d.__all__ if name not in C10D]


def _functional(functional):
    for name, before in FUNCTIONAL.items():
        if (function := vars(functional).pop(name, None)) is not None:
            setattr(functional, before, function)


def make_older():
    """Now, or when torch is imported, and then before `collectives` looks at it."""
    for name, todo in {
        "torch.distributed.distributed_c10d": _c10d,
        "torch.distributed._functional_collectives": _functional,
    }.items():
        if name in sys.modules:
            todo(sys.modules[name])
        else:
            OnImport({name: todo})
            sys.meta_path.insert(1, sys.meta_path.pop(0))  # who stands behind comes to it first
