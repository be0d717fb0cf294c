"""A chat as every template understands it: three roles and plain text.

Templates treat tools, developers and empty contents differently, or refuse them. None refuses a system, a user and an
assistant message in turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.conversion.parts import UnsupportedContentError
from responses_api_models.local_model.tool_calls import Tool, describe_tools, write_call, write_result
from responses_api_models.local_model.tool_examples import tool_examples

PlainMessage = dict[str, str]
INSTRUCTING = ("system", "developer")


def plain_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = (), *, examples: bool | None = None
) -> list[PlainMessage]:
    """Describe the offered tools in the conversation, with examples of calls unless it already has some.

    When only the start of a conversation is rendered, ``examples`` says whether the whole conversation has examples.
    """
    plain: list[PlainMessage] = []
    for message in messages:
        _append(plain, _plain(message), merge=message["role"] == "tool")
    if not tools:
        return plain
    described = describe_tools(tools)
    if plain and plain[0]["role"] == "system":
        plain[0] = {"role": "system", "content": f"{plain[0]['content']}\n\n{described}"}
    else:
        plain.insert(0, {"role": "system", "content": described})
    if not shows_calls(messages) if examples is None else examples:
        plain[1:1] = _examples(tools)
    return plain


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message; the model cannot read anything else."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") not in ("text", "refusal"):
            raise UnsupportedContentError(f"the local model reads text only, not {part.get('type')!r}")
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _plain(message: Mapping[str, Any]) -> PlainMessage:
    role, text = message["role"], text_of(message)
    if role == "tool":
        return {"role": "user", "content": write_result(text)}
    if role == "assistant":
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        written = "\n".join(write_call(call["name"], call["arguments"]) for call in calls)
        return {"role": "assistant", "content": text + written}
    return {"role": "system" if role in INSTRUCTING else role, "content": text}


def _append(plain: list[PlainMessage], message: PlainMessage, *, merge: bool) -> None:
    """Append a message; results of several calls become one, as many templates want the roles to alternate."""
    if merge and plain and plain[-1]["role"] == "user":
        plain[-1] = {"role": "user", "content": f"{plain[-1]['content']}\n{message['content']}"}
    else:
        plain.append(message)


def shows_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there was a call before the last user message; later ones are the model's own attempts."""
    last = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=len(messages))
    return any(message.get("tool_calls") for message in messages[:last])


def _examples(tools: Sequence[Tool]) -> list[PlainMessage]:
    return [
        message
        for example in tool_examples(tools)
        for message in (
            {"role": "user", "content": example.question},
            {"role": "assistant", "content": write_call(example.tool, example.arguments)},
            {"role": "user", "content": write_result(example.result)},
            {"role": "assistant", "content": example.answer},
        )
    ]
