"""Front door: prompt templates. The rendering is in ``nemo_gym.rollouts.tasks``."""

import json
import logging
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from nemo_gym.config.locate import find_readable, readable_candidates
from nemo_gym.config_types import BaseNeMoGymCLIConfig, ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import replacing
from nemo_gym.io.yaml_text import read_yaml
from nemo_gym.rollouts.store.output import check_derived
from nemo_gym.rollouts.tasks import Message, PromptConfig, conflict, has_input, read_tasks, render, with_prompt

logger = logging.getLogger(__name__)

__all__ = [
    "MaterializePromptsConfig",
    "PromptConfig",
    "apply_prompt_to_row",
    "fill_prompt",
    "load_prompt_config",
    "materialize_prompts",
    "validate_prompt_compatibility",
]


class MaterializePromptsConfig(BaseNeMoGymCLIConfig):
    """Fill a prompt template with the fields of each row of a file, and save the rows."""

    input_jsonl_fpath: str = Field(
        description="File with one JSON object per line, without responses_create_params.input."
    )
    prompt_config: str = Field(description="YAML file with a user: template and optionally a system: template.")
    output_jsonl_fpath: str = Field(description="File to write; its folder is created if necessary.")


def load_prompt_config(path: str) -> PromptConfig:
    """Read a template file. A relative path is looked for in the current directory, then in the installation."""
    file = _readable(path, what="prompt config")
    return _parsed(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _parsed(file: Path, _changed: int) -> PromptConfig:
    """The template in a file, read again only after the file has changed."""
    try:
        content = read_yaml(file.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from None
    return PromptConfig.model_validate(content)


# For tests, which count how often a file is read.
load_prompt_config.cache_clear = _parsed.cache_clear  # type: ignore[attr-defined]


def fill_prompt(config: PromptConfig, row: dict[str, Any]) -> list[Message]:
    """The messages of the template, filled with the fields of a row."""
    return render(config, row)


def apply_prompt_to_row(row: dict[str, Any], config: PromptConfig) -> dict[str, Any]:
    """A copy of the row with the filled template as its input."""
    return with_prompt(row, render(config, row))


def validate_prompt_compatibility(rows: Sequence[dict[str, Any]], config: PromptConfig) -> None:  # noqa: ARG001
    """Raise an error if rows already have an input, which the template would replace."""
    if numbers := [number for number, row in enumerate(rows) if has_input(row)]:
        raise conflict(numbers)


def materialize_prompts(input_jsonl_fpath: str, prompt_config: str, output_jsonl_fpath: str) -> None:
    """Write the rows of a file with the template filled in, all of them or none."""
    prompt = load_prompt_config(prompt_config)
    used = str(_readable(prompt_config, what="prompt config").absolute())
    tasks, output = _readable(input_jsonl_fpath, what="input file"), Path(output_jsonl_fpath)
    check_derived(output, [tasks, Path(used)])
    rows = [task.fields for task in read_tasks(tasks)]
    validate_prompt_compatibility(rows, prompt)
    with replacing(output) as file:
        for row in rows:
            filled = apply_prompt_to_row(row, prompt) | {"prompt_config_used": used}
            file.write(json.dumps(filled).encode() + b"\n")
    logger.info("Wrote %d rows to %s", len(rows), output)


def _readable(path: str, *, what: str) -> Path:
    found = find_readable(path)
    if found is None:
        tried = ", ".join(map(str, readable_candidates(path)))
        raise ConfigPathNotFoundError(f"{what} {path!r} does not exist (looked for {tried})")
    return found


def __getattr__(name: str) -> Any:
    """Console scripts written for older versions import the command from here."""
    if name != "materialize_prompts_cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is the command ng_materialize_prompts now", DeprecationWarning, stacklevel=2)
    return import_module("nemo_gym.cli").materialize_prompts
