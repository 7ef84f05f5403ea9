"""How a function travels to the ranks: as code, so that lambdas, notebook cells and scripts need no import on the other side."""

import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder

import cloudpickle

from collectives.recording import stack

# cloudpickle keeps one register of modules for the whole process.
_pickling = threading.Lock()


def pack(fn: Callable, args: tuple) -> bytes:
    """Pickle a function and its arguments by value. ValueError if they cannot be."""
    with _pickling:
        modules = [
            module
            for module in _by_value(fn)
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value()
        ]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps((fn, args))
        except Exception as error:
            name = getattr(fn, "__name__", repr(fn))
            raise ValueError(
                f"{name} or its arguments cannot travel to the ranks ({type(error).__name__}: {error}): create inside the function "
                "what cannot be pickled, such as locks, open files, sockets and generators."
            ) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _by_value(fn: Callable) -> list:
    """The modules whose functions are sent as code: the function's own, and those that a rank could not import by name."""
    own = [sys.modules.get(getattr(fn, "__module__", None) or "")]
    loose = [
        module
        for name, module in list(sys.modules.items())
        if "." not in name and not _is_importable(name, module)
    ]
    found = {
        module.__name__: module
        for module in own + loose
        if module is not None and not _is_installed(module)
    }
    return [module for name, module in found.items() if name in sys.modules and name != "__main__"]


def _is_installed(module) -> bool:
    file = getattr(module, "__file__", None)
    return (
        file is None or module.__name__.partition(".")[0] == "collectives" or stack.is_library(file)
    )


def _is_importable(name: str, module) -> bool:
    if _is_installed(module):
        return True
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == module.__file__
