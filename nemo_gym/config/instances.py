"""The servers that a configuration describes, as values that the rest of the program works with.

A block that was meant to be a server but is not valid (a field is wrong, the server type is misspelt) is an error, or
a warning if the configuration allows it. A reference ``{type: ..., name: ...}`` must name an existing server. Folder
names and entrypoints may not point outside the server folders.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.config.interpolation import find_unresolved, resolve, unresolved_error
from nemo_gym.config.keys import (
    ERROR_ON_ALMOST_SERVERS,
    INHERIT_FROM,
    RESOURCES_SERVERS,
    RESPONSES_API_MODELS,
    SERVER_TYPES,
)
from nemo_gym.config.locate import Locator, server_directory
from nemo_gym.config.servers import (
    EnvironmentServerInstanceConfig,
    Isolation,
    ServerInstanceConfig,
    blocks,
    explain,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)
from nemo_gym.errors import (
    AlmostServerError,
    ConfigError,
    NoServerInstancesError,
    ServerRefNotFoundError,
    did_you_mean,
    nearest,
)
from nemo_gym.schemas.refs import ServerRef

logger = logging.getLogger(__name__)

_FUNCTION: Final = re.compile(r".+\.py:\w+")  # an entrypoint such as my_agent.py:solve
_USUAL_ENTRYPOINT: Final = "app.py"


def check_references(
    servers: Sequence[ServerInstanceConfig],
    *,
    moved: Mapping[str, list[str]],
    locator: Locator,
    others: Collection[str] = (),
) -> None:
    """Refuse references to servers that do not exist. One error lists all of them.

    ``others`` are the top-level keys of the configuration, including those that are not servers.
    """
    names: dict[str, list[str]] = {}
    for server in servers:
        names.setdefault(server.SERVER_TYPE, []).append(server.name)
    problems = []
    for server in servers:
        root = f"{server.name}.{server.SERVER_TYPE}.{server.implementation}"
        for field, ref in find_references(server.get_inner_run_server_config_dict()):
            # Deeper down, a server's own keys may merely look like references.
            if "." not in field and ref.name not in names.get(ref.type, []):
                problem = f"server '{server.name}', field '{field}': {ref.type}/'{ref.name}' is not defined. "
                known = _advice(ref, names.get(ref.type, []), moved)
                if ref.name in others:
                    known = f"{locator.at(ref.name)}'{ref.name}' exists, but it is not a server of that type."
                problems.append(locator.at(f"{root}.{field}") + problem + known)
    if problems:
        hint = "correct the name, or add the file that defines the server to config_paths"
        if RESPONSES_API_MODELS not in names:
            hint += "; --model local, openai:NAME, anthropic:NAME or vllm:NAME adds a model"
        raise ServerRefNotFoundError("\n".join(problems), hint=hint)


def find_references(value: Any, field: str = "") -> Iterator[tuple[str, ServerRef]]:
    """All references below a value, each with the dotted name of its field."""
    if ref := is_server_ref(value):
        yield field, ref
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from find_references(child, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from find_references(child, f"{field}[{index}]")


def _advice(ref: ServerRef, known: list[str], moved: Mapping[str, list[str]]) -> str:
    if targets := moved.get(ref.name):
        return f"'{INHERIT_FROM}' moved it to {' and '.join(map(repr, targets))}; refer to that name."
    return did_you_mean(ref.name, known, available=f"Available {ref.type}")


@dataclass(frozen=True, slots=True)
class AlmostServer:
    """A block that names a server type and an entrypoint, and what is wrong with it."""

    name: str
    error: ValidationError

    def describe(self, locator: Locator) -> str:
        """A title and one line for each mistake."""
        place = locator.find(self.name)
        title = f"Almost-Server Detected: '{self.name}'" + (f" ({place})" if place else "")
        lines = dict.fromkeys(explain(error) for error in self.error.errors(include_url=False, include_input=False))
        return "\n".join([title, *(f"  {line}" for line in lines), "  This server will NOT be started."])


def read_servers(config: DictConfig, *, locator: Locator, strict: bool) -> list[ServerInstanceConfig]:
    """The valid servers of a configuration. Almost-servers are an error if ``strict``, otherwise a logged warning."""
    servers: list[ServerInstanceConfig] = []
    almost: list[AlmostServer] = []
    for name, block in blocks(config):
        server, error = maybe_get_server_instance_config(name, block)
        if server is not None:
            servers.append(server)
        elif error is not None and is_almost_server(block):
            _check_resolved(name, block, error, locator)
            almost.append(AlmostServer(name, error))
        elif (misspelt := _misspelt_type(block)) is not None:
            near = nearest(misspelt, SERVER_TYPES)[0]
            place = locator.at(f"{name}.{misspelt}")
            raise AlmostServerError(
                f"{place}'{name}' looks like a server, but '{misspelt}' is not a server type",
                hint=f"did you mean '{near}'?",
            )
    if almost:
        _report(almost, locator, strict=strict)
    return servers


def _misspelt_type(block: DictConfig) -> str | None:
    """The key of a block that resembles a server type and has a server's content, if there is one."""
    content = OmegaConf.to_container(block, resolve=False)  # resolving could fail
    assert isinstance(content, dict)
    for key, implementations in content.items():
        if not isinstance(key, str) or key in SERVER_TYPES or not isinstance(implementations, dict):
            continue
        inner = implementations.values()
        if nearest(key, SERVER_TYPES) and any(isinstance(one, dict) and "entrypoint" in one for one in inner):
            return key
    return None


