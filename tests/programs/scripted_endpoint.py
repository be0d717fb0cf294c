"""An endpoint for programs that answers by rule instead of a model: it makes any program write a file.

It takes the first of the program's tools with which a file can be written, whatever the program calls it. When the
result is there, it says that it is done. Programs without tools get an answer in the form that they edit files by.
``faults`` are what it does instead for the next requests, in order.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.conversion.response_streams import response_stream

COMMAND: Final = "echo hello > hello.txt"
DONE: Final = "The file is written."
AIDER: Final = "hello.txt\n```\nhello\n```\n"
SMOLAGENTS: Final = (
    "Thought: I write the file.\n<code>\n"
    "f = open('hello.txt', 'w'); f.write('hello'); f.close(); final_answer('" + DONE + "')\n</code>"
)
SHELLS: Final = ("exec_command", "shell", "bash", "Bash", "run_shell_command", "shell_command", "local_shell")
USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
SUBMIT: Final = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

Message = dict[str, Any]
Fault = Callable[[], web.StreamResponse] | None


def arguments_for(name: str, schema: Mapping[str, Any], command: str = COMMAND) -> dict[str, Any]:
    """Arguments with which a shell tool runs the command, given the schema of its parameters."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    key = next((each for each in ("command", "cmd", "script") if each in properties), "command")
    is_list = (properties.get(key) or {}).get("type") == "array"
    arguments: dict[str, Any] = {key: ["bash", "-lc", command] if is_list else command}
    for each in schema.get("required") or ():
        if each not in arguments:
            kind = (properties.get(each) or {}).get("type")
            arguments[each] = {"boolean": False, "integer": 1, "number": 1}.get(kind, "write the file")
    del name
    return arguments


class ScriptedEndpoint:
    """The rule, and what was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Message]] = []
        self.faults: list[Fault] = []
        self.url = ""
        self.delay_s = 0.0
        self.broken: Callable[[], web.Response | None] | None = None  # asked for each request after the faults
        self.command = COMMAND

    # ---- the rule ---------------------------------------------------------------------------------------------------
    def next_message(self, texts: list[str], tools: Mapping[str, Any], *, has_result: bool, results: int) -> Message:
        """A message in the form of Chat Completions."""
        shell = next((name for name in SHELLS if name in tools), None)
        asked = "\n".join(texts)
        if shell is None:
            if "final_answer" in asked and "<code>" in asked:
                return {"role": "assistant", "content": SMOLAGENTS}
            return {
                "role": "assistant",
                "content": AIDER if "SEARCH/REPLACE" in asked or "file listing" in asked else DONE,
            }
        submits = SUBMIT in asked
        if has_result and not submits:
            return {"role": "assistant", "content": DONE}
        command = SUBMIT if has_result and results < 3 else self.command
        arguments = json.dumps(arguments_for(shell, tools[shell], command))
        function = {"name": shell, "arguments": arguments}
        call = {"id": f"call_{uuid4().hex[:12]}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    # ---- the routes -------------------------------------------------------------------------------------------------
    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (fault := await self._fault("chat", body)) is not None:
            return fault
        messages = body["messages"]
        tools = {each["function"]["name"]: each["function"].get("parameters") or {} for each in body.get("tools") or ()}
        results = [each for each in messages if each["role"] == "tool"]
        texts = [text_of(each.get("content")) for each in messages]
        message = self.next_message(texts, tools, has_result=bool(results), results=len(results))
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        completion = {
            "id": f"chatcmpl-{uuid4().hex}", "object": "chat.completion", "created": int(time.time()),
            "model": body["model"], "choices": [choice], "usage": USAGE,
        }  # fmt: skip
        if body.get("stream"):
            return web.Response(body=completion_stream(completion, usage=True), content_type="text/event-stream")
        return web.json_response(completion)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (fault := await self._fault("responses", body)) is not None:
            return fault
        items = [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
        tools = {each["name"]: each.get("parameters") or {} for each in body.get("tools") or () if "name" in each}
        results = [each for each in items if str(each.get("type")).endswith("_output")]
        texts = [str(body.get("instructions")), *(text_of(each.get("content")) for each in items)]
        message = self.next_message(texts, tools, has_result=bool(results), results=len(results))
        response = {
            "id": f"resp_{uuid4().hex}", "object": "response", "created_at": int(time.time()), "status": "completed",
            "model": body["model"], "output": [item_of(message)], "parallel_tool_calls": True, "tool_choice": "auto",
            "tools": [], "usage": {
                "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip
        if body.get("stream"):
            return web.Response(body=response_stream(response), content_type="text/event-stream")
        return web.json_response(response)

    async def _fault(self, kind: str, body: Message) -> web.StreamResponse | None:
        self.requests.append((kind, body))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        fault = self.faults.pop(0) if self.faults else None
        if fault is None and self.broken is not None and not self.faults:
            return self.broken()
        return fault() if fault is not None else None

    async def models(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/responses", self.responses)
        app.router.add_get("/v1/models", self.models)
        return app


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def item_of(message: Message) -> dict[str, Any]:
    """A message as an item of the Responses API."""
    for call in message.get("tool_calls") or ():
        return {
            "type": "function_call", "id": f"fc_{uuid4().hex[:12]}", "call_id": call["id"], "status": "completed",
            **call["function"],
        }  # fmt: skip
    content = [{"type": "output_text", "text": message["content"], "annotations": []}]
    return {
        "type": "message", "id": f"msg_{uuid4().hex[:12]}", "role": "assistant", "status": "completed",
        "content": content,
    }  # fmt: skip


@contextmanager
def scripted_endpoint() -> Iterator[ScriptedEndpoint]:
    """The endpoint, served from a thread."""
    endpoint, started = ScriptedEndpoint(), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(endpoint.app(), shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await stop.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def main() -> None:
    with scripted_endpoint() as endpoint:
        print(endpoint.url, flush=True)  # noqa: T201
        time.sleep(1e6)


if __name__ == "__main__":
    main()
