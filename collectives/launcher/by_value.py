"""Pickle a function by value: send its code, so that a rank need not import its module.

This makes lambdas, notebook cells and functions of scripts work.
"""

import functools
import io
import os
import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import CodeType, ModuleType
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
            payload = io.BytesIO()
            _Pickler(payload).dump((fn, args))
            return payload.getvalue()
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


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Code keeps the name of its file, without which no error could name a line.

    cloudpickle 3.1.3 leaves it out.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_of, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def _code_of(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file)


def _by_value(fn: Callable[..., Any]) -> list[ModuleType]:
    """The modules to pickle by value: that of `fn`, and those that a rank cannot import by name."""
    defining = getattr(fn, "__module__", None)
    own = [
        module
        for name, module in list(sys.modules.items())
        if (name == defining or "." not in name)
        and (file := getattr(module, "__file__", None))
        and not _holds_a_library(os.path.dirname(file))
        and (name == defining or not _is_importable(name, module))
    ]
    names = sys.modules.keys() - {"__main__"}
    return [module for module in own if module.__name__ in names]


@functools.cache  # a launch asks for each module, and there are few folders
def _holds_a_library(folder: str) -> bool:
    """Whether Python, an installed package or this one lies there."""
    return stack.is_library(folder + os.sep)


def _is_importable(name: str, module: ModuleType) -> bool:
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == module.__file__