def _check_resolved(name: str, block: DictConfig, error: ValidationError, locator: Locator) -> None:
    """Raise a specific error when a value is invalid only because its ``${...}`` cannot be resolved."""
    wrong = {".".join(map(str, [name, *details["loc"]])) for details in error.errors()}
    problems = [problem for problem in find_unresolved(block, name) if problem.key in wrong]
    if problems:
        raise unresolved_error(problems, locator=locator)


def _report(almost: Sequence[AlmostServer], locator: Locator, *, strict: bool) -> None:
    text = "Configuration Warnings: Almost-Servers Detected\n\n" + "\n\n".join(a.describe(locator) for a in almost)
    if strict:
        raise AlmostServerError(
            text, hint=f"correct these blocks, or pass '++{ERROR_ON_ALMOST_SERVERS}=false' to continue without them"
        )
    logger.warning("%s", text)


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """One server of a Gym. ``settings`` is the resolved input of its configuration class, including ``name``."""

    name: str
    server_type: str
    implementation: str
    entrypoint: str
    host: str
    port: int
    num_workers: int | None
    isolation: Isolation | None
    settings: dict[str, Any]

    @property
    def directory(self) -> Path:
        """The folder that holds the implementation."""
        return server_directory(self.server_type, self.implementation)


def read_instances(config: DictConfig) -> list[ServerInstance]:
    """All servers of a parsed configuration, in order. A value that can't be resolved is an error."""
    locator = Locator.of(config)
    found = []
    for name, block in blocks(config):
        server, _ = maybe_get_server_instance_config(name, block)
        # A relay is not started: whoever calls it reaches its agent.
        if server is not None and not (isinstance(server, EnvironmentServerInstanceConfig) and server.is_relay):
            found.append(_instance(server, block, locator))
    return found


def require_instances(config: DictConfig) -> list[ServerInstance]:
    """All servers of a parsed configuration; having none is an error."""
    if instances := read_instances(config):
        return instances
    raise NoServerInstancesError(
        "the configuration defines no servers, so there is nothing to run",
        hint="name an environment and a model (calculator --model local), or config files: "
        '"+config_paths=[resources_servers/<name>/configs/<name>.yaml,'
        'responses_api_models/<name>/configs/<name>.yaml]"',
    )


def _check_stays_inside(key: str, implementation: str, entrypoint: str, locator: Locator) -> None:
    """A configuration from elsewhere must not be able to run files outside the server folders."""
    for what, name, may_have_folders in (("folder", implementation, False), ("entrypoint", entrypoint, True)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or (len(path.parts) > 1 and not may_have_folders):
            raise ConfigError(
                f"{locator.at(key)}the {what} '{name}' points outside the server folders",
                hint="name a server folder, and a Python file inside it",
            )


def _instance(server: ServerInstanceConfig, block: DictConfig, locator: Locator) -> ServerInstance:
    kind, implementation = server.SERVER_TYPE, server.implementation
    key = f"{server.name}.{kind}.{implementation}"
    settings: dict[str, Any] = resolve(block[kind][implementation], key=key, locator=locator)
    if kind != RESOURCES_SERVERS:
        settings.pop("domain", None)
    common = server.get_inner_run_server_config()
    entrypoint, function = common.entrypoint, _FUNCTION.fullmatch(common.entrypoint)
    if function is not None:  # of the user's own, wherever it is; the server itself is the usual one
        entrypoint, settings["function"] = _USUAL_ENTRYPOINT, common.entrypoint
    _check_stays_inside(key, implementation, entrypoint, locator)
    if common.host is None or common.port is None:
        raise ConfigError(
            f"{locator.at(key)}server '{server.name}' has no host and port",
            hint=f"set '{key}.host' and '{key}.port', or parse the configuration, which fills them in",
        )
    return ServerInstance(
        name=server.name,
        server_type=kind,
        implementation=implementation,
        entrypoint=entrypoint,
        host=common.host,
        port=common.port,
        num_workers=common.num_workers,
        isolation="process" if (common.num_workers or 1) > 1 else common.isolation,
        settings={**settings, "name": server.name},
    )
