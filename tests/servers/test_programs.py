"""Handlers and clients as people write them, over direct dispatch, our HTTP, and plain uvicorn and aiohttp.

Each handler reports what it sees of its request; each client reports what it sees of its answer. All three ways must
show both sides the same.
"""

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import pytest
import pytest_asyncio
import uvicorn
from fastapi import (
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
)
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    StreamingResponse,
)
from omegaconf import OmegaConf
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask
from starlette.middleware import Middleware

from nemo_gym.io.json import encode_json
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.middleware.faults import FaultMiddleware
from nemo_gym.servers.middleware.sessions import SessionCookies, SessionMiddleware
from nemo_gym.servers.server_client import GymClient
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

LABEL = "Programs___programs"


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    y: float = 0.5
    label: str | None = Field(None, alias="theLabel")


@dataclasses.dataclass
class Pair:
    left: int
    right: list[str]


def morsel(name: str, value: str) -> "Morsel[str]":
    cookie = SimpleCookie()
    cookie[name] = value
    return cookie[name]


# ---- handlers: what a request shows ----------------------------------------------------------------------------------
async def see_url(request: Request) -> dict[str, Any]:
    url = request.url
    return {"path": url.path, "query": url.query, "scheme": url.scheme, "host": url.hostname, "method": request.method}


async def see_headers(request: Request) -> dict[str, Any]:
    names = ("content-type", "content-length", "accept")
    return {name: request.headers.get(name) for name in names} | {
        name: name in request.headers for name in ("host", "user-agent")
    }


async def see_body_twice(request: Request) -> dict[str, Any]:
    return {"bytes": len(await request.body()), "json": await request.json(), "again": len(await request.body())}


async def see_stream(request: Request) -> dict[str, Any]:
    return {"streamed": sum([len(chunk) async for chunk in request.stream()])}


async def see_connection(request: Request) -> dict[str, Any]:
    return {"gone": await request.is_disconnected(), "client": request.client.host if request.client else None}


async def see_scope(request: Request) -> dict[str, Any]:
    scope = request.scope
    known = {name: scope[name] for name in ("type", "path", "method", "root_path", "scheme")}
    return {**known, "params": dict(request.path_params), "query": dict(request.query_params)}


async def see_url_for(request: Request) -> dict[str, Any]:
    return {"path": request.url_for("see_url").path, "app": request.app.state.name}


async def keep_state(request: Request) -> dict[str, Any]:
    request.state.seen = 1
    request.app.state.calls = getattr(request.app.state, "calls", 0) + 1
    return {"seen": request.state.seen}


async def see_cookies(request: Request) -> dict[str, Any]:
    return {"cookies": {name: text for name, text in sorted(request.cookies.items()) if name != LABEL}}


