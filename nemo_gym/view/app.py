"""The viewer's JSON API and its page, served on a port. Only the library's files can be read, only marks written.

Handlers are plain functions that run in threads: they wait for SQLite and the disk, never for the network. A viewer
that is reachable from other machines needs a token (``guard``).
"""

import hashlib
import math
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.filters import FilterError
from nemo_gym.schemas.record import PASS_THRESHOLD
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.middleware.host_names import host_names, is_loopback
from nemo_gym.view import groups as grouping
from nemo_gym.view.audited import run_audit
from nemo_gym.view.by_field import fields_of_run
from nemo_gym.view.guard import Guard
from nemo_gym.view.home import RunsHome
from nemo_gym.view.index.steps_index import StepsState
from nemo_gym.view.library import Library, Snapshot
from nemo_gym.view.listing import PAGE_ROWS, UNAVAILABLE, code_of, known_columns, line_of, scatter, table_rows, to_bytes
from nemo_gym.view.marking import marks_of, save_mark
from nemo_gym.view.overview import current_numbers, overview_numbers
from nemo_gym.view.page import STATIC, page_html
from nemo_gym.view.rollout import (
    CHANGE_ORDERS,
    PAIRINGS,
    compare_fields,
    compare_rollouts,
    pair_runs,
    rollout,
    rows_of_run,
)
from nemo_gym.view.selection import Query, Selection, Selections
from nemo_gym.view.timing import run_timing

MOST_ROWS: Final = 1_000  # in one reply
MOST_MARKED: Final = 64 << 10  # bytes of a mark
_COMPARING: Final = (("sort", CHANGE_ORDERS[0]), ("pair_by", PAIRINGS[0]))
_ATTEMPTS: Final = 20  # attempts to read a file that is being replaced
_PAUSE_S: Final = 0.1  # between these attempts, in which the index catches up with the new file
_CACHED: Final = 8  # cached overviews, and as many timings

Handler = Callable[[Snapshot, Request], Any]
K = TypeVar("K")
V = TypeVar("V")
_PORTS_TRIED: Final = 100
_LAST_PORT: Final = 65_535
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not used


