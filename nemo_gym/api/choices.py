"""What ``collect`` may be given as environment, agent and tasks, and the configuration that follows from it.

An environment is the name of a shipped one, a folder, a configuration file, a Python file, a server class, or an
``Environment``. An agent is the name of a server or of a program, or a function. Tasks are a file, dictionaries,
anything that yields dictionaries (such as a Hugging Face dataset), or the name of one of the environment's datasets.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, TypeGuard

from omegaconf import DictConfig

from nemo_gym.api.environment import Environment
from nemo_gym.api.environment_file import ServerClass, environment_name, hosting_blocks, load_environment
from nemo_gym.api.functions import AgentFunction, ModelFunction, function_agent, function_model
from nemo_gym.api.models import named_model
from nemo_gym.api.session_functions import SessionFunction, session_agent, takes_session
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config.addresses import server_names
from nemo_gym.config.keys import (
    POLICY_MODEL,
    PROGRAM_AGENT,
    RESOURCES_SERVERS,
    RESPONSES_API_AGENTS,
    RESPONSES_API_MODELS,
)
from nemo_gym.config.locate import find_readable
from nemo_gym.config.short_names import find_environment
from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.io.json import encode_json
from nemo_gym.programs.program import is_function_place, ready_made_programs

EnvironmentSource = str | Path | Environment | ServerClass
AgentSource = str | AgentFunction | SessionFunction
TaskSource = str | Path | Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]

CONFIGURATIONS: Final = (".yaml", ".yml")


@dataclass(slots=True)
class Choice:
    """What the configuration gets: files, keys, and the server classes that exist only in this process."""

    config_paths: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, type] = field(default_factory=dict)
    environment: Environment | None = None  # one that has tasks of its own

    def add(self, other: "Choice") -> str | None:
        """Add what another choice brings, and return the name of the first server that it describes."""
        self.config_paths += other.config_paths
        self.values |= other.values
        self.classes |= other.classes
        return next(iter(other.classes), None)


def choose_environment(given: EnvironmentSource) -> Choice:
    """The configuration of an environment with its agent."""
    if isinstance(given, str | Path):
        return _from_text(given)
    if isinstance(given, Environment):
        return _hosted(given, given.name or (environment_name(given.file) if given.file else "environment"))
    if is_server_class(given):
        name = given.__name__.lower()
        return Choice(values=hosting_blocks(name, {}, agent="simple_agent", max_steps=None), classes={name: given})
    raise ConfigError(
        f"{given!r:.80} is not an environment",
        hint="give the name of one, a folder, a .yaml or .py file, a server class, or a nemo_gym.Environment",
    )


def is_server_class(given: Any) -> TypeGuard[ServerClass]:
    """Whether something is the class of a resources server."""
    return isinstance(given, type) and issubclass(given, SimpleResourcesServer)


def _from_text(given: str | Path) -> Choice:
    path = Path(given)
    if path.suffix == ".py":
        loaded = load_environment(path)
        if isinstance(loaded, Environment):
            return _hosted(loaded, loaded.name)
        file = {"file": str(find_readable(path) or path)}
        return Choice(values=hosting_blocks(environment_name(path), file, agent="simple_agent", max_steps=None))
    if path.suffix in CONFIGURATIONS:
        return Choice([str(given)])
    return Choice([find_environment(str(given))])


def _hosted(environment: Environment, name: str) -> Choice:
    file = {"file": str(environment.file)} if environment.file else {}
    values = hosting_blocks(name, file, agent=environment.agent, max_steps=environment.max_steps)
    return Choice(values=values, classes={name: environment.server_class()}, environment=environment)


# ---- models ----------------------------------------------------------------------------------------------------------
def choose_model(
    given: str | ModelFunction, *, base_url: str | None, api_key: str | None, settings: Mapping[str, Any] | None
) -> Choice:
    """The configuration of a model server."""
    if isinstance(given, str):
        named = named_model(given, base_url=base_url, api_key=api_key, settings=settings)
        return Choice([named.config_path], named.values)
    if not callable(given):
        raise ConfigError(
            f"{given!r:.80} is not a model",
            hint='give its name, such as "local" or "openai:NAME", or a function that takes a request',
        )
    block = {POLICY_MODEL: {RESPONSES_API_MODELS: {"function": {"entrypoint": "app.py", **(settings or {})}}}}
    return Choice(values=block, classes={POLICY_MODEL: function_model(given)})


# ---- agents ----------------------------------------------------------------------------------------------------------
def choose_agent(given: AgentSource | None, config: DictConfig) -> str:
    """The name of the agent among those of a configuration."""
    known = server_names(config, RESPONSES_API_AGENTS)
    if given is not None and not isinstance(given, str):
        raise ConfigError(
            f"{given!r:.80} is not an agent", hint="give the name of one, or async def agent(task, model, tools)"
        )
    if isinstance(given, str):
        if given not in known:
            raise ConfigError(f"there is no agent {given!r}", hint=did_you_mean(given, known, available="Agents"))
        return given
    if len(known) == 1:
        return known[0]
    problem = "several agents" if known else "no agent"
    raise ConfigError(f"the environment has {problem}", hint=f"choose one with agent=: {', '.join(known)}")


def function_choice(agent: AgentFunction | SessionFunction, config: DictConfig) -> Choice:
    """The configuration of an agent that calls a function, in place of the environment's own agent."""
    name = f"{agent.__name__}_agent"
    server = session_agent(agent) if takes_session(agent) else function_agent(agent)
    return Choice(values={name: _agent_block("function", {}, config)}, classes={name: server})


