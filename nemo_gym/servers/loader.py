"""From a server object to the app that is served: the author's app plus what every server has.

From a server folder to a server object.

The entrypoint of a folder is imported as ``<type>.<implementation>.<module>``, the name under which other servers
import it too, so a class exists once. The server class is the one whose ``run_webserver`` the file calls when it is run
as a program. Modules beside the entrypoint may be imported by their bare names; two servers with a ``utils.py`` each do
not see one another's.
"""

import ast
import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, cast

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from nemo_gym.config.instances import ServerInstance
from nemo_gym.errors import ConfigError
from nemo_gym.servers.server_client import GymClient

logger = logging.getLogger(__name__)


def build_app(server: Any, *, folder: Path | None = None) -> FastAPI:
    """The author's app with liveness, faults as answers, and refused bodies logged.

    Relative paths that an author opens while the app is built are meant relative to the server's folder.
    """
    with contextlib.chdir(folder) if folder else contextlib.nullcontext():
        app = cast("FastAPI", server.setup_webserver())
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    if app.exception_handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _refusal_logger(server.get_session_middleware_key()))
    return app


def _refusal_logger(label: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reasons = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        logger.warning("%s: %s refused a body: %s", label, request.url.path, "; ".join(reasons))
        return await request_validation_exception_handler(request, error)

    return refuse


def build_server(instance: ServerInstance, client: GymClient) -> Any:
    """The server object of an instance, ready for ``setup_webserver``."""
    return construct(load_server_class(instance), instance.settings, client, where=instance.name)


def construct(server_class: type[BaseModel], settings: dict[str, Any], client: GymClient, *, where: str) -> Any:
    """A server object from its settings; a setting that does not fit is the user's to fix."""
    config_class = server_class.model_fields["config"].annotation
    assert isinstance(config_class, type)
    assert issubclass(config_class, BaseModel)
    try:
        config = config_class.model_validate(settings)
    except ValidationError as error:
        # Without the rejected values: one of them may be a key.
        lines = [
            f"  {'.'.join(map(str, entry['loc'])) or config_class.__name__}: {entry['msg']}"
            for entry in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        raise ConfigError(
            f"{where}: settings do not fit {config_class.__name__}:\n" + "\n".join(lines),
            hint=f"correct them in the YAML, or on the command line: ++{where}.<type>.<implementation>.<key>=<value>",
        ) from None
    return server_class(config=config, server_client=client.for_server(server_class))


def load_server_class(instance: ServerInstance) -> type[BaseModel]:
    """Import the entrypoint of an instance and find its server class."""
    path = instance.directory / instance.entrypoint
    if not path.is_file():
        raise ConfigError(
            f"{instance.name}: there is no file {path}",
            hint=f"`entrypoint` names a Python file inside {instance.server_type}/{instance.implementation}",
        )
    name = f"{instance.server_type}.{instance.implementation}.{Path(instance.entrypoint).stem}"
    try:
        module = _import(name, path)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{instance.name}: {path} can't be imported: {type(error).__name__}: {error}",
            hint="run it alone to see the traceback: " + f"python -c 'import {name}'",
        ) from error
    return _server_class(module, path, instance.name)


def _import(name: str, path: Path) -> ModuleType:
    """Import by name where the import system finds the same file, else from the file."""
    with _siblings_importable(path.parent):
        loaded = sys.modules.get(name)
        if loaded is not None:
            is_same = Path(loaded.__file__ or "").resolve() == path.resolve()
            return loaded if is_same else _import_file(name, path)
        root = str(path.parents[2])
        if not _is_found(name, path) and root not in sys.path:
            sys.path.append(root)  # the folder's siblings, and its own package, become importable by full name
        return importlib.import_module(name) if _is_found(name, path) else _import_file(name, path)


def _is_found(name: str, path: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path.resolve()


def _import_file(name: str, path: Path) -> ModuleType:
    """Import a file under a name that means another folder elsewhere: the user's copy of a shipped server."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _siblings_importable(folder: Path) -> Iterator[None]:
    """Let a module import its neighbours by bare names, without leaving those names to the next server."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for imports inside functions, which run later
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if "." not in name and file and Path(file).parent == folder:
                del sys.modules[name]


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
