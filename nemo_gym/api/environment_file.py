"""Environments in files: loading them, and the configuration that hosts one with its agent."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from nemo_gym.api.environment import Environment
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config.keys import (
    ENVIRONMENT_FILE,
    POLICY_MODEL,
    RESOURCES_SERVERS,
    RESPONSES_API_AGENTS,
    RESPONSES_API_MODELS,
)
from nemo_gym.config.locate import find_readable, started_in
from nemo_gym.errors import ConfigError, nearest

ServerClass = type[SimpleResourcesServer]

_loading: ContextVar[Path | None] = ContextVar("environment_file_being_loaded", default=None)


def load_environment(file: str | Path) -> Environment | ServerClass:
    """The environment that a file defines: its one ``Environment``, or its one server class."""
    path = find_environment_file(file)
    module = import_user_file(path.resolve())
    environments = {id(value): value for value in vars(module).values() if isinstance(value, Environment)}
    if len(environments) == 1:
        (environment,) = environments.values()
        environment.name = environment.name or environment_name(path)
        return environment
    if environments:
        raise ConfigError(f"{path} defines {len(environments)} environments", hint="put each into a file of its own")
    servers = [value for value in vars(module).values() if _is_own_server(value, module)]
    if len(servers) == 1:
        return servers[0]
    raise ConfigError(
        f"{path} defines {'several servers' if servers else 'no environment'}",
        hint="write one: environment = nemo_gym.Environment(tasks=[…]), with a function for @environment.verify",
    )


def find_environment_file(file: str | Path) -> Path:
    """The file that a path refers to. If there is none, the error names files beside it that resemble it."""
    path = find_readable(file)
    if path is None or not path.is_file():
        near = nearest(Path(file).name, [each.name for each in (started_in() / Path(file).parent).glob("*.py")])
        hint = "name a Python file that defines a nemo_gym.Environment"
        raise ConfigError(f"{file}: no such file", hint=f"did you mean {' or '.join(near)}?" if near else hint)
    return path


def environment_name(file: Path) -> str:
    """The name of an environment that has no other: that of its file, as a key of the configuration may be written."""
    return re.sub(r"\W", "_", file.stem)


def symbol_in(file: Path, environment: Environment | ServerClass) -> str:
    """The name that an environment has in its file."""
    return next(name for name, value in vars(import_user_file(file.resolve())).items() if value is environment)


def load_server_class(file: str | Path) -> ServerClass:
    """The resources server of the environment in a file."""
    loaded = load_environment(file)
    return loaded.server_class() if isinstance(loaded, Environment) else loaded


def _is_own_server(value: Any, module: ModuleType) -> TypeGuard[ServerClass]:
    is_server = isinstance(value, type) and issubclass(value, SimpleResourcesServer)
    return is_server and value.__module__ == module.__name__


def import_user_file(path: Path) -> ModuleType:
    """Import a Python file of the user once; its neighbours can be imported by their bare names, as in a script."""
    name = f"nemo_gym_environments.{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _being_loaded(path):
            spec.loader.exec_module(module)
    except ConfigError as error:
        sys.modules.pop(name, None)
        if (line := _line_in(path, error)) == "?":
            raise
        raise ConfigError(f"{path}:{line}: {error}", hint=error.hint) from error
    except Exception as error:
        sys.modules.pop(name, None)
        line = _line_in(path, error)
        raise ConfigError(f"{path}:{line}: {type(error).__name__}: {error}", hint="correct the file") from error
    return module


def _line_in(path: Path, error: BaseException) -> int | str:
    line: int | str = getattr(error, "lineno", None) or "?"  # of a syntax error
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@contextmanager
def _being_loaded(path: Path) -> Iterator[None]:
    token = _loading.set(path)
    try:
        yield
    finally:
        _loading.reset(token)


def refuse_while_loading() -> None:
    """Refuse to collect while an environment's file is being imported: it would start a collection in every process."""
    if (path := _loading.get()) is not None:
        raise ConfigError(
            f"{path} collects rollouts when it is imported",
            hint='put that part below: if __name__ == "__main__":',
        )


def hosting_blocks(name: str, settings: dict[str, Any], *, agent: str, max_steps: int | None) -> dict[str, Any]:
    """The configuration of a resources server and an agent for it, whose model is the policy."""
    working: dict[str, Any] = {
        "entrypoint": "app.py",
        "resources_server": {"type": RESOURCES_SERVERS, "name": name},
        "model_server": {"type": RESPONSES_API_MODELS, "name": POLICY_MODEL},
        **({"max_steps": max_steps} if max_steps else {}),
    }
    served = {"entrypoint": "app.py", "domain": "other", **settings}
    return {
        name: {RESOURCES_SERVERS: {ENVIRONMENT_FILE: served}},
        f"{name}_agent": {RESPONSES_API_AGENTS: {agent: working}},
    }
