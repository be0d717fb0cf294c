"""An endpoint that plays a coding model: it calls the tools that a request offers, one by one, then answers."""

import json
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
MOST_CALLS = 14


def tools_of(body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names and parameters of the tools of a chat, those that run commands and write files first."""
    found = [(tool["function"]["name"], tool["function"].get("parameters") or {}) for tool in body.get("tools") or ()]
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

    def __init__(self, texts: list[str] | None = None) -> None:
        self.texts = texts or []
        self.asked: list[dict[str, Any]] = []

    def message(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat."""
        made = sum(message["role"] == "assistant" for message in body["messages"])
        tools = tools_of(body)
        if is_side_call(body):
            text = self.texts[min(made, len(self.texts) - 1)] if self.texts else '{"title": "Say hello"}'
            return {"role": "assistant", "content": text}
        if made >= min(len(tools), MOST_CALLS):
            final = next((name for name, _ in tools if name == "final_answer"), None)
            if final is None:
                return {"role": "assistant", "content": "Done."}
            return self._call(final, {"answer": "Done."}, made)
        name, schema = tools[made]
        return self._call(name, arguments_of(schema), made)

    def _call(self, name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        text = f"I call {name}." if number % 2 else None
        calls = [{"id": f"call_{number}_{len(self.asked)}", "type": "function", "function": function}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        message = self.message(body)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
        return web.json_response({**whole, "choices": [choice], "usage": usage})


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
