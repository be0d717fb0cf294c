"""Converts the parts of a message's content between the Responses API and Chat Completions. Pure.

Reasoning has three forms: a ``reasoning`` item, ``<think>`` blocks inside the text, or a separate field beside it.

Endpoints keep adding types of items (searches they ran themselves, compacted history, …). An item of an unknown type is
wrapped in a reasoning item without text: agents ignore it, files record it, and it is unwrapped when the conversation
goes back to the endpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

TOKEN_FIELDS: Final = (
    *("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"),
    "generation_sampling",  # what the log-probabilities are, and how the tokens were sampled
)
# Options of sampling that inference servers have besides OpenAI's, and those that only one of its two protocols names.
SAMPLING_EXTRAS: Final = frozenset(
    {
        *("top_k", "min_p", "top_a", "typical_p", "seed", "stop", "logit_bias", "min_tokens", "ignore_eos"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "chat_template_kwargs"),
    }
)
# On the last item of a model call whose tokens the model server keeps: the reference by which it finds them.
CALL_REFERENCE: Final = "ng_call"
CACHE_BREAKPOINT: Final = "prompt_cache_breakpoint"
CHOICE_WITHOUT_TOOLS: Final = "tool_choice without tools"
# The version of the weights that a completion was generated with. It is for trainers and never sent back to a model.
POLICY_VERSION: Final = "policy_version"


class UnsupportedContentError(NotImplementedError):
    """The other protocol has no equivalent for this content."""


def callable_choice(choice: Any, kinds: Sequence[str]) -> tuple[Any, list[str]]:
    """A choice of tools, restricted to tools of these kinds, and the names of what is lost of it."""
    if choice is None or isinstance(choice, str) or choice.get("type") in kinds:
        return choice, []
    if choice.get("type") != "allowed_tools":
        return None, [f"tool_choice.{choice.get('type')}"]
    tools = choice.get("tools") or []
    allowed = [tool for tool in tools if tool.get("type") in kinds]
    lost = [f"tool_choice.allowed_tools.{tool.get('type')}" for tool in tools if tool.get("type") not in kinds]
    return ({**choice, "tools": allowed} if allowed or not lost else None), lost


def choice_without_tools(choice: Any, tools: Any) -> list[str]:
    """What is lost if a choice is left out, as it is where there are no tools."""
    return [] if tools or choice in ("auto", "none") else [CHOICE_WITHOUT_TOOLS]


def parts_to_chat(content: str | Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of an input message for Chat Completions."""
    return content if isinstance(content, str) else [_part_to_chat(part) | _cache_mark(part) for part in content]


def _cache_mark(part: Mapping[str, Any]) -> dict[str, Any]:
    """The mark after which a prompt is cached; both protocols have it."""
    return {CACHE_BREAKPOINT: part[CACHE_BREAKPOINT]} if part.get(CACHE_BREAKPOINT) else {}