async def change_session(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    session = request.session
    session.update(body)
    session.setdefault("list", []).append(len(session.get("list", [])))
    session.pop("drop", None)
    return {name: session[name] for name in sorted(session) if name != "session_id"}


# ---- handlers: what they answer --------------------------------------------------------------------------------------
async def set_cookies(response: Response) -> dict[str, bool]:
    response.set_cookie("plain", "abc")
    response.set_cookie(key="keyword", value="d=e")
    response.set_cookie("morsel", morsel("morsel", "from a morsel"))  # type: ignore[arg-type]
    response.set_cookie("attributes", "1", max_age=60, path="/x", httponly=True, samesite="strict")
    response.set_cookie("spaced", "a b, c")
    response.set_cookie("twice", "first")
    response.set_cookie("twice", "second")
    response.delete_cookie("gone")
    return {"set": True}


async def set_headers(response: Response) -> dict[str, bool]:
    response.headers["X-One"] = "1"
    response.headers.append("X-Many", "a")
    response.headers.append("X-Many", "b")
    response.headers.update({"X-Two": "2"})
    response.status_code = 202
    return {"set": True}


async def set_cookies_and_headers(response: Response) -> dict[str, bool]:
    response.set_cookie("before", "1")
    response.headers["X-Between"] = "yes"
    response.set_cookie("after", "2")
    return {"set": "x-between" in response.headers}


async def own_answer_with_cookies() -> JSONResponse:
    answer = JSONResponse({"own": True}, status_code=201, headers={"X-Own": "1"})
    answer.set_cookie("own", "yes")
    return answer


async def with_background_response() -> JSONResponse:
    return JSONResponse({"queued": True}, background=BackgroundTask(lambda: None))


async def lines() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        for number in range(3):
            yield f"line {number}\n"
            await asyncio.sleep(0)

    return StreamingResponse(parts(), media_type="text/event-stream", headers={"X-Stream": "1"})


async def no_content() -> Response:
    return Response(status_code=204)


async def octets() -> Response:
    return Response(b"\x00\xff\n\x01", media_type="application/octet-stream")


async def latin() -> Response:
    return Response("grün".encode("latin-1"), media_type="text/plain; charset=latin-1")


async def problem() -> JSONResponse:
    return JSONResponse({"title": "no"}, status_code=422, media_type="application/problem+json")


async def page() -> HTMLResponse:
    return HTMLResponse("<p>ü</p>")


async def file() -> FileResponse:
    return FileResponse(Path(__file__).with_name("conftest.py"), media_type="text/x-python")


async def moved() -> RedirectResponse:
    return RedirectResponse("/see_url", status_code=303)


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "number": 1.5,
    "big": 2**70,
    "text": "ü 🥣 \u2028 </script>",
    "list": [1, "a", None],
    "tuple": (1, 2),
    "set": {3},
    "nested": {"a": {"b": [{"c": 1}]}, "1": 2},
    "day": dt.date(2026, 1, 2),
    "moment": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
    "span": dt.timedelta(seconds=90),
    "decimal": decimal.Decimal("1.50"),
    "uuid": uuid.UUID(int=7),
    "path": Path("a/b"),
    "enum": Colour.RED,
    "model": Point(x=1, theLabel="p"),
    "models": [Point(x=1), Point(x=2)],
    "dataclass": Pair(1, ["r"]),
    "bytes": b"abc",
}


async def returns(request: Request, body: dict[str, str]):
    return VALUES[body["value"]]


async def returns_model(body: Point) -> Point:
    return body


async def returns_union(body: Point) -> Point | list[int]:
    return [body.x]


async def returns_dataclass() -> Pair:
    return Pair(1, ["r"])


# ---- handlers: what they raise ---------------------------------------------------------------------------------------
ERRORS: dict[str, Callable[[], BaseException]] = {
    "http": lambda: HTTPException(403, detail={"why": ["x"]}, headers={"X-Why": "because"}),
    "http text": lambda: HTTPException(500, "on purpose"),
    "key": lambda: KeyError("missing"),
    "timeout": TimeoutError,
    "os": lambda: FileNotFoundError(2, "No such file", "data.json"),
    "group": lambda: ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    "stop": lambda: StopAsyncIteration("over"),
    "assertion": lambda: AssertionError("3 != 4"),
}


async def raises(body: dict[str, str]) -> None:
    error = ERRORS[body["error"]]()
    raise error


async def raises_validation() -> None:
    Point.model_validate({"x": "many"})


# ---- handlers: what they ask for -------------------------------------------------------------------------------------
async def by_query(verbose: bool = False, names: Annotated[list[str], Query()] = []) -> dict[str, Any]:  # noqa: B006
    return {"verbose": verbose, "names": names}


async def by_header(x_mark: Annotated[str | None, Header()] = None) -> dict[str, Any]:
    return {"mark": x_mark}


async def by_cookie(flavour: Annotated[str | None, Cookie()] = None) -> dict[str, Any]:
    return {"flavour": flavour}


async def by_parts(first: Annotated[int, Body()], second: Annotated[str, Body()] = "s") -> dict[str, Any]:
    return {"first": first, "second": second}


