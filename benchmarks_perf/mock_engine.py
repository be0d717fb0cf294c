"""A mock of an inference server that returns its tokens as vLLM does (loopback only).

    python benchmarks_perf/mock_engine.py PORT [TURNS]

It has a template and a tokenizer but no model: every completion is the same text. The template keeps earlier turns
unchanged, and every message has tokens of its own, so the turns of a conversation are one sequence of tokens. With a
number of turns, all but the last of them call a tool, with 200 tokens each, and no two say the same. ``GET /recorded``
lists the requests since the last time it was called.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from secrets import token_hex
from typing import Any
from zlib import crc32

import orjson
from aiohttp import web

END, VOCABULARY, PIECE = 2, 2**23, 4  # large enough that no two pieces of our conversation have the same token
TEXT = "The weather in San Francisco is cold."


@lru_cache(maxsize=4096)
def tokens_of(text: str) -> tuple[int, ...]:
    """A token for every few characters."""
    pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
    return tuple(END + 1 + crc32(piece.encode()) % VOCABULARY for piece in pieces)


def completion_text(message: Mapping[str, Any]) -> str:
    """What the model has to write for an assistant message."""
    thought = message.get("reasoning_content")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = "".join(
        f'<tool_call>{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}</tool_call>' for call in calls
    )
    return (f"<think>{thought}</think>" if thought else "") + (message.get("content") or "") + written


def rendered(messages: Sequence[Mapping[str, Any]], *, completion_follows: bool) -> list[int]:
    """The tokens of a conversation."""
    found: list[int] = []
    for message in messages:
        content = completion_text(message) if message["role"] == "assistant" else _text(message["content"])
        found += tokens_of(f"<{message['role']}>")
        found += tokens_of(content)
        found.append(END)
    return found + list(tokens_of("<assistant>")) if completion_follows else found


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class MockEngine:
    """Remembers which texts it has tokenized, so that it can turn their tokens into text again."""

    def __init__(self, turns: int = 1) -> None:
        self._turns = turns
        self._recorded: list[tuple[str, bytes]] = []
        self._pieces = {END: "<|end|>"}
        self._completions: dict[bytes, bytes] = {}

    async def complete(self, request: web.Request) -> web.Response:
        """Complete a chat; the same request gets the same bytes."""
        body = await request.read()
        if self._turns > 1:
            self._recorded.append((request.path, body))
            return web.Response(body=self._completion(orjson.loads(body)["messages"]), content_type="application/json")
        if body not in self._completions:
            self._completions[body] = self._completion(orjson.loads(body)["messages"])
        return web.Response(body=self._completions[body], content_type="application/json")

    def _completion(self, messages: list[dict[str, Any]]) -> bytes:
        message = self._message(messages)
        prompt, generated = rendered(messages, completion_follows=True), [*tokens_of(completion_text(message)), END]
        scores = [
            {"token": f"token_id:{one}", "logprob": -0.25, "bytes": None, "top_logprobs": []} for one in generated
        ]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
            "stop_reason": None,
            "logprobs": {"content": scores},
            "token_ids": generated,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(generated)}
        return orjson.dumps(
            {
                "id": "chatcmpl_mock",
                "object": "chat.completion",
                "created": 1,
                "model": "mock",
                "choices": [choice],
                "usage": usage | {"total_tokens": sum(usage.values())},
                "prompt_token_ids": prompt,
            }
        )

    def _message(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        if turn >= self._turns:
            return {"role": "assistant", "content": TEXT}
        function = {"name": "get_weather", "arguments": '{"city": "San Francisco"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        thought = f"Turn {turn}, {token_hex(4)}: " + "let me look at the weather once more. " * 18
        return {"role": "assistant", "content": thought, "tool_calls": [call]}

    async def recorded(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler
        """The requests so far, which are then forgotten."""
        found, self._recorded = self._recorded, []
        return web.json_response([[path, body.decode()] for path, body in found])

    async def tokenize(self, request: web.Request) -> web.Response:
        """Tokenize a conversation."""
        content = await request.read()
        if self._turns > 1:
            self._recorded.append((request.path, content))
        body = orjson.loads(content)
        for message in body["messages"]:
            text = completion_text(message) if message["role"] == "assistant" else _text(message["content"])
            pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
            self._pieces.update(zip(tokens_of(text), pieces, strict=True))
        tokens = rendered(body["messages"], completion_follows=body.get("add_generation_prompt", True))
        return web.Response(body=orjson.dumps({"tokens": tokens, "count": len(tokens), "max_model_len": 131_072}))

    async def detokenize(self, request: web.Request) -> web.Response:
        """Turn tokens into text."""
        tokens = orjson.loads(await request.read())["tokens"]
        return web.Response(body=orjson.dumps({"prompt": "".join(self._pieces.get(token, "?") for token in tokens)}))


def main() -> None:
    engine = MockEngine(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", engine.complete)
    app.router.add_post("/tokenize", engine.tokenize)
    app.router.add_post("/detokenize", engine.detokenize)
    app.router.add_get("/recorded", engine.recorded)
    app.router.add_get("/stats", lambda _: web.Response())
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