def _part_to_chat(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "input_text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "input_image" if part.get("image_url"):
            image = {"url": part["image_url"]}
            if part.get("detail"):
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "input_file" if not part.get("file_url"):
            names = ("file_data", "file_id", "filename")
            return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    raise UnsupportedContentError(
        f"Chat Completions has no equivalent for a part of type {part['type']!r} with {sorted(part)}"
    )


def parts_to_responses(content: str | Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a chat message for the Responses API."""
    return content if isinstance(content, str) else [_part_to_responses(part) | _cache_mark(part) for part in content]


def _part_to_responses(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            converted = {"type": "input_image", "image_url": image["url"]}
            if image.get("detail"):
                converted["detail"] = image["detail"]
            return converted
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "file":
            return {"type": "input_file", **part["file"]}
    raise UnsupportedContentError(f"the Responses API has no equivalent for a chat part of type {part['type']!r}")


def joined_text(content: str | Iterable[Mapping[str, Any]] | None) -> str:
    """The text of an assistant's chat message, whether its content is text or parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = list(content)
    for part in parts:
        if part.get("type") not in ("text", "refusal"):
            raise UnsupportedContentError(f"the Responses API has no {part.get('type')!r} in an assistant message")
    return "".join(part["text"] for part in parts if part["type"] == "text")


def joined_refusals(content: Iterable[Mapping[str, Any]] | None) -> str | None:
    """The refusals among the parts of an assistant's chat message."""
    return "".join(part["refusal"] for part in content or () if part.get("type") == "refusal") or None


# Different servers use different names for the same field.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
BEGIN: Final = "<think>"
END: Final = "</think>"
THINK_TAGS: Final = (BEGIN, END)


def wrap_reasoning(texts: Iterable[str]) -> str:
    """One ``<think>`` block for each text."""
    return "".join([f"{BEGIN}{text}{END}" for text in texts])


def extract_reasoning(content: str) -> tuple[list[str], str]:
    """The texts of all ``<think>`` blocks, and the content without these blocks.

    The last block may be cut off. Then it has to be all that is left, because a text may also mention the tag.
    """
    before, end, after = content.partition(END)
    if end and before.startswith(BEGIN) and BEGIN not in after:  # the usual case: one block, at the beginning
        return [before[len(BEGIN) :]], after
    if BEGIN not in content:
        return [], content
    texts, rest = _extract_blocks(content, BEGIN, END)
    if rest.lstrip().startswith(BEGIN):
        return [*texts, rest.lstrip()[len(BEGIN) :]], ""
    return texts, rest


def _extract_blocks(content: str, begin: str, end: str) -> tuple[list[str], str]:
    texts: list[str] = []
    rest: list[str] = []
    done = 0
    while (start := content.find(begin, done)) >= 0 and (stop := content.find(end, start)) >= 0:
        rest.append(content[done:start])
        texts.append(content[start + len(begin) : stop])
        done = stop + len(end)
    rest.append(content[done:])
    return texts, "".join(rest)


def without_reasoning(text: str, tags: tuple[str, str] = THINK_TAGS) -> str:
    """What remains of a text without its reasoning, and without the white space that separated the two.

    Blocks go, and so does everything before a closing tag that was never opened (the prompt opened it), and everything
    after an opening tag that is never closed (a limit on tokens ended it). A text without tags is returned unchanged.
    """
    begin, end = tags
    if begin not in text and end not in text:
        return text
    rest = _extract_blocks(text, begin, end)[1]
    answer = rest.rpartition(end)[2].partition(begin)[0].rstrip()
    bare = answer.lstrip()
    # The indentation of the first line belongs to the answer, which may be the rest of a function.
    _, newline, indentation = answer[: len(answer) - len(bare)].rpartition("\n")
    return indentation + bare if newline else bare


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """What a reasoning item says: its content, where the endpoint shows that, else the summary."""
    content = item.get("content")
    if content:
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
        if texts:
            return texts
    return [part["text"] for part in item.get("summary") or ()]


def separate_reasoning(message: Mapping[str, Any]) -> str:
    """The reasoning that an endpoint returned beside the content of a chat message, or an empty string."""
    for name in REASONING_FIELDS:
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


UNKNOWN_ITEM: Final = "unknown_item"
KNOWN_TYPES: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def is_unknown(item: Mapping[str, Any]) -> bool:
    """Whether the item has a type that this program does not handle."""
    kind = item.get("type", "message")
    return isinstance(kind, str) and kind not in KNOWN_TYPES


def wrap_unknown_item(item: Mapping[str, Any], *, position: int) -> dict[str, Any]:
    """A reasoning item that contains the item."""
    return {"id": f"rs_kept_{position}", "summary": [], "type": "reasoning", UNKNOWN_ITEM: dict(item)}


def unknown_item(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The wrapped item, if there is one."""
    wrapped = item.get(UNKNOWN_ITEM)
    return wrapped if isinstance(wrapped, Mapping) else None


def release_items(items: Iterable[Any]) -> list[Any]:
    """The items with wrapped ones unwrapped. An assistant's message without a type gets it; some endpoints insist."""
    return [
        item if not isinstance(item, dict) or ("type" in item and UNKNOWN_ITEM not in item) else _released(item)
        for item in items
    ]


def _released(item: dict[str, Any]) -> Any:
    if unknown_item(item) is not None:
        return item[UNKNOWN_ITEM]
    if "type" not in item and item.get("role") == "assistant":
        return {**item, "type": "message"}
    return item