class Api:
    """The routes under ``/api``; each is a function of a snapshot and the request."""

    def __init__(self, library: Library, pass_threshold: float = PASS_THRESHOLD) -> None:
        self._library = library
        self._pass_threshold = pass_threshold
        self._selections = Selections()
        self._overviews: dict[tuple[int, int, Query, float], dict[str, Any]] = {}
        self._timings: dict[tuple[int, int, Query, int], tuple[StepsState, dict[str, Any]]] = {}

    def routes(self) -> list[Route]:
        handlers: dict[str, Handler] = {
            "/state": self.state,
            "/columns": self.columns,
            "/rollouts": self.rollouts,
            "/groups": self.groups,
            "/rollout/{id}": self.rollout,
            "/rollout/{id}/raw": self.raw,
            "/overview": self.overview,
            "/scatter": self.scatter,
            "/timing": self.timing,
            "/audit": self.audit,
            "/compare": self.compare,
            "/compare_runs": self.compare_runs,
            "/fields": self.fields,
            "/marks": self.marks,
        }
        routes = [Route(path, partial(self._reply, handler)) for path, handler in handlers.items()]
        return [*routes, Route("/rollout/{id}/mark", self.mark, methods=["POST"])]

    async def mark(self, request: Request) -> Response:
        """Save somebody's label and note on a rollout."""
        body = await read_limited(request, MOST_MARKED)

        def save(snapshot: Snapshot, request: Request) -> Any:
            return save_mark(snapshot, _code(snapshot, request.path_params["id"]), body)

        return await self._reply(save, request)

    async def _reply(self, handler: Handler, request: Request) -> Response:
        try:
            return await run_in_threadpool(self._attempt, handler, request)
        except FilterError as error:
            return _error(400, error, position=error.position)
        except ConfigError as error:
            return _error(400, error)

    def _attempt(self, handler: Handler, request: Request) -> Response:
        for _ in range(_ATTEMPTS):
            try:
                body = handler(self._library.snapshot(), request)
            except UNAVAILABLE:
                time.sleep(_PAUSE_S)
                continue
            return body if isinstance(body, Response) else _json(body)
        raise HTTPException(503, "the file is being replaced: try again")

    # ---- handlers ------------------------------------------------------------------------------------------------

    def state(self, snapshot: Snapshot, request: Request) -> Response:
        """Which files there are and how far they are indexed; 304 if the page has this state already."""
        files = [run.state() for run in snapshot.runs]
        title, threshold = self._library.title, self._pass_threshold
        return _if_changed(
            request, {"version": snapshot.version, "files": files, "title": title, "threshold": threshold}
        )

    def columns(self, snapshot: Snapshot, _: Request) -> Any:
        return {"columns": [fact.described() for fact in snapshot.columns.values()]}

    def rollouts(self, snapshot: Snapshot, request: Request) -> Any:
        selection, (start, stop) = self._selected(snapshot, request), _window(request)
        columns = known_columns(snapshot, request.query_params.get("columns", ""))
        rows = table_rows(selection, start, stop, columns, request.query_params.get("search", ""))
        return {"version": snapshot.version, "total": len(selection), "offset": start, "rows": rows}

    def groups(self, snapshot: Snapshot, request: Request) -> Any:
        selection, (start, stop) = self._selected(snapshot, request, sort=""), _window(request)
        by, sort = request.query_params.get("by", "task"), request.query_params.get("sort") or "key"
        threshold = self._threshold(request)
        return grouping.groups(selection, by=by, sort=sort, start=start, stop=stop, threshold=threshold)

    def rollout(self, snapshot: Snapshot, request: Request) -> Any:
        return rollout(self._selected(snapshot, request), _code(snapshot, request.path_params["id"]))

    def raw(self, snapshot: Snapshot, request: Request) -> Response:
        """The line as it is in the file."""
        _, _, line = line_of(snapshot, _code(snapshot, request.path_params["id"]))
        return Response(bytes(line), media_type="application/json")

    def overview(self, snapshot: Snapshot, request: Request) -> Any:
        query = _query(request)._replace(sort="")
        whole = not query.filter.strip() and not query.search.strip()
        threshold = self._threshold(request)
        key = (snapshot.version, snapshot.searchable if query.search else 0, query, threshold)
        if key not in self._overviews:
            found = overview_numbers(self._selections.get(snapshot, query), whole=whole, threshold=threshold)
            self._overviews = _with_latest(self._overviews, key, found)
        numbers = self._overviews[key]
        return numbers | current_numbers(snapshot.runs, numbers, whole=whole)

    def scatter(self, snapshot: Snapshot, request: Request) -> Any:
        names = (request.query_params.get(axis) or default for axis, default in (("x", "tokens"), ("y", "reward")))
        return scatter(self._selected(snapshot, request, sort=""), *names)

    def timing(self, snapshot: Snapshot, request: Request) -> Any:
        """Where the time of one file's rollouts went."""
        query, number = _query(request)._replace(sort=""), _integer(request, "run", default=0)
        if number >= len(snapshot.runs):
            raise ConfigError(f"no file {number}", hint=f"files are numbered from 0 to {len(snapshot.runs) - 1}")
        key = (snapshot.version, snapshot.searchable if query.search else 0, query, number)
        steps = snapshot.runs[number].steps.state
        if key not in self._timings or self._timings[key][0] != steps:
            whole = not query.filter.strip() and not query.search.strip()
            found = run_timing(self._selections.get(snapshot, query), number, whole=whole)
            self._timings = _with_latest(self._timings, key, (steps, found))
        return self._timings[key][1]

    def audit(self, snapshot: Snapshot, _: Request) -> Any:
        """What ``ng_audit`` found in each file."""
        return {"runs": [run_audit(run) for run in snapshot.runs]}

    def marks(self, snapshot: Snapshot, request: Request) -> Any:
        """The labels in a selection, and how often they agree with the reward."""
        return marks_of(self._selected(snapshot, request, sort=""), self._threshold(request))

    def compare(self, snapshot: Snapshot, request: Request) -> Any:
        codes = [_code(snapshot, request.query_params.get(name, "")) for name in "ab"]
        return compare_rollouts(self._selected(snapshot, request), *codes)

    def compare_runs(self, snapshot: Snapshot, request: Request) -> Any:
        start, stop = _window(request)
        sort, pair_by = (request.query_params.get(name) or usual for name, usual in _COMPARING)
        return pair_runs(
            snapshot, *self._two_runs(snapshot, request), sort=sort, start=start, stop=stop, pair_by=pair_by
        )

    def fields(self, snapshot: Snapshot, request: Request) -> Any:
        """What the rewards depend on, in everything that is selected; or where they changed between files a and b."""
        if "a" not in request.query_params:
            return fields_of_run(self._selected(snapshot, request, sort=""))
        pair_by = request.query_params.get("pair_by") or PAIRINGS[0]
        return compare_fields(snapshot, *self._two_runs(snapshot, request), pair_by=pair_by)

    def _two_runs(self, snapshot: Snapshot, request: Request) -> list[Selection]:
        selected = self._selected(snapshot, request, sort="")
        return [rows_of_run(selected, _integer(request, name, default=-1)) for name in "ab"]

    def _threshold(self, request: Request) -> float:
        """The lowest reward that passes: from the request, or else from the viewer's own settings."""
        text = request.query_params.get("threshold") or ""
        try:
            given = float(text) if text else self._pass_threshold
        except ValueError:
            given = math.nan
        if not math.isfinite(given):
            raise ConfigError("threshold must be a number", hint="threshold=0.5")
        return given

    def _selected(self, snapshot: Snapshot, request: Request, sort: str | None = None) -> Selection:
        query = _query(request)
        return self._selections.get(snapshot, query if sort is None else query._replace(sort=sort))


