"""Reads the parameters of a command into a validated object.

Parameters come from the command line and ``env.yaml``; commands that host or describe servers also read the files in
``config_paths``. All mistakes are collected and shown at once, one line per parameter, with what was expected and what
to type. Messages never repeat values, because they may be secrets.

The parameter classes of the smaller commands are defined here, and their field descriptions are shown as help. Larger
commands (collection, evaluation, data) define their own classes.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from nemo_gym import CACHE_DIR
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.manual import removed_from, type_text
from nemo_gym.config import keys
from nemo_gym.config.interpolation import interpolated_roots, plain_data
from nemo_gym.config.locate import COMMAND_LINE, ConfigSource, find_readable
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.config.parse import ParsedConfig, check_parameters
from nemo_gym.config.sources import load_source, merge_sources
from nemo_gym.errors import ConfigError, UsageError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, set_global_config_dict
from nemo_gym.io.process import garbage_collection_paused

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


Parameters = TypeVar("Parameters", bound=BaseModel)


def read_parameters(described: type[Parameters], arguments: Arguments) -> Parameters:
    """Read the parameters of a command that needs no configuration files."""
    typed = ConfigSource(COMMAND_LINE, parse_overrides(arguments.overrides, arguments.pairs))
    path = find_readable(keys.ENV_FILE_NAME)
    sources = [load_source(path, label=keys.ENV_FILE_NAME)] if path else []
    declared = frozenset(str(key) for source in sources for key in source.data)
    config = merge_sources([*sources, typed])
    _refuse_unknown(ParsedConfig(config, declared | interpolated_roots(typed.data), tuple(typed.data)), described)
    return build(described, config)


def read_configuration(
    described: type[BaseModel] | None, arguments: Arguments, *, needs_model: bool = True
) -> DictConfig:
    """Read the whole configuration of a command and make it the configuration of this process.

    Without ``described`` any key is allowed. A command that needs no model gets a stand-in for it, so that files that
    refer to a model are complete.
    """
    no_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    wanted = GlobalConfigDictParserConfig(
        overrides=list(arguments.overrides),
        pairs=dict(arguments.pairs),
        initial_global_config_dict=None if needs_model else no_model,
    )
    with garbage_collection_paused():
        parsed = GlobalConfigDictParser().parse_sources(wanted)
    if described is not None:
        _refuse_unknown(parsed, described)
    if parsed.config.get("verbose"):
        console.show_details()
    set_global_config_dict(parsed.config)
    return parsed.config


def build(described: type[Parameters], config: DictConfig) -> Parameters:
    """Select a command's own parameters from a configuration and validate them."""
    if config.get("verbose"):
        console.show_details()
    names = parameter_names(described)
    values = {str(name): value for name, value in plain_data(config).items() if name in names}
    try:
        return described.model_validate(values)
    except ValidationError as error:
        raise invalid(described, error) from None


def parameter_names(described: type[BaseModel]) -> set[str]:
    """The names of the parameters on the command line."""
    return {field.alias or name for name, field in described.model_fields.items()} - removed_from(described).keys()


def invalid(described: type[BaseModel], error: ValidationError) -> UsageError:
    """One error for everything that is missing or invalid."""
    details = error.errors(include_url=False, include_input=False)
    missing = [str(detail["loc"][0]) for detail in details if detail["type"] == "missing" and len(detail["loc"]) == 1]
    wrong = [detail for detail in details if not (detail["type"] == "missing" and len(detail["loc"]) == 1)]
    lines = [f"missing parameters: {', '.join(missing)}"] if missing else []
    if wrong:
        lines += ["invalid parameters:", *_explained(described, wrong)]
    typed = " ".join(f"+{name}=<value>" for name in missing)
    hint = f"add {typed}" if typed else "--help shows what each parameter takes"
    return UsageError("\n".join(lines), hint=hint)


def check_prompt(path: str | None) -> None:
    """Raise an error that explains what is wrong with a prompt template file."""
    if path is None:
        return
    from nemo_gym.prompt import load_prompt_config  # noqa: PLC0415 - few commands need it

    try:
        load_prompt_config(path)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        reasons = "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}" for detail in details)
        raise ConfigError(
            f"{path} is not a prompt template ({reasons})",
            hint="it needs text under user:, and may have text under system:",
        ) from None


