"""Take from torch what an older one lacks: `rehearse.py --torch-names 2.11`.

A program does not find these names any more, unless somebody gives them back. torch itself, whose
own code of today calls them, does. Until 2.13 the same functions had other names, which stay.
"""

import importlib
import importlib.machinery
import sys
from types import ModuleType

C10D = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
FUNCTIONAL = {
    "all_gather_single": "all_gather_tensor",
    "all_gather_single_autograd": "all_gather_tensor_autograd",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
# By version, what it lacks: by module, today's name and the one before.
LACKING = {
    "2.11": {
        "torch.distributed.distributed_c10d": C10D,
        "torch.distributed._functional_collectives": FUNCTIONAL,
    }
}


class _Older(ModuleType):
    """A module whose `lacking` names only torch finds, until they are set."""

    def __getattribute__(self, name):
        if name in super().__getattribute__("__dict__")["lacking"]:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] != "torch":
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return super().__getattribute__(name)

    def __reduce__(self):  # cloudpickle knows modules of the one class alone
        return importlib.import_module, (self.__name__,)

    def __setattr__(self, name, value):
        self.lacking.discard(name)
        super().__setattr__(name, value)


def make_older(module: ModuleType, before: dict[str, str]) -> None:
    """The older name becomes the function itself: today it warns, and calls today's name."""
    for today, older in before.items():
        function = getattr(module, today)
        # The recorder's is given anew: it notes a call by the name that was used.
        own = function.__wrapped__ if hasattr(function, "recorder") else function
        setattr(module, older, own)
    hide(module, before)
    if before == C10D:  # which is loaded while torch.distributed is, and gives it all its names
        hide(sys.modules["torch.distributed"], before)


def hide(module: ModuleType, names: dict[str, str]) -> None:
    vars(module)["lacking"] = set(names)
    module.__class__ = _Older


class Finder:
    """Makes the modules older as soon as they are loaded, before `collectives` looks at them."""

    def __init__(self, version: str):
        self.lacking = dict(LACKING[version])

    def find_spec(self, name, path=None, target=None):
        before = self.lacking.pop(name, None)
        if before is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            make_older(module, before)

        spec.loader.exec_module = exec_module
        return spec
