"""Renders conversations to tokens with an endpoint's chat template, and turns tokens into text.

vLLM and SGLang tokenize messages at ``/tokenize``; llama.cpp renders at ``/apply-template`` and tokenizes the text.
Results are cached, because the rollouts of a task begin alike. Messages are given without the tokens of completions,
which endpoints don't know.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import orjson

from responses_api_models.vllm_model.replicas import EndpointReply
from responses_api_models.vllm_model.tokens import PREFIX_FIELD, Dialect

Post = Callable[[str, Mapping[str, Any]], Awaitable[EndpointReply]]

# Everything in a chat request that changes its prompt and that /tokenize understands.
RENDERED: Final = (
    *("messages", "tools", "chat_template_kwargs", "chat_template", "continue_final_message"),
    PREFIX_FIELD,  # a server that begins a prompt with given tokens also tokenizes it so
)
BESIDE_TEMPLATE: Final = (
    *("add_special_tokens", "mm_processor_kwargs", "reasoning_effort", "tool_choice"),
    *("parallel_tool_calls", "response_format", "json_schema", "grammar", "reasoning_format"),
)
# Everything but the messages that may change a prompt.
PROMPT_OPTIONS: Final = (*(name for name in (*RENDERED, *BESIDE_TEMPLATE) if name != "messages"), "documents")
MOST_TOKENS: Final = 2**20  # remembered; each takes some forty bytes
MARK: Final = "(something follows here)"


class RenderingError(ValueError):
    """The endpoint can't render or tokenize."""


class Rendering:
    """Renders with the endpoints of one model, and caches the results."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Any] = OrderedDict()
        self._size = 0
        self.context: int | None = None  # how many tokens a conversation may have, once an endpoint has reported it

    async def tokens(
        self,
        post: Post,
        chat: Mapping[str, Any],
        dialect: Dialect,
        *,
        count: int | None = None,
    ) -> list[int]:
        """All messages of a chat, or the first of them, with the prompt for a completion."""
        request = rendering_request(chat, dialect, chat["messages"][:count])
        if count is not None:
            request.pop("continue_final_message", None)
            request["add_generation_prompt"] = True
        return await self._tokens(post, request, dialect)

    async def through(
        self, post: Post, chat: Mapping[str, Any], dialect: Dialect, number: int, ends: Collection[int]
    ) -> list[int]:
        """The messages of a chat up to and including a completion, with the template's ending."""
        completed = chat["messages"][: number + 1]
        if dialect is not Dialect.LLAMA_CPP:
            request = rendering_request(chat, dialect, completed) | {"add_generation_prompt": False}
            request.pop("continue_final_message", None)
            return await self._tokens(post, request, dialect)
        # llama.cpp would continue a completion that comes last, so another message has to follow it.
        request = rendering_request(chat, dialect, [*completed, {"role": "user", "content": MARK}])
        tokens = await self._tokens(post, request, dialect, until=MARK)
        last = max((place for place, token in enumerate(tokens) if token in ends), default=len(tokens) - 1)
        return tokens[: last + 1]

    async def _tokens(self, post: Post, request: Mapping[str, Any], dialect: Dialect, *, until: str = "") -> list[int]:
        key = _digest([dialect, request, until])
        known: list[int] | None = self._known.get(key)
        if known is not None:
            return known
        by_text = dialect is Dialect.LLAMA_CPP
        found = await (self._by_text(post, request, until) if by_text else self._by_messages(post, request))
        self._remember(key, found)
        return found

    async def text(self, post: Post, tokens: Sequence[int]) -> str:
        """Tokens as text."""
        key = _digest(tokens)
        known: str | None = self._known.get(key)
        if known is not None:
            return known
        reply = await _posted(post, "/detokenize", {"tokens": list(tokens)})
        # vLLM, SGLang, llama.cpp
        text = next((reply[name] for name in ("prompt", "text", "content") if name in reply), None)
        if not isinstance(text, str):
            raise RenderingError("no text at /detokenize")
        self._remember(key, text)
        return text

    async def _by_messages(self, post: Post, request: Mapping[str, Any]) -> list[int]:
        reply = await _posted(post, "/tokenize", request)
        limit = reply.get("max_model_len")
        self.context = limit if isinstance(limit, int) and limit > 0 else self.context
        return _ids(reply)

    async def _by_text(self, post: Post, request: Mapping[str, Any], until: str) -> list[int]:
        rendered = (await _posted(post, "/apply-template", request)).get("prompt")
        if not isinstance(rendered, str):
            raise RenderingError("no prompt at /apply-template")
        rendered = rendered.rpartition(until)[0] if until else rendered
        return _ids(await _posted(post, "/tokenize", {"content": rendered, "add_special": True, "parse_special": True}))

    def _remember(self, key: bytes, value: Any) -> None:
        self._size += len(value) - len(self._known.pop(key, ()))
        self._known[key] = value
        while self._size > MOST_TOKENS and len(self._known) > 1:
            self._size -= len(self._known.popitem(last=False)[1])


def _digest(value: Any) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=16).digest()


def rendering_request(
    chat: Mapping[str, Any], dialect: Dialect, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What decides how messages are rendered."""
    return {**_template_of(chat, dialect), "messages": messages}


def _template_of(chat: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """What a template gets besides the messages. vLLM's /tokenize knows only its own names for these options."""
    names = RENDERED if dialect is Dialect.VLLM else (*RENDERED, *BESIDE_TEMPLATE)
    request = {name: chat[name] for name in names if chat.get(name) is not None}
    options = dict(request.pop("chat_template_kwargs", None) or {})
    if dialect is Dialect.VLLM:
        effort = chat.get("reasoning_effort")
        if effort is not None:
            options = {"enable_thinking": effort != "none"} | options | {"reasoning_effort": effort}
        if chat.get("documents") is not None:
            options["documents"] = chat["documents"]
    return request | ({"chat_template_kwargs": options} if options else {})


async def _posted(post: Post, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    reply = await post(path, body)
    if reply.status >= 400:
        raise RenderingError(f"status {reply.status} at {path}")
    try:
        content = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise RenderingError(f"no JSON object at {path}")
    return content


def _ids(reply: Mapping[str, Any]) -> list[int]:
    tokens = reply.get("tokens")
    if not isinstance(tokens, list) or not tokens or not set(map(type, tokens)) <= {int}:
        raise RenderingError("no list of tokens at /tokenize")
    return tokens