def _with_latest(cache: dict[K, V], key: K, value: V) -> dict[K, V]:
    """A copy with one more entry and the last few of the others; a copy, because other threads may be reading."""
    return {**dict(list(cache.items())[-_CACHED:]), key: value}


def build_viewer(
    library: Library, *, token: str | None, hosts: frozenset[str], pass_threshold: float = PASS_THRESHOLD
) -> ASGIApp:
    """The whole application. With a token every request needs it; requests must be for one of the hosts."""
    return Guard(_viewer_app(Api(library, pass_threshold).routes()), token=token, hosts=hosts)


def build_home(home: RunsHome, *, token: str | None, hosts: frozenset[str], pass_threshold: float) -> ASGIApp:
    """The home of runs, and below ``/run/<ids>/`` the viewer of those that are opened."""
    viewers: dict[Library, ASGIApp] = {}

    async def state(request: Request) -> Response:
        runs = await run_in_threadpool(home.runs)
        return _if_changed(request, {"version": 0, "files": [], "title": home.title, "runs": runs})

    async def opened(scope: Scope, receive: Receive, send: Send) -> None:
        ids, _, _ = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/").partition("/")
        library = await run_in_threadpool(home.library, ids)
        if library is None:
            await _error(404, ConfigError("there is no such run", hint="go back to the list"))(scope, receive, send)
            return
        app = viewers.setdefault(library, _viewer_app(Api(library, pass_threshold).routes()))
        await app({**scope, "root_path": f"{scope.get('root_path', '')}/{ids}"}, receive, send)

    return Guard(_viewer_app([Route("/state", state)], Mount("/run", opened)), token=token, hosts=hosts)


def _viewer_app(api: Sequence[BaseRoute], *more: BaseRoute) -> Starlette:
    files = StaticFiles(directory=STATIC, check_dir=False)
    pages = [Route(path, _page) for path in ("/", "/index.html")]
    routes = [Mount("/api", routes=api), *more, *pages, Mount("/", files)]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


def _if_changed(request: Request, value: Any) -> Response:
    """The page asks every second, and mostly nothing has changed: 304 if it has this value already."""
    body = to_bytes(value)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, media_type="application/json", headers={"ETag": tag})


def _page(_: Request) -> Response:
    return HTMLResponse(page_html())


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, ConfigError(error.detail))


def _query(request: Request) -> Query:
    values = request.query_params
    return Query(values.get("filter", ""), values.get("search", ""), values.get("sort", ""))


async def read_limited(request: Request, most: int) -> bytes:
    """The body of a request, unless it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, f"at most {most} bytes")
    return body


def _window(request: Request) -> tuple[int, int]:
    start = _integer(request, "offset", default=0)
    return start, start + min(_integer(request, "limit", default=PAGE_ROWS), MOST_ROWS)


def _integer(request: Request, name: str, *, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 16):
        raise ConfigError(f"{name} must be a whole number", hint=f"{name}=0")
    return max(int(text), min(0, default))


def _code(snapshot: Snapshot, rollout: str) -> int:
    code = code_of(snapshot, rollout)
    if code is None:
        raise HTTPException(404, f"there is no rollout {rollout!r}")
    return code


def _json(value: Any) -> Response:
    return Response(to_bytes(value), media_type="application/json")


def _error(status: int, error: ConfigError, **more: Any) -> Response:
    body = {"error": str(error), "hint": error.hint, **more}
    return Response(to_bytes(body), status_code=status, media_type="application/json")


class ListenAddress(NamedTuple):
    """Where a viewer can be opened."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = socket.gethostname() if self.host in _EVERYWHERE else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


@asynccontextmanager
async def serving(
    shown: Library | RunsHome, host: str, port: int, *, pass_threshold: float = PASS_THRESHOLD
) -> AsyncIterator[ListenAddress]:
    """Serve while the context lasts, on the port or the next free one. Beyond this machine only with a token."""
    listener = bind_free(host, port)
    bound = int(listener.getsockname()[1])
    token = None if is_loopback(host) else secrets.token_urlsafe(18)  # 144 bits: can't be guessed
    hosts = host_names([host])
    if isinstance(shown, RunsHome):
        app = build_home(shown, token=token, hosts=hosts, pass_threshold=pass_threshold)
    else:
        app = build_viewer(shown, token=token, hosts=hosts, pass_threshold=pass_threshold)
    async with listening({bound: app}, [listener]):
        yield ListenAddress(host, bound, token)


def bind_free(host: str, port: int) -> socket.socket:
    """A socket on the port or, if it is taken, on the next free one."""
    _check(host)
    error = ConfigError(f"{port} is not a port", hint="+server_port=<0 to 65535>")
    for candidate in range(port, min(port + _PORTS_TRIED, _LAST_PORT + 1)):
        try:
            return bind(host, candidate, owner="the viewer")
        except ConfigError as found:
            error = found
    raise error


def _check(host: str) -> None:
    """Refuse a host that is not an address of this machine, before any port is tried."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"the viewer can't listen on {host!r}: {error.strerror}",
            hint="+server_host=127.0.0.1, or an address of this machine",
        ) from None
