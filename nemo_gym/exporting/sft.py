"""Rollouts as conversations: messages with tools, tool calls and results; ``sharegpt``; rows of NeMo Gym's tutorial.

Content that the format can't hold (images in a table, items of unknown type) raises ``UnfitError``: the rollout is
dropped and counted, and never exported in part.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.chat_history import ResponsesConverterState, items_to_messages
from nemo_gym.conversion.chat_requests import options_to_chat
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.records import ExportedRollout
from nemo_gym.exporting.select import GENERAL, field_text

Row = dict[str, Any]
Messages = list[dict[str, Any]]
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_NOT_VALID: Final = "has items that are not valid"
_BY_MODEL: Final = ("gpt", "function_call")
_CALL_TAGS: Final = ("<tool_call>", "</tool_call>")
_SPEAKERS: Final = {"system": "system", "developer": "system", "user": "human", "assistant": "gpt"}


class PromptAndCompletion(NamedTuple):
    """The input of the model; and its output, with the results of its tools."""

    prompt: Messages
    completion: Messages


class UnfitError(ValueError):
    """A rollout that the format can't hold; the message is the reason."""


def input_items(rollout: ExportedRollout) -> list[dict[str, Any]]:
    """The input of the model, as items."""
    given, instructions = rollout.record.params.get("input"), rollout.record.params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise UnfitError("has no prompt")
    if not set(map(type, items)) <= {dict} or not isinstance(instructions, str | None):
        raise UnfitError("has a prompt that is not valid")
    return [*([{"role": "system", "content": instructions}] if instructions else []), *items]


def conversation(rollout: ExportedRollout, recipe: Recipe) -> PromptAndCompletion:
    """A rollout as chat messages."""
    prompt, completion = _messages(input_items(rollout), recipe), _messages(rollout.output, recipe)
    for message in completion:
        if message["role"] == "assistant":
            return PromptAndCompletion(prompt, completion)
    raise UnfitError("says nothing")


def prompt_messages(rollout: ExportedRollout, recipe: Recipe) -> Messages:
    """The input of the model, as chat messages."""
    return _messages(input_items(rollout), recipe)


def _messages(items: list[dict[str, Any]], recipe: Recipe) -> Messages:
    state = ResponsesConverterState(past_reasoning=recipe.reasoning)
    try:
        messages = items_to_messages(items, state)
        for message in messages:
            _tidy(message, recipe)
    except UnsupportedContentError:
        raise UnfitError("has content that a chat can't hold") from None
    except (KeyError, TypeError, AttributeError):
        raise UnfitError(_NOT_VALID) from None
    if state.lost:
        raise UnfitError(f"has {state.lost[0]}")
    return messages


def _tidy(message: dict[str, Any], recipe: Recipe) -> None:
    content = message["content"]
    if content is None:
        message["content"] = ""  # chat templates concatenate it with other text, which fails with None
    elif not isinstance(content, str):
        texts = [part["text"] for part in content if part["type"] == "text"]
        if len(texts) == len(content):
            message["content"] = "".join(texts)
        elif recipe.stored_as != "jsonl":
            raise UnfitError("has images or files, which a table can't hold")
    if message.pop("refusal", None) and not message["content"]:
        raise UnfitError("is a refusal")
    texts = [message["role"], message.get("tool_call_id", "")]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        texts += [call["id"], function["name"], function["arguments"]]
        if recipe.arguments == "object":
            function["arguments"] = _parsed(function["arguments"])
    if message["role"] not in _ROLES or set(map(type, texts)) != {str}:
        raise UnfitError(_NOT_VALID)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        raise UnfitError("has tool calls whose arguments are not JSON") from None


def _tools(rollout: ExportedRollout) -> list[dict[str, Any]] | None:
    given = rollout.record.params.get("tools")
    try:
        return options_to_chat({"tools": given}).options.get("tools") if given else None
    except (KeyError, TypeError, AttributeError):
        raise UnfitError("has tools that are not valid") from None


def tools_of(rollout: ExportedRollout, recipe: Recipe) -> dict[str, Any]:
    """The tools of a conversation as a field of its row; JSON text if the row becomes part of a table."""
    tools = _tools(rollout)
    if recipe.stored_as != "jsonl":
        return {"tools": json.dumps(tools) if tools else None}
    return {"tools": tools} if tools else {}


def sft_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """A conversation for supervised training."""
    if recipe.preset == "nemo":
        yield nemo_row(rollout.record.fields)
        return
    prompt, completion = conversation(rollout, recipe)
    row: Row = {"messages": prompt + completion}
    if recipe.shape == "prompt_completion":
        row = {"prompt": prompt, "completion": completion}
    yield row | tools_of(rollout, recipe) | (rollout.labels() if recipe.metadata else {})


def nemo_row(record: Mapping[str, Any]) -> Row:
    """A row as NeMo Gym's tutorial makes it: items of the response as they are."""
    output, reward = (record.get("response") or {}).get("output"), record.get("reward", 0)
    kind = field_text(record, "metadata.task_type")
    return {"messages": output, "reward": reward, "task_type": GENERAL if kind is None else kind}


def sharegpt_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """A conversation as LLaMA-Factory reads it: speakers take turns, calls and tools are JSON text."""
    turns: list[dict[str, str]] = []
    for message in itertools.chain(*conversation(rollout, recipe)):
        if not isinstance(message["content"], str):
            raise UnfitError("has images or files, which sharegpt can't hold")
        if message.get("tool_calls"):
            _add_turn(turns, "function_call", _call_text(message))
        else:
            _add_turn(turns, _SPEAKERS.get(message["role"], "observation"), message["content"])
    system = [turn["value"] for turn in turns if turn["from"] == "system"]
    tools = _tools(rollout)
    row: Row = {
        "conversations": _alternating([turn for turn in turns if turn["from"] != "system"]),
        "system": "\n".join(system),
        "tools": json.dumps([_with_properties(tool["function"]) for tool in tools]) if tools else "",
    }
    yield row | (rollout.labels() if recipe.metadata else {})


def _with_properties(function: dict[str, Any]) -> dict[str, Any]:
    """A tool with all the keys that the trainer reads without asking."""
    return {**function, "parameters": {"type": "object", "properties": {}, **(function.get("parameters") or {})}}


def _add_turn(turns: list[dict[str, str]], speaker: str, text: str) -> None:
    """Add a turn; results of calls that were made together are merged into one."""
    if turns and speaker == "observation" and turns[-1]["from"] == "observation":
        turns[-1]["value"] += "\n" + text
    else:
        turns.append({"from": speaker, "value": text})


def _alternating(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns up to the last one of the model; the trainer skips conversations whose speakers do not take turns."""
    while turns and turns[-1]["from"] not in _BY_MODEL:
        turns.pop()
    if any((turn["from"] in _BY_MODEL) != (place % 2 == 1) for place, turn in enumerate(turns)):
        raise UnfitError("has speakers who do not take turns, as they must in sharegpt")
    return turns


def _call_text(message: dict[str, Any]) -> str:
    """The calls of a message as JSON, after the text before them."""
    made = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        made.append(
            {
                "name": call["function"]["name"],
                "arguments": _parsed(arguments) if isinstance(arguments, str) else arguments,
            }
        )
    text = json.dumps(made[0] if len(made) == 1 else made, ensure_ascii=False)
    if not message["content"]:
        return text
    if any(tag in message["content"] + text for tag in _CALL_TAGS):
        raise UnfitError("has text that looks like a tool call, which sharegpt can't hold beside a real one")
    return f"{message['content']}{_CALL_TAGS[0]}{text}{_CALL_TAGS[1]}"
