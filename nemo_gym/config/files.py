"""Reads one YAML file into plain data, and turns everything that can be wrong with it into an error with a place.

The text of the file never appears in an error, because the line that is malformed may hold a secret.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from nemo_gym.config.locate import Source
from nemo_gym.errors import ConfigError

_QUICK_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
# What the parser quotes (aliases, anchors, tags) may be a secret that happens to start with *, & or !.
_NAMED: Final = re.compile(r"\b(alias|anchor|tag) '[^']*'")


def load_source(path: Path, *, label: str) -> Source:
    """The content of a configuration file. ``label`` is how the user named it."""
    return Source(label, load_yaml(path, label=label), path)


def load_yaml(path: Path, *, label: str) -> dict[Any, Any]:
    """A mapping from a YAML file: not resolved, duplicate keys refused, an empty file is an empty mapping."""
    text = _read(path, label)
    try:
        config = OmegaConf.create(text) if _is_mapping(text) else None
    except yaml.MarkedYAMLError as error:
        raise _malformed(error, label) from None
    except yaml.YAMLError:
        raise ConfigError(
            f"{label}: malformed YAML: a character that is not allowed", hint="remove control characters"
        ) from None
    except GrammarParseError as error:
        raise ConfigError(
            f"{label}: the value of '{error.full_key or error.key or '?'}' holds a malformed ${{...}} expression",
            hint="close every ${ with }, and write a literal ${ as \\${",
        ) from None
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{label}: the value of '{error.full_key or error.key or '?'}' is neither text, number, list nor mapping",
            hint="remove the YAML tag (!!...) in front of it",
        ) from None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{label}: the top level is not a mapping of keys to values", hint="write 'key: value' lines")
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return data


def _read(path: Path, label: str) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"{label}: can't be read ({error.strerror})", hint="check that it is a file and that you may read it"
        ) from None


def _is_mapping(text: str) -> bool:
    # A lone word is valid YAML, which OmegaConf would take for a key without a value.
    try:
        node = yaml.compose(text, Loader=_QUICK_LOADER)
    except yaml.YAMLError:
        return True  # reading it properly will say what is wrong
    return node is None or isinstance(node, yaml.MappingNode)


def _malformed(error: yaml.MarkedYAMLError, label: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    place = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
    reason = _NAMED.sub(r"\1", ", ".join(filter(None, (error.context, error.problem))) or "unreadable")
    return ConfigError(
        f"{place}: malformed YAML: {reason}",
        hint="correct that line; a YAML file is indented with spaces",
    )