def _refuse_unknown(parsed: ParsedConfig, described: type[BaseModel]) -> None:
    names, removed = parameter_names(described), removed_from(described)
    elsewhere: dict[str, str] = getattr(described, "elsewhere", {})
    reasons = {name: f"the parameter {name} was removed" for name in removed}
    reasons |= {name: f"NeMo Gym 0.7.0 has the parameter {name}, which does not exist here" for name in elsewhere}
    if gone := [name for name in reasons if name in parsed.config]:
        advice = {**removed, **elsewhere}
        raise UsageError("\n".join(reasons[name] for name in gone), hint="; ".join(advice[name] for name in gone))
    try:
        check_parameters(parsed.given, fields=names, config=parsed.config, declared=parsed.declared)
    except ConfigError as error:
        raise UsageError(str(error), hint=error.hint) from None


# Which of several types pydantic tried; the names of keys look different.
_UNION_PART: Final = re.compile(r"(constrained-)?(int|float|str|bool|none)|literal\[.*\]")


def _explained(described: type[BaseModel], details: "Sequence[ErrorDetails]") -> list[str]:
    expected = {field.alias or name: type_text(field.annotation) for name, field in described.model_fields.items()}
    reasons: dict[str, list[str]] = {}
    for detail in details:
        name, *inside = map(str, detail["loc"] or ("all parameters",))
        reason = detail["msg"].removeprefix("Value error, ")
        if (detail["type"] in {"literal_error", "enum"} and not inside) or _UNION_PART.fullmatch(".".join(inside)):
            reason, inside = "the value is none of these", []  # pydantic would list them once more
        reasons.setdefault(name, []).append(f"{'.'.join(inside)}: {reason}" if inside else reason)
    return [_line(name, expected.get(name), texts) for name, texts in reasons.items()]


def _line(name: str, expected: str | None, reasons: Sequence[str]) -> str:
    kind = f" (expected {expected})" if expected else ""
    return f"  {name}{kind}: {'; '.join(dict.fromkeys(reasons))}"


ServerFolder = Annotated[
    str, StringConstraints(pattern=r"^(resources_servers|responses_api_agents|responses_api_models)/[A-Za-z0-9_]+/?$")
]


class HeadServerAddress(BaseModel):
    """Where the head server listens."""

    host: str
    port: int


class HeadServerConfig(BaseModel):
    """Where the head server listens."""

    head_server: HeadServerAddress = Field(
        default=HeadServerAddress(host=keys.LOOPBACK, port=keys.HEAD_SERVER_PORT),
        description="Where the head server listens: '+head_server={host: 127.0.0.1, port: 12000}'.",
    )


class EnvironmentsConfig(BaseModel):
    """Parameters of commands that use the servers' virtual environments."""

    uv_venv_dir: str | None = Field(
        default=None, description="Folder for the virtual environments of servers; by default the cache folder."
    )

    @property
    def environments(self) -> Path:
        """The folder that holds the virtual environments."""
        return Path(self.uv_venv_dir or CACHE_DIR)


class ConfigurationConfig(BaseModel):
    """Parameters of every command that reads a configuration."""

    model_config = ConfigDict(extra="allow")

    config_paths: list[str] = Field(
        default=[],
        description='Configuration files, later ones win: "+config_paths=[a.yaml,b.yaml]". Looked for in the working'
        " directory, then where the package is installed.",
    )
    error_on_almost_servers: bool = Field(
        default=True, description="Refuse blocks that look like a server but are not valid; false: only warn."
    )
    verbose: bool = Field(default=False, description="Show details of what is being done.")


class RunConfig(ConfigurationConfig, EnvironmentsConfig, HeadServerConfig):
    """The parameters of ``ng_run``, under the name that programs import."""

    default_host: str = Field(default=keys.LOOPBACK, description="Host of servers that do not set their own.")
    use_absolute_ip: bool = Field(
        default=False, description="Bind to this machine's network address, so that other machines can connect."
    )
    port_range_low: int = Field(
        default=keys.DEFAULT_PORT_RANGE[0], description="Lowest port for servers that do not set their own."
    )
    port_range_high: int = Field(
        default=keys.DEFAULT_PORT_RANGE[1], description="Highest port for servers that do not set their own."
    )
    nemo_gym_log_dir: str | None = Field(
        default=None, description="Also write the output of each server process to <dir>/<instance>.log."
    )
    skip_venv_if_present: bool = Field(
        default=False, description="Use a server's virtual environment as it is, without looking for missing packages."
    )
    dry_run: bool = Field(default=False, description="Start everything once, then stop.")
    policy_base_url: str | None = Field(default=None, description="Endpoint of the model; usually kept in env.yaml.")
    policy_api_key: str | None = Field(default=None, description="Key for that endpoint; usually kept in env.yaml.")
    policy_model_name: str | None = Field(default=None, description="Name of the model at that endpoint.")


