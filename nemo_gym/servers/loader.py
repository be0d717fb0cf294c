"""Loads the server class from a server folder, builds the server, and builds its app.

The server class is the one whose ``run_webserver`` the entrypoint calls when it is run as a program. It is imported,
built and set up with its own folder as the current directory, as it would be in a separate process. The app is the
author's, plus what every server has: a liveness route, exceptions as replies, refused bodies in the log.

Many servers share a process without seeing each other's files. A server's author may import the modules beside
``app.py`` by their bare names (``import helpers``), at the top of a file or inside a function. In a separate process
that is ordinary Python. Here two folders may both have a ``helpers.py``, so every module of a folder gets an
``__import__`` that looks in that folder first. Modules are registered under the full names that other servers import
them by (``resources_servers.letters.helpers``), so a class exists only once, however it was imported.
"""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeGuard, cast

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.locate import working_in
from nemo_gym.errors import ConfigError, nearest
from nemo_gym.servers.server_client import GymClient

logger = logging.getLogger(__name__)

# Keys that the server itself does not read: they are for hosting, data preparation, listings and costs.
KEYS_OF_EVERY_SERVER: Final = frozenset(
    {"datasets", "description", "domain", "isolation", "license", "prices", "value", "verified", "verified_url"}
    | {"allowed_agents", "allowed_model_types"}
)
SLOW_SETUP_S: Final = 10.0
_SLIP: Final = 0.85  # names more similar than this differ by a slip


def build_app(server: Any, *, folder: Path | None = None) -> FastAPI:
    """The author's app with a liveness route, faults as replies, and refused bodies logged.

    It is built in the server's folder, because authors open files there by relative paths.
    """
    with working_in(folder) if folder else contextlib.nullcontext(), _slow_setup_reported(server):
        app = cast("FastAPI", server.setup_webserver())
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    if app.exception_handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _refusal_logger(server.get_session_middleware_key()))
    return app


