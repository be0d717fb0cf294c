"""Exchanges with real engines, recorded by ``make engines`` and replayed in the ordinary tests.

There is one JSON file for each engine. A request is looked up by its path and its body without ids, which are new each
time. A request that was never recorded is answered with status 599, so that changes in what is sent are noticed.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

FOLDER: Final = Path(__file__).parent / "recordings"
# Values that are new each time, or irrelevant.
VOLATILE: Final = frozenset({"id", "tool_call_id", "call_id", "model"})
UNINTERESTING: Final = frozenset(
    {
        *("created", "created_at", "completed_at", "system_fingerprint", "metrics", "bytes", "model"),
        *("model_path", "model_alias", "default_generation_settings", "chat_template", "chat_template_caps"),
    }
)
# The path of the model file, as it appears in a stream.
MODEL_FILE: Final = re.compile(r'"model":\s*"[^"]*"')
UNRECORDED: Final = 599
LONGEST: Final = 2000
DIGITS: Final = 6


@dataclass(frozen=True)
class Recording:
    """The file of one engine."""

    path: Path
    engine: str

    def load(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.path.read_text())
        return content

    def write(self, version: str, results: dict[str, tuple[str, list[dict[str, Any]]]]) -> None:
        cases = {name: {"result": words, "exchanges": said} for name, (words, said) in results.items()}
        self.path.parent.mkdir(exist_ok=True)
        lines = [f' "engine": {json.dumps(self.engine)},', f' "version": {json.dumps(version)},', ' "cases": {']
        lines.append(",\n".join(f"  {json.dumps(name)}: {_written(case)}" for name, case in cases.items()))
        self.path.write_text("\n".join(["{", *lines, " }", "}", ""]))


def _written(case: dict[str, Any]) -> str:
    """A case with one line for each exchange."""
    said = ",\n".join(f"    {json.dumps(exchange, ensure_ascii=False)}" for exchange in case["exchanges"])
    return f'{{"result": {json.dumps(case["result"])}, "exchanges": [\n{said}\n  ]}}'


def recording_of(engine: str) -> Recording:
    return Recording(FOLDER / f"{engine.replace(' ', '_')}.json", engine)


@dataclass
class Proxy:
    """Forwards requests and records the exchanges."""

    target: str
    model: str
    url: str = ""
    exchanges: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as client,
            client.request(request.method, self.target + request.path, data=body, headers=_headers(request)) as reply,
        ):
            content = await reply.read()
            kind = reply.content_type
        asked = json.loads(body) if body else None
        self.exchanges.append(
            {"path": request.path, "asked": _shortened(asked), "status": reply.status, **_answer(content, kind)}
        )
        return web.Response(body=content, status=reply.status, content_type=kind)


def _headers(request: web.Request) -> dict[str, str]:
    return {"Content-Type": request.headers.get("Content-Type", "application/json")}


def _answer(content: bytes, kind: str) -> dict[str, Any]:
    try:
        return {"answer": _interesting(json.loads(content))}
    except ValueError:
        return {"text": MODEL_FILE.sub('"model": ""', content.decode(errors="replace")), "kind": kind}


def _interesting(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: _interesting(inner) for name, inner in value.items() if name not in UNINTERESTING}
        # The presence of timings identifies llama.cpp, but their values are irrelevant.
        empty: dict[str, Any] = {"timings": {}, "top_logprobs": []}
        return kept | {name: value for name, value in empty.items() if kept.get(name)}
    if isinstance(value, list):
        return [_interesting(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _shortened(value: Any) -> Any:
    """A request in the form in which it is compared: without ids, and with long filler text shortened."""
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    if isinstance(value, float):
        return round(value, DIGITS)
    return value[:100] + "…" if isinstance(value, str) and len(value) > LONGEST else value


@asynccontextmanager
async def recording_proxy(target: str, model: str) -> AsyncIterator[Proxy]:
    """A proxy in front of an engine, for the duration of the context."""
    proxy = Proxy(target, model)
    async with _listening(proxy.handle) as url:
        proxy.url = url
        yield proxy


@asynccontextmanager
async def replaying(exchanges: list[dict[str, Any]]) -> AsyncIterator[str]:
    """An endpoint that replays an engine's answers; a repeated request gets them in order, then the last one again."""
    waiting: dict[str, list[dict[str, Any]]] = {}
    for exchange in exchanges:
        waiting.setdefault(_key(exchange["path"], exchange["asked"]), []).append(exchange)

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        key = _key(request.path, _shortened(json.loads(body) if body else None))
        left = waiting.get(key)
        if not left:
            return web.json_response({"error": {"message": f"not recorded: {key[:300]}"}}, status=UNRECORDED)
        found = left.pop(0) if len(left) > 1 else left[0]
        if "text" in found:
            return web.Response(text=found["text"], status=found["status"], content_type=found["kind"])
        return web.json_response(found["answer"], status=found["status"])

    async with _listening(handle) as url:
        yield url


def _key(path: str, asked: Any) -> str:
    return f"{path} {json.dumps(asked, sort_keys=True)}"


@asynccontextmanager
async def _listening(handle: Any) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()
