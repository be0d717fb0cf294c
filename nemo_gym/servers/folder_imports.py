"""Imports the modules of a server folder so that many servers can share a process without seeing each other's files.

A server's author may import the modules beside ``app.py`` by their bare names (``import helpers``), at the top of a
file or inside a function. In a separate process that is ordinary Python. Here two folders may both have a
``helpers.py``, so every module of a folder gets an ``__import__`` that looks in that folder first. Modules are
registered under the full names that other servers import them by (``resources_servers.letters.helpers``), so a class
exists only once, however it was imported.
"""

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def import_from_folder(folder: Path, module: str) -> ModuleType:
    """Import one module of a server folder by its bare name."""
    root = str(folder.parents[1])
    if not _finds_folder(folder) and root not in sys.path:
        sys.path.append(root)  # neighbouring server folders become importable by their full names
    if str(folder) not in sys.path:
        # Only importlib.import_module needs this: import statements go through our own __import__.
        sys.path.append(str(folder))
    return _FolderImporter(folder).load(module)


def _finds_folder(folder: Path) -> bool:
    """Whether the import system finds exactly this folder under its full name."""
    try:
        spec = importlib.util.find_spec(f"{folder.parent.name}.{folder.name}")
    except ModuleNotFoundError:
        return False
    found = list(spec.submodule_search_locations or ()) if spec is not None else []
    return any(Path(path).resolve() == folder.resolve() for path in found)


class _FolderImporter:
    """Loads the modules of one folder and gives each of them the ``__import__`` described above."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._package = f"{folder.parent.name}.{folder.name}"
        # A function takes the built-ins of its module when it is defined, so they must be in place from the start.
        self._builtins = {**vars(builtins), "__import__": self._import}

    def load(self, module: str) -> ModuleType:
        """The module of this name, imported only once."""
        name, path = f"{self._package}.{module}", self._path(module)
        assert path is not None
        loaded = sys.modules.get(name)
        if loaded is not None and Path(loaded.__file__ or "").resolve() == path.resolve():
            return loaded
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        fresh = importlib.util.module_from_spec(spec)
        vars(fresh)["__builtins__"] = self._builtins
        # Registered before it runs, as Python does it, so that modules can import each other in a circle.
        sys.modules[name] = fresh
        try:
            spec.loader.exec_module(fresh)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return sys.modules[name]

    def _path(self, module: str) -> Path | None:
        candidates = (self._folder / f"{module}.py", self._folder / module / "__init__.py")
        return next((path for path in candidates if path.is_file()), None)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the names are those of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        first, _, rest = name.partition(".")
        is_own = level == 0 and first not in sys.stdlib_module_names and self._path(first) is not None
        if not is_own:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        top = self.load(first)
        if not rest:
            for attribute in fromlist or ():  # `from package import module` may name a module that is not loaded yet
                if attribute != "*" and not hasattr(top, attribute) and hasattr(top, "__path__"):
                    importlib.import_module(f"{self._package}.{name}.{attribute}")
            return top
        inner = importlib.import_module(f"{self._package}.{name}")
        return inner if fromlist else top
