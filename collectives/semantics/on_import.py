"""Do something to a module as soon as it has been imported, by whomever."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any


class OnImport:
    """Stands first in `sys.meta_path`. `todo`: by the name of a module, what is done to it once.

    Others may stand there for the same module: each does its part, who came first begins. What
    raises an error leaves the module as it is.
    """

    def __init__(self, todo: dict[str, Callable[[Any], None]]):
        self.todo = todo
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        todo = self.todo.pop(name, None)
        if todo is None:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            with contextlib.suppress(Exception):
                todo(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
