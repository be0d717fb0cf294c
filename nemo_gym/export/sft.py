"""Rollouts as conversations: messages with tools, tool calls and results; ``sharegpt``; rows of NeMo Gym's tutorial.

Content that the format can't hold (images in a table, items of unknown type) raises ``UnfitError``: the rollout is
dropped and counted, and never exported in part.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.chat_requests import ResponsesConverterState, items_to_messages, options_to_chat
from nemo_gym.conversion.parts import UnsupportedContentError, reasoning_texts, wrap_reasoning
from nemo_gym.export.recipe import Recipe
from nemo_gym.export.records import Rollout
from nemo_gym.export.select import GENERAL, field_text

Row = dict[str, Any]
Messages = list[dict[str, Any]]
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_NOT_VALID: Final = "has items that are not valid"
_BY_MODEL: Final = ("gpt", "function_call")
_CALL_TAGS: Final = ("<tool_call>", "</tool_call>")
_SPEAKERS: Final = {"system": "system", "developer": "system", "user": "human", "assistant": "gpt"}


class PromptAndAnswer(NamedTuple):
    """What the model was asked; and what it said and did, with the results of its tools."""

    prompt: Messages
    answer: Messages


class UnfitError(ValueError):
    """A rollout that the format can't hold; the message is the reason."""


def prompt_items(rollout: Rollout) -> list[dict[str, Any]]:
    """What the model was asked, as items."""
    asked, instructions = rollout.params.get("input"), rollout.params.get("instructions")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if not isinstance(items, list) or not items:
        raise UnfitError("has no prompt")
    if not set(map(type, items)) <= {dict} or not isinstance(instructions, str | None):
        raise UnfitError("has a prompt that is not valid")
    return [*([{"role": "system", "content": instructions}] if instructions else []), *items]


def conversation(rollout: Rollout, recipe: Recipe) -> PromptAndAnswer:
    """A rollout as chat messages."""
    prompt, answer = _messages(prompt_items(rollout), recipe), _messages(rollout.output, recipe)
    for message in answer:
        if message["role"] == "assistant":
            return PromptAndAnswer(prompt, answer)
    raise UnfitError("says nothing")


def prompt_messages(rollout: Rollout, recipe: Recipe) -> Messages:
    """What the model was asked, as chat messages."""
    return _messages(prompt_items(rollout), recipe)


def _messages(items: list[dict[str, Any]], recipe: Recipe) -> Messages:
    if recipe.arguments == "text" and (usual := usual_messages(items, recipe)) is not None:
        return usual
    state = ResponsesConverterState(past_reasoning=recipe.reasoning)
    try:
        messages = items_to_messages(items, state)
        for message in messages:
            # Most are a role and text.
            if len(message) > 2 or type(message["content"]) is not str or message["role"] not in _ROLES:
                _tidy(message, recipe)
    except UnsupportedContentError:
        raise UnfitError("has content that a chat can't hold") from None
    except (KeyError, TypeError, AttributeError):
        raise UnfitError(_NOT_VALID) from None
    if state.lost:
        raise UnfitError(f"has {state.lost[0]}")
    return messages


def usual_messages(items: list[dict[str, Any]], recipe: Recipe) -> Messages | None:
    """The same messages as the general conversion gives, in a third of the time; None if an item is not a usual one."""
    messages: Messages = []
    turn: dict[str, Any] | None = None  # of the assistant
    try:
        for item in items:
            kind = item.get("type") or "message"
            if kind == "message" and item["role"] != "assistant":
                turn = None
                messages.append({"role": item["role"], "content": item["content"]})
                if item["role"] not in _ROLES or type(item["content"]) is not str:
                    return None
            elif kind == "function_call_output":
                turn = None
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
                if not type(item["call_id"]) is type(item["output"]) is str:
                    return None
            else:
                if turn is None:
                    turn = {"role": "assistant", "content": ""}
                    messages.append(turn)
                if not _add_usual(turn, kind, item, recipe):
                    return None
    except (KeyError, TypeError, AttributeError):
        return None
    return messages


def _add_usual(turn: dict[str, Any], kind: str, item: dict[str, Any], recipe: Recipe) -> bool:
    """Add text, reasoning or a call to a turn, unless the item is not a usual one."""
    if kind == "message":
        content = item["content"]
        if type(content) is list:
            if len(content) != 1 or content[0]["type"] != "output_text":
                return False
            content = content[0]["text"]
        turn["content"] += content
        return type(content) is str
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
        return type(item["call_id"]) is type(item["name"]) is type(item["arguments"]) is str
    if kind == "reasoning" and recipe.reasoning == "think" and (texts := reasoning_texts(item)):
        turn["content"] += wrap_reasoning(texts)
        return True
    return False


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


def _tools(rollout: Rollout) -> list[dict[str, Any]] | None:
    given = rollout.params.get("tools")
    try:
        return options_to_chat({"tools": given}).options.get("tools") if given else None
    except (KeyError, TypeError, AttributeError):
        raise UnfitError("has tools that are not valid") from None


def tools_of(rollout: Rollout, recipe: Recipe) -> dict[str, Any]:
    """The tools of a conversation as a field of its row; JSON text if the row becomes part of a table."""
    tools = _tools(rollout)
    if recipe.stored_as != "jsonl":
        return {"tools": json.dumps(tools) if tools else None}
    return {"tools": tools} if tools else {}


def sft_rows(rollout: Rollout, recipe: Recipe) -> Iterator[Row]:
    """A conversation for supervised training."""
    if recipe.preset == "nemo":
        yield nemo_row(rollout.record)
        return
    prompt, answer = conversation(rollout, recipe)
    row: Row = {"messages": prompt + answer}
    if recipe.shape == "prompt_completion":
        row = {"prompt": prompt, "completion": answer}
    yield row | tools_of(rollout, recipe) | (rollout.labels() if recipe.metadata else {})


def nemo_row(record: Mapping[str, Any]) -> Row:
    """A row as NeMo Gym's tutorial makes it: items of the response as they are."""
    output, reward = (record.get("response") or {}).get("output"), record.get("reward", 0)
    kind = field_text(record, "metadata.task_type")
    return {"messages": output, "reward": reward, "task_type": GENERAL if kind is None else kind}


def sharegpt_rows(rollout: Rollout, recipe: Recipe) -> Iterator[Row]:
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
    """The calls of a message as JSON, after what was said before them."""
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
