"""From what was typed to the parameters of a command, as a validated object.

Parameters come from the command line and ``env.yaml``; commands that host or describe servers also read the files in
``config_paths``. All mistakes are collected and shown at once, one line per parameter, with what was expected and what
to type. Values are never repeated in a message: they may be secrets.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from omegaconf import DictConfig
from pydantic import BaseModel, ValidationError

from nemo_gym.cli import console
from nemo_gym.cli.fields import type_text
from nemo_gym.cli.outcome import UsageError
from nemo_gym.config.files import load_source
from nemo_gym.config.interpolation import interpolated_roots, plain
from nemo_gym.config.keys import ENV_FILE_NAME
from nemo_gym.config.locate import COMMAND_LINE, Source
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.config.parameters import check_parameters
from nemo_gym.config.parse import ParsedConfig
from nemo_gym.config.paths import find_readable
from nemo_gym.config.sources import merge_sources
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, set_global_config_dict
from nemo_gym.servers.startup import garbage_collection_paused

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Parameters = TypeVar("Parameters", bound=BaseModel)


def read_parameters(described: type[Parameters], overrides: Sequence[str]) -> Parameters:
    """Read the parameters of a command that needs no configuration files."""
    typed = Source(COMMAND_LINE, parse_overrides(overrides))
    path = find_readable(ENV_FILE_NAME)
    sources = [load_source(path, label=ENV_FILE_NAME)] if path else []
    declared = frozenset(str(key) for source in sources for key in source.data)
    config = merge_sources([*sources, typed])
    _refuse_unknown(ParsedConfig(config, declared | interpolated_roots(typed.data), tuple(typed.data)), described)
    return build(described, config)


def read_configuration(
    described: type[BaseModel] | None, overrides: Sequence[str], *, needs_model: bool = True
) -> DictConfig:
    """Read the whole configuration of a command and make it that of this process.

    Without ``described`` any key may be typed. A command that needs no model gets a stand-in for it, so that files that
    refer to one are complete.
    """
    no_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    wanted = GlobalConfigDictParserConfig(
        overrides=list(overrides), initial_global_config_dict=None if needs_model else no_model
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
    """Take a command's own parameters out of a configuration and validate them."""
    if config.get("verbose"):
        console.show_details()
    names = parameter_names(described)
    values = {str(name): value for name, value in plain(config).items() if name in names}
    try:
        return described.model_validate(values)
    except ValidationError as error:
        raise invalid(described, error) from None


def parameter_names(described: type[BaseModel]) -> set[str]:
    """What the parameters are called on the command line."""
    return {field.alias or name for name, field in described.model_fields.items()}


def invalid(described: type[BaseModel], error: ValidationError) -> UsageError:
    """One error for all that is missing or wrong."""
    details = error.errors(include_url=False, include_input=False)
    missing = [str(detail["loc"][0]) for detail in details if detail["type"] == "missing" and len(detail["loc"]) == 1]
    wrong = [detail for detail in details if not (detail["type"] == "missing" and len(detail["loc"]) == 1)]
    lines = [f"missing parameters: {', '.join(missing)}"] if missing else []
    if wrong:
        lines += ["invalid parameters:", *_explained(described, wrong)]
    typed = " ".join(f"+{name}=<value>" for name in missing)
    hint = f"add {typed}" if typed else "--help shows what each parameter takes"
    return UsageError("\n".join(lines), hint=hint)


def _refuse_unknown(parsed: ParsedConfig, described: type[BaseModel]) -> None:
    names = parameter_names(described)
    try:
        check_parameters(parsed.given, fields=names, config=parsed.config, declared=parsed.declared)
    except ConfigError as error:
        raise UsageError(str(error), hint=error.hint) from None


def _explained(described: type[BaseModel], details: "Sequence[ErrorDetails]") -> list[str]:
    expected = {field.alias or name: type_text(field.annotation) for name, field in described.model_fields.items()}
    reasons: dict[str, list[str]] = {}
    for detail in details:
        name, *inside = map(str, detail["loc"] or ("all of them together",))
        reason = detail["msg"].removeprefix("Value error, ")
        reasons.setdefault(name, []).append(f"{'.'.join(inside)}: {reason}" if inside else reason)
    return [_line(name, expected.get(name), texts) for name, texts in reasons.items()]


def _line(name: str, expected: str | None, reasons: Sequence[str]) -> str:
    kind = f" (expected {expected})" if expected else ""
    return f"  {name}{kind}: {'; '.join(dict.fromkeys(reasons))}"