async def by_dependency(found: Annotated[str, Depends(lambda request=None: "found")]) -> str:
    return found


async def by_any(body: Any = Body(None)) -> Any:
    return {"got": body}


async def by_background(tasks: BackgroundTasks) -> str:
    tasks.add_task(lambda: None)
    return "queued"


def blocking(request: Request, body: Point) -> dict[str, Any]:
    return {"x": body.x, "session": "session_id" in request.session}


HANDLERS = [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and not isinstance(value, type)
    and name != "morsel"
]


# ---- clients: what an answer shows -----------------------------------------------------------------------------------
async def look_at_status(reply: Any) -> Any:
    return [reply.status, reply.ok, reply.reason, reply.method, reply.url.path, reply.real_url.path, reply.host]


async def look_at_headers(reply: Any) -> Any:
    headers = reply.headers
    names = sorted(
        {name.lower() for name in headers} - {"date", "server", "content-length", "set-cookie", "transfer-encoding"}
    )
    own = {name: headers.getall(name) for name in names if name not in ("last-modified", "etag", "location")}
    return [own, headers.get("CONTENT-TYPE"), headers.get("x-nowhere", "default"), "content-type" in headers]


async def look_at_type(reply: Any) -> Any:
    return [reply.content_type, reply.charset]


async def look_at_cookies(reply: Any) -> Any:
    found = {name: value.value for name, value in reply.cookies.items() if name != LABEL}
    paths = {name: value["path"] for name, value in reply.cookies.items() if name == "attributes"}
    return [found, paths, LABEL in reply.cookies, len(reply.cookies)]


async def pass_cookies_on(reply: Any) -> Any:
    answer = Response()
    for name, value in reply.cookies.items():
        answer.set_cookie(name, value.value)
    return sorted(name for name, _ in answer.headers.items())


async def read_twice(reply: Any) -> Any:
    return [(await reply.read()).hex(), (await reply.read()).hex()]


async def read_text(reply: Any) -> Any:
    return await reply.text(errors="replace")


async def read_json(reply: Any) -> Any:
    return await reply.json()


async def read_json_of_any_type(reply: Any) -> Any:
    return await reply.json(content_type=None)


async def read_json_with_floats_as_text(reply: Any) -> Any:
    return await reply.json(loads=lambda text: json.loads(text, parse_float=str))


async def read_content(reply: Any) -> Any:
    return [(await reply.content.read()).hex(), reply.content.at_eof()]


async def read_content_in_parts(reply: Any) -> Any:
    first = await reply.content.readexactly(2)
    rest = b"".join([chunk async for chunk in reply.content.iter_chunked(3)])
    return [first.hex(), rest.hex()]


async def read_content_by_line(reply: Any) -> Any:
    return [line.hex() async for line in reply.content]


async def read_content_by_any(reply: Any) -> Any:
    return b"".join([chunk async for chunk in reply.content.iter_any()]).hex()


async def read_content_by_chunks(reply: Any) -> Any:
    return b"".join([chunk async for chunk, _ in reply.content.iter_chunks()]).hex()


async def read_any_content(reply: Any) -> Any:
    return bool(await reply.content.readany())


async def raise_for_status(reply: Any) -> Any:
    try:
        reply.raise_for_status()
    except aiohttp.ClientResponseError as error:
        return [error.status, error.message, error.request_info.method, error.request_info.url.path]
    return "fine"


async def enter_and_leave(reply: Any) -> Any:
    async with reply as same:
        status = same.status
    reply.release()
    reply.close()
    return [status, reply.closed]


async def look_at_the_rest(reply: Any) -> Any:
    await reply.read()
    return [reply.get_encoding() if reply.charset else None, dict(reply.links), reply.version[0]]


CLIENTS = [
    look_at_status,
    look_at_headers,
    look_at_type,
    look_at_cookies,
    pass_cookies_on,
    read_twice,
    read_text,
    read_json,
    read_json_of_any_type,
    read_json_with_floats_as_text,
    read_content,
    read_content_in_parts,
    read_content_by_line,
    read_content_by_any,
    read_content_by_chunks,
    read_any_content,
    raise_for_status,
    enter_and_leave,
    look_at_the_rest,
]