def program_name(agent: Any) -> str | None:
    """What an agent is called that is a ready-made program, a YAML file with one, or ``FILE.py:FUNCTION``."""
    if not isinstance(agent, str):
        return None
    if is_function_place(agent):
        return agent.rpartition(":")[2]
    return Path(agent).stem if agent in ready_made_programs() or agent.endswith(CONFIGURATIONS) else None


def program_choice(agent: str, name: str, config: DictConfig) -> Choice:
    """The configuration of a program as agent, in place of the environment's own agent."""
    settings = {"function" if is_function_place(agent) else "program": agent}
    return Choice(values={name: _agent_block(PROGRAM_AGENT, settings, config)})


def _agent_block(implementation: str, settings: Mapping[str, Any], config: DictConfig) -> dict[str, Any]:
    """An agent for the one resources server of a configuration, whose model is the policy."""
    servers = server_names(config, RESOURCES_SERVERS)
    if len(servers) != 1:
        raise ConfigError(
            f"this agent needs one resources server, and the environment has {len(servers)}",
            hint="use an environment with one resources server",
        )
    refs = {
        "resources_server": {"type": RESOURCES_SERVERS, "name": servers[0]},
        "model_server": {"type": RESPONSES_API_MODELS, "name": POLICY_MODEL},
    }
    agents = [config[each][RESPONSES_API_AGENTS] for each in server_names(config, RESPONSES_API_AGENTS)]
    # The tasks of an environment are listed with its own agent.
    datasets = [each for servers in agents for server in servers.values() for each in server.get("datasets") or ()]
    block = {"entrypoint": "app.py", **refs, **settings, "datasets": datasets}
    return {RESPONSES_API_AGENTS: {implementation: block}}


# ---- tasks -----------------------------------------------------------------------------------------------------------
def task_file(
    given: TaskSource | None,
    *,
    environment: Environment | None,
    config: DictConfig,
    agent: str,
    folder: Path,
    limit: int | None = None,
) -> Path:
    """The file with the tasks. Tasks that are not in a file are written to one in ``folder``, named by its content.

    ``limit`` is how many of those are needed, because a generator need not end.
    """
    datasets = own_datasets(config, agent)
    if given is None and environment is None:
        given = next((name for name in ("example", "validation", "train", "benchmark") if name in datasets), None)
        if given is None:
            raise ConfigError(f"{agent} has no tasks of its own", hint="give tasks=: a file or dictionaries (--input)")
    if isinstance(given, str) and given in datasets:
        return _dataset_file(given, datasets[given], agent)
    if isinstance(given, str | Path):
        found = find_readable(given)
        if found is None:
            raise ConfigError(
                f"tasks: {given} is neither a file nor a dataset of {agent}",
                hint=f"its datasets are: {', '.join(datasets) or 'none'}",
            )
        return found
    if given is not None and not isinstance(given, Iterable) and not callable(given):
        raise ConfigError(f"tasks: {given!r:.80} is not a file, and yields nothing", hint="give a path or dictionaries")
    source = environment or Environment()
    needed = limit if isinstance(limit, int) and limit > 0 else None  # anything else is refused later
    written = write_tasks(islice(source.rows(given), needed), folder)
    if not written.stat().st_size:
        raise ConfigError(
            f"the environment {source.name or agent} has no tasks",
            hint="write some: Environment(tasks=[{'prompt': …}]), or give others: tasks= in Python, --input on the "
            "command line",
        )
    return written


def _dataset_file(kind: str, path: str, agent: str) -> Path:
    found = find_readable(path)
    if found is None:
        raise ConfigError(
            f"the {kind} dataset of {agent} does not exist yet: {path}", hint="ng_prefetch <environment> makes it"
        )
    return found


def own_datasets(config: DictConfig, agent: str) -> dict[str, str]:
    """The files of an agent's datasets by type; the first of each type counts."""
    (implementation,) = config[agent][RESPONSES_API_AGENTS].values()
    listed = implementation.get("datasets") or ()
    return {str(each["type"]): str(each["jsonl_fpath"]) for each in reversed(listed)}


def write_tasks(rows: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows to a file whose name is the digest of its content, so that the same tasks are the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = blake2b(digest_size=10)
    with NamedTemporaryFile(dir=folder, delete=False) as file:
        try:
            for number, row in enumerate(rows, start=1):
                line = _line(row, number)
                digest.update(line)
                file.write(line)
        except BaseException:
            Path(file.name).unlink()
            raise
    return Path(file.name).replace(folder / f"{digest.hexdigest()}.jsonl")


def _line(row: Mapping[str, Any], number: int) -> bytes:
    try:
        return encode_json(row) + b"\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {number} can't be written as JSON: {error}") from None
