"""Prompt templates: the fields of a task in, the messages of a conversation out. Pure.

Templates are Python format strings over the top-level fields of a row: ``{question}``, ``{choices[0]}``,
``{price:.2f}``. Braces meant literally are doubled. What a field contains is inserted as it is and is never itself read
as a template.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

Message = dict[str, str]


class PromptConfig(BaseModel):
    """The template of a conversation: what the user says, after what the system says, if anything."""

    user: str
    system: str | None = None


class PromptError(ConfigError, ValueError):
    """A template that can't be filled, or rows that must not be filled."""


class MissingFieldError(ConfigError, KeyError):
    """A template names a field that a row does not have."""


def render(prompt: PromptConfig, row: Mapping[str, Any]) -> list[Message]:
    """The messages that the template makes of a row."""
    parts = (("system", prompt.system), ("user", prompt.user))
    return [{"role": role, "content": _fill(text, row)} for role, text in parts if text is not None]


def with_prompt(row: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """A copy of the row whose input is these messages; other parameters of the request are kept."""
    given = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    params = {**given, "input": messages} if isinstance(given, dict) else {"input": messages}
    return {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: params}


def has_input(row: Mapping[str, Any]) -> bool:
    """Whether the row already says what to send, which a template would overwrite."""
    params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    return isinstance(params, dict) and bool(params.get("input"))


def conflict(numbers: Iterable[int]) -> PromptError:
    """The error for rows that have both an input of their own and a template."""
    return PromptError(
        f"rows {list(numbers)} (counted from 0) already have {RESPONSES_CREATE_PARAMS_KEY_NAME}.input, "
        "which the prompt template would replace",
        hint="remove the input from these rows, or collect without a prompt config",
    )


def _fill(template: str, row: Mapping[str, Any]) -> str:
    try:
        return template.format_map(row)
    except KeyError as error:
        raise MissingFieldError(
            f"the prompt template names the field {error.args[0]!r}, but the row has only {sorted(row)}",
            hint="correct the name in the template; braces that are meant literally are doubled: {{ }}",
        ) from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise PromptError(f"the prompt template {template!r} can't be filled: {error}") from error