# ---- calls: what a client sends --------------------------------------------------------------------------------------
BODY = {"x": 3, "theLabel": "ü"}
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{handler.__name__: ("POST", f"/{handler.__name__}", {"json": BODY}) for handler in HANDLERS},
    **{f"returns {name}": ("POST", "/returns", {"json": {"value": name}}) for name in VALUES},
    **{f"raises {name}": ("POST", "/raises", {"json": {"error": name}}) for name in ERRORS},
    "without a body": ("POST", "/see_url", {}),
    "a list as body": ("POST", "/by_any", {"json": [1, 2]}),
    "text as body": ("POST", "/by_any", {"json": "text"}),
    "a model as body": ("POST", "/returns_model", {"json": Point(x=4, theLabel="m")}),
    "models inside a body": ("POST", "/by_any", {"json": {"points": [Point(x=1), Point(x=2, y=1)]}}),
    "a body that does not fit": ("POST", "/returns_model", {"json": {"x": "many"}}),
    "query parameters": ("GET", "/get_query", {"params": {"verbose": "true", "names": "a"}}),
    "a query in the path": ("GET", "/get_query?verbose=1&names=a&names=b%20c", {}),
    "a query in the path of a POST": ("POST", "/see_scope?verbose=1&names=b%20c", {}),
    "a query in the path and a body": ("POST", "/by_any_scope?names=a#part", {"json": BODY}),
    "several values of a parameter": ("GET", "/get_query", {"params": {"verbose": "1", "names": ["a", "b c"]}}),
    "parameters as pairs": ("GET", "/get_query", {"params": [("verbose", "1"), ("names", "a"), ("names", "b")]}),
    "parameters as text": ("GET", "/get_query", {"params": "verbose=1&names=a+b"}),
    "parameters beside a query": ("GET", "/get_query?verbose=1", {"params": {"names": "ü/?&"}}),
    "no body and a header": ("POST", "/see_headers", {"headers": {"X-Mark": "m"}}),
    "no body": ("POST", "/see_headers", {}),
    "cookies that need quotes": ("POST", "/see_cookies", {"json": {}, "cookies": {"note": "a; b", "q": 'say "x", y'}}),
    "a quoted cookie parameter": ("POST", "/by_cookie", {"json": {}, "cookies": {"flavour": "oat; rye"}}),
    "headers": ("POST", "/by_header", {"json": {}, "headers": {"X-Mark": "m"}}),
    "cookies": ("POST", "/see_cookies", {"json": {}, "cookies": {"flavour": "oat", "other": "a=b"}}),
    "a cookie parameter": ("POST", "/by_cookie", {"json": {}, "cookies": {"flavour": "oat"}}),
    "a morsel as cookie": ("POST", "/see_cookies", {"json": {}, "cookies": {"flavour": morsel("flavour", "rye")}}),
    "a cookie jar": ("POST", "/see_cookies", {"json": {}, "cookies": SimpleCookie("a=1; b=2")}),
    "another method": ("PUT", "/put", {"json": BODY}),
    "a method nobody has": ("DELETE", "/returns_model", {}),
    "an unknown path": ("POST", "/nowhere", {"json": {}}),
    "a trailing slash": ("POST", "/returns_model/", {"json": BODY}),
    "a path parameter": ("POST", "/item/a%20b", {"json": BODY}),
    "GET": ("GET", "/see_url_get", {}),
}


def make_app() -> FastAPI:
    app = FastAPI()
    app.state.name = "programs"
    app.add_middleware(SessionMiddleware, cookies=SessionCookies(LABEL, "secret"))
    for handler in HANDLERS:
        app.post(f"/{handler.__name__}")(handler)
    app.get("/get_query")(by_query)
    app.get("/see_url_get")(see_url)
    app.put("/put")(returns_model)
    app.post("/by_any_scope")(see_scope)

    @app.post("/item/{name}")
    async def item(name: str, body: Point) -> dict[str, Any]:
        return {"name": name, "x": body.x}

    app.user_middleware.append(Middleware(FaultMiddleware, server=LABEL))
    return app


