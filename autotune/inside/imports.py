"""Doing something to a module right after its first import, without importing it ourselves.

verl starts a dozen processes, and most of them never need the modules that are touched here: importing those everywhere
would cost seconds of every start-up.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the actions."""

    def __init__(self, loader: Any, actions: list[Callable[[Any], object]]) -> None:
        self._loader = loader
        self._actions = actions

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds watched modules by asking all other finders."""

    def __init__(self) -> None:
        self.watched: dict[str, list[Callable[[Any], object]]] = {}
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.watched or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader, self.watched[name])
        return spec


_FINDER = _Finder()


def after_import(name: str, action: Callable[[Any], object]) -> None:
    """Calls `action(module)` once `name` is imported: now if it already is, else right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.watched.setdefault(name, []).append(action)