class ValidateConfig(RunConfig):
    json_: bool = Field(default=False, alias="json", description="Print JSON instead of text.")


class PrefetchConfig(ConfigurationConfig, EnvironmentsConfig):
    hf_token: str | None = Field(default=None, description="Token for the hub; usually kept in env.yaml.")


class StatusConfig(HeadServerConfig):
    output_jsonl_fpath: str | None = Field(
        default=None, description="Show the running collection to this output, with all its shards, and no servers."
    )
    json_: bool = Field(default=False, alias="json", description="Print a JSON array instead of text.")


BLANK: Final = "blank"
ServerTemplate = Literal["blank", "verify_only", "tools", "stateful", "sandboxed", "judged", "multi_turn"]


class InitConfig(BaseModel):
    entrypoint: str | None = Field(
        default=None,
        description="The folder to create: resources_servers/<name>, environments/<name> (a configuration and data for "
        "an existing server) or benchmarks/<name> (with a prompt and a script that makes the data). Needed unless "
        "from= is given, which has its own name.",
    )
    from_: str | None = Field(
        default=None,
        alias="from",
        description="A .py file with an environment, to be written as a resources server: code, configuration, all its "
        "tasks as train data and the first five as examples. The file itself stays as it is.",
    )
    template: ServerTemplate = Field(
        default=BLANK,
        description="What a new resources server starts with. blank: a verify() for you to write. Each of the others "
        "is a whole small environment with data and tests. verify_only: an answer is extracted and compared. tools: "
        "tools without state. stateful: tools that change the state of the rollout, which is checked at the end. "
        "sandboxed: programs that the model writes are run. judged: another model scores the answer. multi_turn: the "
        "environment replies to what the model says, for several turns.",
    )


class TestAllConfig(EnvironmentsConfig):
    fail_on_total_and_test_mismatch: bool = Field(
        default=False, description="Also fail if a server has no README.md and was therefore not tested."
    )
    delete_venvs_after_each_test: bool = Field(
        default=False, description="Delete a server's virtual environment after its tests, to save space."
    )
    num_shards: int = Field(default=1, ge=1, description="Divide the servers into this many parts.")
    shard_index: int = Field(default=0, ge=0, description="Test only this part, counted from 0.")
    json_: bool = Field(
        default=False, alias="json", description="Print JSON instead of text; what pytest prints goes to stderr."
    )


class TestConfig(TestAllConfig):
    entrypoint: ServerFolder | None = Field(
        default=None,
        description="Folder of the server, for example resources_servers/my_thing; null: all servers.",
    )
    should_validate_data: bool = Field(
        default=False, description="Also check the example data of a resources server: five rows, metrics, rollouts."
    )


class CheckFolderConfig(BaseModel):
    entrypoint: str = Field(description="The folder, for example resources_servers/my_thing.")
    json_: bool = Field(default=False, alias="json", description="Print JSON instead of text.")


class CheckEnvironmentConfig(BaseModel):
    entrypoint: str | None = Field(
        default=None,
        description="The environment: its name, folder, .yaml or .py file; without it, all environments are checked.",
    )
    config: str | None = Field(
        default=None, description="The configuration to use; by default configs/<name>.yaml of the folder."
    )
    input_jsonl_fpath: str | None = Field(
        default=None,
        description="The rows to use; by default data/example.jsonl of the folder, or the tasks of the file.",
    )
    limit: int = Field(default=20, ge=1, description="Use at most this many rows.")
    attack: bool = Field(default=False, description="Attack the verifier, too: find out what is rewarded undeservedly.")
    json_: bool = Field(default=False, alias="json", description="Print a JSON array instead of text.")


class PipListConfig(EnvironmentsConfig):
    entrypoint: ServerFolder = Field(description="Folder of the server, for example resources_servers/my_thing.")
    format: Literal["columns", "freeze", "json"] = Field(default="columns", description="Layout of the list.")
    outdated: bool = Field(default=False, description="List only packages that have a newer version.")


class PrepareBenchmarkConfig(BaseModel):
    use_cached_prepared_benchmarks: bool = Field(default=False, description="Reuse data that already exists.")
    num_prepare_benchmark_processes: int = Field(
        default=1, ge=1, description="Number of benchmarks to prepare at once."
    )


class ListConfig(BaseModel):
    json_: bool = Field(default=False, alias="json", description="Print a JSON array instead of a table.")
    query: str | None = Field(default=None, description="Only entries whose name, domain or description matches.")
    name: str | None = Field(default=None, description="Show all details of this entry.")


class VersionConfig(BaseModel):
    json_: bool = Field(default=False, alias="json", description="Print JSON instead of text.")
