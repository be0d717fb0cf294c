"""Direct dispatch must be indistinguishable from a real request: the same app is driven both ways and compared."""

import datetime as dt
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import Morsel
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, Body, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict
from starlette.middleware import Middleware

from nemo_gym.io.json import encode_json
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.direct.replies import Call, DirectReply
from nemo_gym.servers.middleware.faults import FaultMiddleware, fault_body
from nemo_gym.servers.middleware.sessions import SESSION_ID_KEY, SessionCookies, SessionMiddleware

LABEL = "Toy___toy"
URL = "http://127.0.0.1:9999"


class Order(BaseModel):
    item: str
    count: int = 1
    notes: list[str] = []


class LooseOrder(Order):
    model_config = ConfigDict(extra="allow")


class StrictOrder(BaseModel):
    model_config = ConfigDict(strict=True)
    day: dt.date


class Receipt(BaseModel):
    item: str
    total: float | None = None


class DetailedReceipt(Receipt):
    internal: str = "not for the caller"


class OddError(Exception):
    pass


class Handlers:
    """The kinds of handlers that authors write."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def order(self, body: Order) -> Receipt:
        self.seen.append(body)
        return Receipt(item=body.item, total=body.count * 1.5)

    async def loose(self, body: LooseOrder = Body()) -> LooseOrder:
        return body

    async def subclass(self, body: Order) -> Receipt:
        return DetailedReceipt(item=body.item)

    async def as_dict(self, body: Order) -> Receipt:
        return {"item": body.item, "total": 2}  # type: ignore[return-value]

    async def unannotated(self, body: Order):
        return {"größe": [1, 2.5, None], "body": body}

    def sync(self, body: Order) -> Receipt:
        return Receipt(item=body.item)

    async def session(self, request: Request, body: Order) -> dict[str, Any]:
        return {
            "id": len(request.session[SESSION_ID_KEY]),
            "cookies": sorted(request.cookies),
            "path": request.url.path,
            "json": await request.json(),
            "type": request.headers["content-type"],
        }

    async def remember(self, request: Request) -> dict[str, Any]:
        request.session["visits"] = request.session.get("visits", 0) + 1
        return {"visits": request.session["visits"]}

    async def cookies(self, response: Response) -> Receipt:
        response.set_cookie("other___server", "abc=d")
        response.headers["x-hint"] = "yes"
        response.status_code = 201
        return Receipt(item="x")

    async def own_response(self) -> JSONResponse:
        return JSONResponse({"a": 1}, status_code=418, headers={"x-own": "1"})

    async def text(self) -> PlainTextResponse:
        return PlainTextResponse("héllo")

    async def stream(self) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one,"
            yield b"two"

        return StreamingResponse(parts(), media_type="text/plain")

    async def refuse(self, body: Order) -> Receipt:
        raise HTTPException(status_code=409, detail={"why": body.item})

    async def crash(self, body: Order) -> Receipt:
        raise ValueError(f"bad {body.item} ä")

    async def odd(self) -> Receipt:
        raise OddError

    async def relay(self) -> Receipt:
        error = RuntimeError("inner")
        error.response_content = b'{"detail":"deep"}'  # type: ignore[attr-defined]
        raise error

    async def lies(self) -> Receipt:
        return {"total": "not a number"}  # type: ignore[return-value]

    async def strict(self, body: StrictOrder) -> dict[str, str]:
        return {"day": str(body.day)}

    async def listed(self, body: list[int]) -> int:
        return sum(body)

    async def optional(self, body: Order | None = None) -> bool:
        return body is None

    async def embedded(self, body: Order = Body(embed=True)) -> str:
        return body.item

    async def by_path(self, name: str, body: Order) -> str:
        return f"{name}:{body.item}"

    async def by_query(self, body: Order, verbose: bool = False) -> str:
        return f"{verbose}:{body.item}"

    async def depends(self, body: Order, extra: int = Depends(lambda: 7)) -> int:
        return extra

    async def background(self, tasks: BackgroundTasks) -> str:
        tasks.add_task(self.seen.append, "background")
        return "queued"


def make_app() -> tuple[FastAPI, Handlers]:
    handlers = Handlers()
    app = FastAPI()
    app.add_middleware(SessionMiddleware, cookies=SessionCookies(LABEL, "secret"))
    for name in [name for name in vars(Handlers) if not name.startswith("_") and name != "by_path"]:
        app.post(f"/{name}")(getattr(handlers, name))
    app.post("/path/{name}")(handlers.by_path)
    app.post("/created", status_code=201)(handlers.order)
    app.get("/alive")(handlers.text)

    @app.exception_handler(OddError)
    async def handle_odd(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"odd": request.url.path}, status_code=499)

    app.user_middleware.append(Middleware(FaultMiddleware, server=LABEL))
    return app, handlers


@asynccontextmanager
async def over_asgi(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url=URL, follow_redirects=True) as client:
        yield client


async def call_both(path: str, json: Any, *, method: str = "POST", cookies: dict[str, str] | None = None):
    app, _ = make_app()
    direct = await LocalServer(app, label=LABEL, base_url=URL).call(method, path, json=json, cookies=cookies)
    async with over_asgi(make_app()[0]) as client:
        body = encode_json(json)
        headers = {"content-type": "application/json"} if body else {}
        real = await client.request(method, path, content=body, headers=headers, cookies=cookies)
    return direct, real


def meaning(body: bytes) -> Any:
    """The JSON of a body: older releases of FastAPI write the same number in another way."""
    try:
        return json.loads(body)
    except ValueError:
        return body


def session_of(cookie: str) -> int:
    return len(SessionCookies(LABEL, "secret").open(cookie))


ORDER = {"item": "pear", "count": 2}
CASES: dict[str, tuple[str, Any]] = {
    **{name: (f"/{name}", ORDER) for name in vars(Handlers) if not name.startswith("_") and name != "by_path"},
    "a path parameter": ("/path/x", ORDER),
    "a status of its own": ("/created", ORDER),
    "a missing field": ("/order", {"count": 1}),
    "a wrong type": ("/order", {"item": "x", "count": "many"}),
    "no body": ("/order", None),
    "broken JSON": ("/order", b'{"item": '),
    "not an object": ("/order", [1, 2]),
    "a model, of which only what was set": ("/loose", LooseOrder(item="x", colour="green")),  # type: ignore[call-arg]
    "an unknown path": ("/nowhere", ORDER),
    "strict, valid for JSON only": ("/strict", {"day": "2026-01-02"}),
    "a list": ("/listed", [1, 2, 3]),
    "embedded": ("/embedded", {"body": ORDER}),
    "non-ASCII": ("/loose", {"item": "müsli 🥣"}),
    "a big integer and an exponent": ("/loose", {"item": "x", "n": 2**70, "f": 1e300}),
    "a trailing slash": ("/order/", ORDER),
}


@pytest.mark.parametrize(("path", "content"), CASES.values(), ids=CASES.keys())
async def test_a_direct_call_answers_like_a_real_request(path: str, content: Any) -> None:
    direct, real = await call_both(path, content)
    assert direct.status == real.status_code
    assert meaning(await direct.read()) == meaning(real.content)
    assert direct.headers.get("content-type") == real.headers.get("content-type")
    assert set(direct.cookies) == set(real.cookies)
    assert session_of(direct.cookies[LABEL].value) == session_of(real.cookies[LABEL])


async def test_a_wrong_method_is_refused_alike() -> None:
    direct, real = await call_both("/order", None, method="GET")
    assert (direct.status, await direct.read()) == (real.status_code, real.content) == (405, real.content)


async def test_headers_and_cookies_set_by_a_handler_arrive() -> None:
    direct, real = await call_both("/cookies", None)
    assert direct.headers["x-hint"] == real.headers["x-hint"] == "yes"
    assert direct.cookies["other___server"].value == real.cookies["other___server"].strip('"') == "abc=d"


async def test_sender_and_receiver_never_share_an_object() -> None:
    app, handlers = make_app()
    server = LocalServer(app, label=LABEL, base_url=URL)
    sent = Order(item="pear", notes=["ripe"])
    await server.call("POST", "/order", json=sent)
    handlers.seen[0].notes.append("eaten")
    handlers.seen[0].item = "core"
    assert sent == Order(item="pear", notes=["ripe"])


async def test_a_session_is_kept_by_its_cookie_and_may_grow() -> None:
    server = LocalServer(make_app()[0], label=LABEL, base_url=URL)
    first = await server.call("POST", "/remember")
    second = await server.call("POST", "/remember", cookies=first.cookies)
    third = await server.call("POST", "/remember", cookies={LABEL: second.cookies[LABEL].value})
    assert [await reply.json() for reply in (first, second, third)] == [{"visits": 1}, {"visits": 2}, {"visits": 3}]


async def test_a_session_that_nobody_opened_is_the_same_for_all_who_send_its_cookie() -> None:
    server = LocalServer(make_app()[0], label=LABEL, base_url=URL)
    seeded = await server.call("POST", "/order", json=ORDER)
    passed_on = await server.call("POST", "/order", json=ORDER, cookies=seeded.cookies)
    ids = []
    for cookies in (passed_on.cookies, seeded.cookies, {LABEL: seeded.cookies[LABEL].value}):
        reply = await server.call("POST", "/remember", cookies=cookies)
        session = SessionCookies(LABEL, "secret").open(reply.cookies[LABEL].value)
        ids.append(session[SESSION_ID_KEY])
    assert len(set(ids)) == 1
    other = await server.call("POST", "/order", json=ORDER)
    assert other.cookies[LABEL].value not in (seeded.cookies[LABEL].value, passed_on.cookies[LABEL].value)


async def test_cookies_are_strings_that_can_be_copied_and_replaced() -> None:
    server = LocalServer(make_app()[0], label=LABEL, base_url=URL)
    first, second = [await server.call("POST", "/order", json=ORDER) for _ in range(2)]
    assert first.cookies[LABEL] == first.cookies[LABEL].value
    assert pickle.loads(pickle.dumps(second.cookies)) == second.cookies
    morsel: Morsel[str] = Morsel()  # the cookie of another client
    morsel.set(LABEL, first.cookies[LABEL], first.cookies[LABEL])
    for cookies in ({**second.cookies, LABEL: first.cookies[LABEL]}, {LABEL: morsel}, {LABEL: morsel.value}):
        reply = await server.call("POST", "/order", json=ORDER, cookies=cookies)
        assert reply.cookies == {LABEL: first.cookies[LABEL]}


async def test_a_session_survives_a_crashed_handler_on_both_ways() -> None:
    direct, real = await call_both("/crash", ORDER, cookies=None)
    assert direct.status == real.status_code == 500
    assert LABEL in direct.cookies
    assert LABEL in real.cookies


def test_a_fault_with_text_that_is_no_unicode_still_has_a_body() -> None:
    assert json.loads(fault_body(ValueError("bad \udce4"), LABEL)) == "ValueError('bad \\udce4')"


async def test_a_forged_cookie_opens_a_new_session() -> None:
    server = LocalServer(make_app()[0], label=LABEL, base_url=URL)
    reply = await server.call("POST", "/remember", cookies={LABEL: "eyJ2aXNpdHMiOiA5OX0=.forged.forged"})
    assert await reply.json() == {"visits": 1}


async def test_middleware_of_the_author_is_never_skipped() -> None:
    app, _ = make_app()

    @app.middleware("http")
    async def stamp(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = "1"
        return response

    reply = await LocalServer(app, label=LABEL, base_url=URL).call("POST", "/order", json=ORDER)
    assert reply.headers["x-stamp"] == "1"


async def test_a_catch_all_registered_earlier_wins() -> None:
    app = FastAPI()
    app.user_middleware.append(Middleware(FaultMiddleware, server=LABEL))

    @app.post("/{path:path}")
    async def everything(path: str) -> str:
        return f"all:{path}"

    @app.post("/late")
    async def late() -> str:
        return "late"

    reply = await LocalServer(app, label=LABEL, base_url=URL).call("POST", "/late")
    assert await reply.json() == "all:late"


async def test_a_reply_raises_what_aiohttp_raises() -> None:
    import aiohttp

    reply = DirectReply(Call("POST", "/x", b"", {}, None, base_url=URL), 503, b"{}")
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        reply.raise_for_status()
    assert caught.value.status == 503
    assert "503" in str(caught.value)