# ---- the three ways --------------------------------------------------------------------------------------------------
Call = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


class QuietServer(uvicorn.Server):
    """Serves in the event loop of the test, and leaves its signals alone."""

    def install_signal_handlers(self) -> None:
        return


async def serve(app: Any, port: int) -> tuple[QuietServer, "asyncio.Task[None]", int]:
    server = QuietServer(uvicorn.Config(app, port=port, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.01)
    return server, task, port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ways() -> AsyncIterator[dict[str, Call]]:
    """The same app, called directly, by our client over our server, and by plain aiohttp over plain uvicorn."""
    port = free_port()
    local = LocalServer(make_app(), label=LABEL, base_url=f"http://127.0.0.1:{port}")
    ours, plain = await serve(local, port), await serve(make_app(), free_port())
    client, remote = _client(port), _client(port)
    client.attach("programs", local)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def by_aiohttp(method: str, path: str, options: dict[str, Any]) -> Any:
            content = encode_json(options["json"]) if "json" in options else None
            headers = {"Content-Type": "application/json"} if content is not None else {}
            headers |= options.get("headers", {})
            rest = {name: value for name, value in options.items() if name not in ("json", "headers")}
            if "cookies" in rest:
                rest["cookies"] = {k: getattr(v, "value", v) for k, v in rest["cookies"].items()}
            return await session.request(
                method, f"http://127.0.0.1:{plain[2]}{path}", data=content, headers=headers, **rest
            )

        yield {
            "directly": partial(_send, client),
            "over our HTTP": partial(_send, remote),
            "over plain HTTP": by_aiohttp,
        }
    await close_http_client()
    for server, task, _ in (ours, plain):
        server.should_exit = True
        await task


async def _send(client: GymClient, method: str, path: str, options: dict[str, Any]) -> Any:
    if method == "POST":  # which has a shorter way of its own
        return await client.post("programs", path, **options)
    return await client.request("programs", path, method, **options)


def _client(port: int) -> GymClient:
    block = {
        "programs": {"resources_servers": {"programs": {"entrypoint": "app.py", "host": "127.0.0.1", "port": port}}}
    }
    return GymClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create(block)
    )


async def outcome(
    client: Callable[[Any], Awaitable[Any]], call: Call, arguments: tuple[str, str, dict[str, Any]]
) -> Any:
    """What a client program sees, or what it raises."""
    try:
        reply = await call(*(arguments[0], arguments[1], dict(arguments[2])))
        return await client(reply)
    except Exception as error:  # noqa: BLE001 - which one it is, is what is compared
        return type(error).__name__


@pytest.mark.parametrize("call", CALLS)
async def test_clients_and_handlers_see_the_same_on_every_way(ways: dict[str, Call], call: str) -> None:
    for client in CLIENTS:
        seen = {name: await outcome(client, way, CALLS[call]) for name, way in ways.items()}
        assert seen["directly"] == seen["over plain HTTP"], f"{client.__name__}, directly"
        assert seen["over our HTTP"] == seen["over plain HTTP"], f"{client.__name__}, over our HTTP"


async def test_a_session_grows_alike_on_every_way(ways: dict[str, Call]) -> None:
    seen = {}
    for name, way in ways.items():
        cookies: Any = {}
        seen[name] = []
        for body in ({"a": 1, "drop": 1}, {"a": 2}, {"b": {"c": [1]}}):
            reply = await way("POST", "/change_session", {"json": body, "cookies": cookies})
            seen[name].append(await reply.json())
            cookies = reply.cookies
    assert seen["directly"] == seen["over our HTTP"] == seen["over plain HTTP"]
    assert seen["directly"][-1]["list"] == [0, 1, 2]
