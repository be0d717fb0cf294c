"""What an endpoint's chat template makes of a conversation, in tokens, and what tokens are as text.

vLLM and SGLang tokenize messages at ``/tokenize``; llama.cpp renders at ``/apply-template`` and tokenizes the text.
What was asked once is remembered: a conversation is rendered again with each of its turns.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from responses_api_models.vllm_model.replicas import Answered
from responses_api_models.vllm_model.tokens import Dialect, without_tokens

Post = Callable[[str, Mapping[str, Any]], Awaitable[Answered]]

# Everything in a chat request that changes its prompt and that /tokenize understands.
RENDERED: Final = ("messages", "tools", "chat_template_kwargs", "chat_template", "continue_final_message")
BESIDE_TEMPLATE: Final = ("add_special_tokens", "mm_processor_kwargs", "reasoning_effort", "tool_choice")
REMEMBERED: Final = 1024


class RenderingError(ValueError):
    """The endpoint does not tell."""


class Rendering:
    """Asks endpoints of one model, and remembers."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Any] = OrderedDict()
        self.context: int | None = None  # how many tokens a conversation may have, once an endpoint said so

    async def tokens(
        self,
        post: Post,
        chat: Mapping[str, Any],
        dialect: Dialect,
        *,
        count: int | None = None,
        answer_follows: bool = True,
    ) -> list[int]:
        """The first ``count`` messages of a chat, or all of them, with or without the prompt for an answer."""
        messages = [without_tokens(message) for message in chat["messages"][:count]]
        asked = {**_template_of(chat, dialect), "messages": messages}
        if count is not None:
            asked["add_generation_prompt"] = answer_follows
            asked.pop("continue_final_message", None)
        key = orjson.dumps([dialect, asked])
        if key not in self._known:
            tokenize = self._by_text if dialect is Dialect.LLAMA_CPP else self._by_messages
            self._remember(key, await tokenize(post, asked))
        found: list[int] = self._known[key]
        return found

    async def text(self, post: Post, tokens: Sequence[int]) -> str:
        """Tokens as text."""
        key = orjson.dumps(tokens)
        if key not in self._known:
            answer = await _asked(post, "/detokenize", {"tokens": list(tokens)})
            # vLLM, SGLang, llama.cpp
            said = next((answer[name] for name in ("prompt", "text", "content") if name in answer), None)
            if not isinstance(said, str):
                raise RenderingError("no text at /detokenize")
            self._remember(key, said)
        found: str = self._known[key]
        return found

    async def _by_messages(self, post: Post, asked: Mapping[str, Any]) -> list[int]:
        answer = await _asked(post, "/tokenize", asked)
        limit = answer.get("max_model_len")
        self.context = limit if isinstance(limit, int) and limit > 0 else self.context
        return _ids(answer)

    async def _by_text(self, post: Post, asked: Mapping[str, Any]) -> list[int]:
        rendered = (await _asked(post, "/apply-template", asked)).get("prompt")
        if not isinstance(rendered, str):
            raise RenderingError("no prompt at /apply-template")
        return _ids(await _asked(post, "/tokenize", {"content": rendered, "add_special": True, "parse_special": True}))

    def _remember(self, key: bytes, value: Any) -> None:
        self._known[key] = value
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _template_of(chat: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """What a template is given besides the messages. vLLM's /tokenize knows only its own names for that."""
    names = RENDERED if dialect is Dialect.VLLM else (*RENDERED, *BESIDE_TEMPLATE)
    asked = {name: chat[name] for name in names if chat.get(name) is not None}
    options = dict(asked.pop("chat_template_kwargs", None) or {})
    if dialect is Dialect.VLLM:
        effort = chat.get("reasoning_effort")
        if effort is not None:
            options = {"enable_thinking": effort != "none"} | options | {"reasoning_effort": effort}
        if chat.get("documents") is not None:
            options["documents"] = chat["documents"]
    return asked | ({"chat_template_kwargs": options} if options else {})


async def _asked(post: Post, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answered = await post(path, body)
    if answered.status >= 400:
        raise RenderingError(f"status {answered.status} at {path}")
    try:
        answer = orjson.loads(answered.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise RenderingError(f"no JSON object at {path}")
    return answer


def _ids(answer: Mapping[str, Any]) -> list[int]:
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, int) for token in tokens):
        raise RenderingError("no list of tokens at /tokenize")
    return tokens
