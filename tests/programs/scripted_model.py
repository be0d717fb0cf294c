"""An endpoint that plays a coding model: it calls the tools that a request offers, one by one, then answers."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

COMMAND = "echo hello > hello.txt && cat hello.txt"
# What a value of a parameter could be, by its name.
VALUES: Mapping[str, Any] = {
    "command": COMMAND,
    "cmd": COMMAND,
    "content": "hello\n",
    "file_path": "hello.txt",
    "filePath": "hello.txt",
    "absolute_path": "hello.txt",
    "path": ".",
    "dir_path": ".",
    "pattern": "hello",
    "query": "hello",
    "description": "Say hello",
    "prompt": "Write hello.txt.",
    "message": "Write hello.txt.",
    "old_string": "hello",
    "oldString": "hello",
    "new_string": "hello, world",
    "newString": "hello, world",
    "explanation": "We begin.",
    "subagent_type": "general-purpose",
    "name": "hello",
    "url": "http://127.0.0.1:9/",
    "fact": "The file is hello.txt.",
    "thought": "It is simple.",
    "answer": "Done.",
    "code": "print('hello')",
}
TITLE = '{"title": "Say hello"}'
SUMMARY = "<summary>The user wants hello in hello.txt; it has been written, and was read several times.</summary>"
LEAST_CALLS, MOST_CALLS = 8, 14


def tools_of(body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names and parameters of the tools of a chat, those that run commands and write files first."""
    found = [(tool["function"]["name"], tool["function"].get("parameters") or {}) for tool in body.get("tools") or ()]
    found = [tool for tool in found if tool[0] != "final_answer"]
    eager = ("bash", "shell", "exec", "write", "run")
    return sorted(found, key=lambda tool: not any(word in tool[0].lower() for word in eager))


def value_of(name: str, schema: Mapping[str, Any]) -> Any:
    """A value that fits a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return value_of(name, variants[0])
    match schema.get("type"):
        case "array":
            return ["bash", "-lc", COMMAND] if name == "command" else [value_of(name, schema.get("items") or {})]
        case "object":
            return arguments_of(schema)
        case "integer" | "number":
            return 1
        case "boolean":
            return False
    return VALUES.get(name, "hello")


def arguments_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The required arguments of a function."""
    properties = schema.get("properties") or {}
    return {name: value_of(name, properties.get(name) or {}) for name in schema.get("required") or ()}


def is_side_call(body: Mapping[str, Any]) -> bool:
    return not body.get("tools")


class ScriptedModel:
    """Answers chats: call after call, then a text. Text for programs without tools comes from ``texts``."""

    def __init__(self, texts: list[str] | None = None, last_command: str = "", full_at: int | None = None) -> None:
        self.texts = texts or []
        self.full_at = full_at  # the turn at which the context seems to be full, so that a program sums up its history
        self.last_command = last_command  # with which a program ends
        self.asked: list[dict[str, Any]] = []

    def message(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat."""
        made = sum(message["role"] == "assistant" for message in body["messages"])
        tools = tools_of(body)
        if is_side_call(body):
            text = self.texts[min(made, len(self.texts) - 1)] if self.texts else TITLE
            if "summary" in json.dumps(body["messages"][-1]):
                text = SUMMARY
            return {"role": "assistant", "content": text}
        if made >= max(min(len(tools), MOST_CALLS), LEAST_CALLS):
            if self.last_command:
                return self._call(tools[0][0], {"command": self.last_command}, made)
            if any(tool["function"]["name"] == "final_answer" for tool in body["tools"]):
                return self._call("final_answer", {"answer": "Done."}, made)
            return {"role": "assistant", "content": "Done."}
        name, schema = tools[made % len(tools)]
        arguments = arguments_of(schema)
        if "message" in schema.get("properties", {}):  # to another agent
            arguments["message"] = VALUES["message"]
        return self._call(name, arguments, made)

    def _call(self, name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        text = f"I call {name}." if number % 2 else None
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        return web.json_response(self.completion(body))

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The completion of a chat."""
        message = self.message(body)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        read = 100
        if turns == self.full_at:
            read, self.full_at = 190_000, None
        usage = {"prompt_tokens": read, "completion_tokens": 10, "total_tokens": read + 10}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
        return {**whole, "choices": [choice], "usage": usage}


class ScriptedEngine(ScriptedModel):
    """The same as an engine that tells its tokens, which are the words of a conversation."""

    def __init__(self, texts: list[str] | None = None) -> None:
        super().__init__(texts)
        self.words: dict[str, int] = {}
        self.sampled: list[list[int]] = []

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [self.words.setdefault(word, len(self.words) + 1) for word in re.findall(r"\s+|\w+|[^\w\s]", text)]

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The completion with its tokens."""
        whole = super().completion(body)
        choice = whole["choices"][0]
        said = _rendered(choice["message"])
        prompt = self.ids(json.dumps(body.get("tools")) + "".join(map(_turn, body["messages"])) + "\n<assistant>\n")
        tokens = self.ids(said)
        self.sampled.append(tokens)
        choice |= {"token_ids": tokens, "logprobs": {"content": [{"token": "x", "logprob": -0.5} for _ in tokens]}}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        return {**whole, "prompt_token_ids": prompt, "usage": usage | {"total_tokens": len(prompt) + len(tokens)}}


def _turn(message: Mapping[str, Any]) -> str:
    return f"\n<{message['role']}>\n{_rendered(message)}"


def _rendered(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text")) for part in content)
    calls = [
        f"<call>{call['function']['name']}{call['function']['arguments']}" for call in message.get("tool_calls") or ()
    ]
    return text + "".join(calls) + "<end>"


@asynccontextmanager
async def scripted_endpoint(model: ScriptedModel) -> AsyncIterator[str]:
    """Serve the model; the base URL."""
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", model.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        assert runner.addresses
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