@contextlib.contextmanager
def _slow_setup_reported(server: Any) -> Iterator[None]:
    """Warn about a ``setup_webserver`` that does not return: the servers that it may be waiting for start after it."""
    name = server.get_session_middleware_key()

    def warn() -> None:
        logger.warning(
            "%s has been in setup_webserver for %g s. If it waits for another server of this process, it waits for "
            "ever, because none of them answers before all are set up: set isolation: process for it",
            name,
            SLOW_SETUP_S,
        )

    timer = threading.Timer(SLOW_SETUP_S, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refusal_logger(label: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reasons = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        logger.warning("%s: %s refused a body: %s", label, request.url.path, "; ".join(reasons))
        return await request_validation_exception_handler(request, error)

    return refuse


def build_server(instance: ServerInstance, client: GymClient) -> Any:
    """The server object of an instance, ready for ``setup_webserver``."""
    with working_in(instance.directory):
        return construct(entrypoint_class(instance), instance.settings, client, where=instance.name)


def construct(server_class: type[BaseModel], settings: dict[str, Any], client: GymClient, *, where: str) -> Any:
    """Build a server object from its settings."""
    server_class, settings = named_class(server_class, settings)
    config = read_settings_of(server_class, settings, where=where)
    folder = Path(getattr(sys.modules[server_class.__module__], "__file__", None) or ".").parent  # a notebook has none
    with _authors_errors(where, "cannot be built", folder):
        return server_class(config=config, server_client=client.for_server(server_class))


def named_class(server_class: type[BaseModel], settings: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    """The class that a server is built from, and its settings.

    A class with ``named_by`` only stands for another one, which its settings name.
    """
    named_by = getattr(server_class, "named_by", None)
    return named_by(settings) if named_by else (server_class, settings)


def read_settings_of(server_class: type[BaseModel], settings: dict[str, Any], *, where: str) -> BaseModel:
    """The settings as an object of the server's own configuration class. Invalid settings are a ConfigError."""
    config_class = server_class.model_fields["config"].annotation
    assert isinstance(config_class, type)
    assert issubclass(config_class, BaseModel)
    if config_class.model_config.get("extra") == "forbid":
        foreign = KEYS_OF_EVERY_SERVER - config_class.model_fields.keys()
        settings = {key: value for key, value in settings.items() if key not in foreign}
    try:
        config = config_class.model_validate(settings)
    except ValidationError as error:
        # The rejected values are left out, because one of them may be a key.
        lines = [
            f"  {'.'.join(map(str, entry['loc'])) or config_class.__name__}: {entry['msg']}"
            for entry in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        unknown = [f"  {key.text}" for key in _unknown_keys(config_class, settings) if key.near]
        raise _unfit(where, config_class, [*lines, *unknown]) from None
    unknown_keys = _unknown_keys(config_class, settings)
    if misspelt := [f"  {key.text}" for key in unknown_keys if key.is_misspelt]:
        raise _unfit(where, config_class, misspelt)
    for key in unknown_keys:
        logger.warning("%s: %s", where, key.text)
    return config


def _unfit(where: str, config_class: type[BaseModel], lines: list[str]) -> ConfigError:
    return ConfigError(
        f"{where}: settings do not fit {config_class.__name__}:\n" + "\n".join(lines),
        hint=f"correct them in the YAML, or on the command line: ++{where}.<type>.<implementation>.<key>=<value>",
    )


class _UnknownKey(NamedTuple):
    """A setting that its server does not have. Files written for other programs may hold such; slips are errors."""

    name: str
    owner: str
    near: str | None

    @property
    def is_misspelt(self) -> bool:
        return self.near is not None and SequenceMatcher(a=self.name, b=self.near).ratio() >= _SLIP

    @property
    def text(self) -> str:
        advice = f"; did you mean {self.near!r}?" if self.near else ""
        return f"{self.name}: not a setting of {self.owner}, so it has no effect{advice}"


def _unknown_keys(config_class: type[BaseModel], settings: dict[str, Any]) -> list[_UnknownKey]:
    """The keys without a field."""
    if config_class.model_config.get("extra") in ("allow", "forbid"):
        return []
    aliases = {field.alias for field in config_class.model_fields.values() if field.alias}
    known = {*config_class.model_fields, *aliases, *KEYS_OF_EVERY_SERVER}
    unknown = sorted(set(settings) - known)
    return [_UnknownKey(key, config_class.__name__, next(iter(nearest(key, known)), None)) for key in unknown]


def entrypoint_class(instance: ServerInstance) -> type[BaseModel]:
    """Import the entrypoint of an instance and find its server class."""
    path = instance.directory / instance.entrypoint
    if not path.is_file():
        raise ConfigError(
            f"{instance.name}: there is no file {path}",
            hint=f"`entrypoint` names a Python file inside {instance.server_type}/{instance.implementation}",
        )
    with _authors_errors(instance.name, "cannot be imported", path.parent):
        module = import_from_folder(path.parent, path.stem)
    return _server_class(module, path, instance.name)


@contextmanager
def _authors_errors(server: str, problem: str, folder: Path) -> Iterator[None]:
    """Turn an exception in a server's own code into an error that names the server, the line and what to do."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        own = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
        place = f"{own[-1].filename}:{own[-1].lineno}" if own else str(folder)
        hint = "the traceback is shown with +verbose=true"
        if isinstance(error, ModuleNotFoundError):
            hint = (
                f"install the package with {error.name!r}, or list it in {folder / 'requirements.txt'}: a server whose "
                "requirements are not installed here gets its own environment"
            )
        elif isinstance(error, FileNotFoundError):
            hint = f"relative paths are looked for in {folder}, where the server is built"
        logger.debug("%s %s", server, problem, exc_info=error)
        raise ConfigError(f"{server} {problem}: {place}: {type(error).__name__}: {error}", hint=hint) from error


def _server_class(module: ModuleType, path: Path, instance: str) -> type[BaseModel]:
    name = _class_run_as_program(path)
    candidate = getattr(module, name, None) if name else None
    if candidate is None:
        own = [
            value for value in vars(module).values() if _is_server_class(value) and value.__module__ == module.__name__
        ]
        candidate = own[-1] if len(own) == 1 else None
    if not _is_server_class(candidate):
        raise ConfigError(
            f"{instance}: {path} does not say which class is the server",
            hint='end the file with: if __name__ == "__main__": MyServer.run_webserver()',
        )
    return candidate


def _is_server_class(value: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel) and hasattr(value, "setup_webserver")


def _class_run_as_program(path: Path) -> str | None:
    """The X of the first ``X.run_webserver()`` in the file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr == "run_webserver" and isinstance(node.value, ast.Name):
            return node.value.id
    return None


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
