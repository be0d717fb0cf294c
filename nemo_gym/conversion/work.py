"""What an agent did, as people ask for it: the final text, chat messages, tool calls.

``AgentResponse`` is what a verifier gets as ``response``, and what a loaded rollout is read with. It wraps the JSON of
a response and converts nothing until it is read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nemo_gym.conversion.chat_history import ResponsesConverterState, items_to_messages
from nemo_gym.conversion.parts import BEGIN, END, without_reasoning
from nemo_gym.schemas.responses import NeMoGymResponse

Items = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a model; ``output`` is what the tool returned, None if it was never run."""

    name: str
    arguments: Any  # the parsed JSON; the text itself if it is not JSON
    output: str | None
    call_id: str = ""


class AgentResponse:
    """The work of an agent on one task.

    Everything that the Responses API defines can be read as well: ``response.output_text``, ``response.output``,
    ``response["usage"]``.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @property
    def items(self) -> list[dict[str, Any]]:
        """The output items as plain JSON."""
        output = self._fields.get("output")
        return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []

    @cached_property
    def text(self) -> str:
        """The text of the last message: what the agent finally answers."""
        return final_text_of(self.items)

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The output as chat messages, tool results included."""
        return chat_messages(self.items)

    @cached_property
    def tool_calls(self) -> list[ToolCall]:
        """All tool calls in order."""
        return tool_calls_of(self.items)

    @cached_property
    def _model(self) -> NeMoGymResponse:
        return NeMoGymResponse.model_validate(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model, name)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the JSON, as of a dictionary."""
        return self._fields.get(name, default)


def final_text_of(items: Items) -> str:
    """The text of the last message by the model, without reasoning; empty if it wrote none."""
    for item in reversed(items):
        if item.get("type", "message") == "message" and item.get("role", "assistant") == "assistant":
            return without_reasoning(text_of(item.get("content")), (BEGIN, END))
    return ""


def text_of(content: Any) -> str:
    """The text of a message, whether its content is text or a list of parts; refusals and images have none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") != "refusal"]
    return "".join(text for text in texts if isinstance(text, str))


def chat_messages(items: Items) -> list[dict[str, Any]]:
    """Items as chat messages, with reasoning in a field of its own (``reasoning_content``)."""
    return items_to_messages(items, ResponsesConverterState(past_reasoning="reasoning_content"))


def prompt_items(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation that a request begins with, as items."""
    given, instructions = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    return [{"role": "system", "content": instructions}, *items] if instructions else items


def tool_calls_of(items: Items) -> list[ToolCall]:
    """The function calls among items, each with its result."""
    results = {item.get("call_id"): item.get("output") for item in items if item.get("type") == "function_call_output"}
    return [
        ToolCall(
            name=str(item.get("name")),
            arguments=_parsed(item.get("arguments")),
            output=_text(results.get(item.get("call_id"))),
            call_id=str(item.get("call_id")),
        )
        for item in items
        if item.get("type") == "function_call"
    ]


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def _text(output: Any) -> str | None:
    return output if output is None or isinstance(output, str) else json.dumps(output, ensure_ascii=False)
