"""An engine over real HTTP that has a template and a tokenizer but no model: its answers come from a script.

Tokens are words. Calls are generated as a JSON list but rendered by the template in the Hermes format, so after a call
the conversation is rendered with other tokens than were generated, as with vLLM and a forced call.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from nemo_gym.servers.http.connections import close_http_client

Kind = Literal["vLLM", "SGLang", "llama.cpp", "patched vLLM"]
WORDS = re.compile(r"<\|?/?\w+\|?>|\w+|[^\w\s]|\s")
START, END = "<|im_start|>", "<|im_end|>"


@dataclass
class ToyEngine:
    """Answers with the texts of its script, in order."""

    kind: Kind
    script: list[str]
    context: int | None = 4096
    hermes: bool = True
    without: frozenset[str] = frozenset()  # routes that it does not have
    unscored: int = 0  # how many tokens at the end of an answer have no score
    score: float = -0.5  # of every token
    timings: Mapping[str, Any] = field(default_factory=dict)
    n_ctx: int | None = None  # as llama.cpp tells it
    answers_as: str = "assistant"  # the role with which prompts end
    down: frozenset[str] = frozenset()  # routes that fail
    stop: str = ""  # ends its answers instead of the end of a turn, as a stop string does
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def ids(self, text: str) -> list[int]:
        found = []
        for word in WORDS.findall(text):
            if word not in self.words:
                self.words.append(word)
            found.append(self.words.index(word) + 1)
        return found

    def text(self, ids: list[int]) -> str:
        return "".join(self.words[token - 1] for token in ids)

    def sent_to(self, path: str) -> list[dict[str, Any]]:
        return [body for to, body in self.asked if to == path]

    def render(self, body: Mapping[str, Any], *, completion_follows: bool) -> str:
        opening, closing = ("<tool_call>", "</tool_call>") if self.hermes else ("[CALL]", "")
        effort = (body.get("chat_template_kwargs") or {}).get("reasoning_effort") or body.get("reasoning_effort") or ""
        parts = [f"{START}system\n{opening}{closing}{effort}{END}\n"] if body.get("tools") else []
        for message in body["messages"]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            written = "".join(
                f'{opening}{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}{closing}' for call in calls
            )
            parts.append(f"{START}{message['role']}\n{_content(message)}{written}{END}\n")
        return "".join(parts) + (f"{START}{self.answers_as}\n" if completion_follows else "")

    def _prompt(self, body: Mapping[str, Any], *, completion_follows: bool) -> list[int]:
        """The tokens of a prompt; a patched engine uses the given tokens up to the last answer and renders the rest."""
        text = self.render(body, completion_follows=completion_follows)
        prefix = body.get("required_prefix_token_ids")
        if self.kind != "patched vLLM" or not prefix:
            return self.ids(text)
        last = max(place for place, message in enumerate(body["messages"]) if message["role"] == "assistant")
        after = {**body, "messages": body["messages"][last + 1 :], "tools": None}
        return [*prefix, *self.ids("\n" + self.render(after, completion_follows=completion_follows))]

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path, body))
        route = getattr(self, "answer_" + request.path.strip("/").replace("/", "_").replace("-", "_"), None)
        if request.path in self.down:
            return web.json_response({"error": {"message": "out of order"}}, status=503)
        if route is None or request.path in self.without:
            return web.json_response({"error": {"message": "no such route"}}, status=404)
        return web.json_response(route(body))

    def answer_props(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"eos_token": END, "default_generation_settings": {"n_ctx": self.n_ctx}}

    def answer_tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.kind == "llama.cpp":
            return {"tokens": self.ids(body.get("content", ""))}  # messages are not supported, as in llama.cpp
        tokens = self._prompt(body, completion_follows=body.get("add_generation_prompt", True))
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self.context}

    def answer_apply_template(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"prompt": self.render(body, completion_follows=body.get("add_generation_prompt", True))}

    def answer_detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = {"SGLang": "text", "llama.cpp": "content"}.get(self.kind, "prompt")
        return {name: self.text(body["tokens"])}

    def answer_v1_chat_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = body.get("input_ids") or self._prompt(body, completion_follows=True)
        said = self.script.pop(0)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if said.startswith("["):
            calls = json.loads(said)
            message = {"role": "assistant", "content": None, "tool_calls": [_call(call) for call in calls]}
        tokens = self.ids(said + (self.stop or END))
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if said[0] == "[" else "stop"}
        if self.stop:
            choice |= {"matched_stop": self.stop} if self.kind == "SGLang" else {"stop_reason": self.stop}
        return self._with_tokens({"choices": [choice]}, choice, prompt, tokens, wanted=body.get("top_logprobs", 0))

    def answer_v1_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        said = self.script.pop(0)
        tokens = self.ids(said + (self.stop or END))
        choice: dict[str, Any] = {"index": 0, "text": said, "finish_reason": "stop", "token_ids": tokens}
        choice["stop_reason"] = self.stop or None
        choice["logprobs"] = {"tokens": ["x"] * len(tokens), "token_logprobs": [self.score] * len(tokens)}
        if self.kind == "llama.cpp":
            del choice["token_ids"]
            scores = [{"token": "x", "id": token, "logprob": self.score, "top_logprobs": []} for token in tokens]
            choice["logprobs"] = {"content": scores}
        return {"choices": [choice], "usage": _usage(body["prompt"], tokens), "timings": self.timings}

    def _with_tokens(
        self, answer: dict[str, Any], choice: dict[str, Any], prompt: list[int], tokens: list[int], *, wanted: int
    ) -> dict[str, Any]:
        scores = [{"token": "x", "logprob": self.score, "top_logprobs": []} for _ in tokens]
        choice["logprobs"] = {"content": scores}
        if self.kind == "vLLM":
            choice["token_ids"] = tokens
            answer["prompt_token_ids"] = prompt
        elif self.kind == "patched vLLM":
            marked = [score | {"token": f"token_id:{token}"} for score, token in zip(scores, tokens, strict=True)]
            choice["logprobs"] = {"content": marked}
        elif self.kind == "SGLang":
            choice |= {"response_token_ids": tokens, "prompt_token_ids": prompt}
        else:
            answer["timings"] = self.timings
            identified = [score | {"id": token} for score, token in zip(scores, tokens, strict=True)]
            identified = identified[: len(identified) - self.unscored]
            choice["logprobs"] = {"content": identified} if wanted else None
        named = {"id": "c", "created": 1, "model": "m", "object": "chat.completion"}
        return named | answer | {"usage": _usage(prompt, tokens)}


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "<image>") for part in content)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["parameters"])}
    return {"id": "c", "type": "function", "function": function}


def _usage(prompt: list[int], tokens: list[int]) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }


@asynccontextmanager
async def toy_engine(kind: Kind, *script: str, **more: Any) -> AsyncIterator[ToyEngine]:
    engine = ToyEngine(kind, list(script), **more)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    engine.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"  # type: ignore[attr-defined]
    try:
        yield engine
    finally:
        await close_http_client()
        await runner.cleanup()
