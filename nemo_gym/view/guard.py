"""Protects the viewer from a hostile network: host names, a token, and security headers.

Rollouts hold whatever a model wrote, and any web page can make a browser send requests to a local port. So a request
must name a host that is ours (a foreign name that resolves to this machine does not count), a viewer that listens
beyond this machine requires a token, and every reply forbids the browser everything but our own files.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.servers.middleware.host_names import foreign_name

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>Rollout Gym</title><h1>{error}</h1><p>{hint}</p></html>"
)
COOKIE: Final = "rollout_gym_viewer"


class Guard:
    """Refuses requests that are not allowed, and puts the security headers on every reply."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "no-store" if "/api/" in scope["path"] else "no-cache"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        foreign = foreign_name(headers, self._hosts)
        if foreign is not None:
            return _refused(421, f"this viewer does not serve {foreign}", "open the address it printed")
        return self._token_refusal(scope, headers) if self._token else None

    def _token_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        assert self._token
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and _same(given, self._token):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # One slash in front: to a browser, two would begin the name of another host.
            path = "/" + scope["path"].lstrip("/\\")
            reply = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
            # Lax, not strict: otherwise a link opened from a chat would lose the cookie on this very redirect.
            reply.set_cookie(_cookie_name(scope), self._token, httponly=True, samesite="lax", path="/")
            return reply
        if _same(_cookie(headers, _cookie_name(scope)), self._token):
            return None
        error, hint = (
            "This viewer needs its token.",
            "Open the whole address that it printed, with ?token=… at the end.",
        )
        if "text/html" in headers.get("accept", ""):
            return HTMLResponse(_PAGE.format(error=error, hint=hint), status_code=401)
        return _refused(401, error, hint)


def _cookie_name(scope: Scope) -> str:
    """The cookie of this port: cookies ignore ports, and a machine may run several viewers."""
    return f"{COOKIE}_{scope['server'][1]}"


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _same(given: str, token: str) -> bool:
    # Takes the same time however much of the token is right, so that it can't be guessed piece by piece.
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _refused(status: int, error: str, hint: str) -> Response:
    return JSONResponse({"error": error, "hint": hint}, status_code=status)
