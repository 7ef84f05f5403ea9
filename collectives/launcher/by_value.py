"""Pickle a function by value: send its code, so that a rank need not import its module.

This makes lambdas, notebook cells and functions of scripts work.
"""

import functools
import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from collectives.recording import stack

# cloudpickle keeps one register of modules for the whole process.
_pickling = threading.Lock()


def pickle_by_value(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a function and its arguments. Raises ValueError if they cannot be pickled."""
    with _pickling:
        registered = cloudpickle.list_registry_pickle_by_value()
        modules = [module for module in _by_value(fn) if module.__name__ not in registered]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            pickled: bytes = cloudpickle.dumps((fn, args))
            return pickled
        except Exception as error:
            name = getattr(fn, "__name__", repr(fn))
            raise ValueError(
                f"{name} or its arguments cannot travel to the ranks "
                f"({type(error).__name__}: {error}): create inside the function "
                "what cannot be pickled, such as locks, open files, sockets and generators."
            ) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _by_value(fn: Callable[..., Any]) -> list[ModuleType]:
    """The modules to pickle by value: that of `fn`, and those that a rank cannot import by name."""
    defining_module = sys.modules.get(getattr(fn, "__module__", None) or "")
    not_importable = [
        module
        for name, module in list(sys.modules.items())
        if "." not in name
        and not _is_installed(getattr(module, "__file__", None))
        and not _is_importable(name, module)
    ]
    found = {
        module.__name__: module
        for module in [defining_module, *not_importable]
        if module is not None and not _is_installed(getattr(module, "__file__", None))
    }
    return [module for name, module in found.items() if name in sys.modules and name != "__main__"]


@functools.cache  # each launch asks for every file from which this program has imported
def _is_installed(file: str | None) -> bool:
    """Whether the file belongs to Python, to an installed package or to this one."""
    return file is None or stack.is_library(file)


def _is_importable(name: str, module: ModuleType) -> bool:
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == module.__file__
