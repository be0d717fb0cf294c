"""Who may call the servers of a Gym over HTTP: programs of the user who runs it, and callers that prove that they may.

Model servers spend the user's key and other servers run the user's code, so a request is refused unless one of these
holds; calls inside the process never come here:

* the kernel says that the caller is a program of the same user on this machine, whatever it sends: a script in a second
  terminal, an agent with a client of its own, a server in its own process;
* it has the run's token, as a header of ours or as a bearer token, which any client of OpenAI's can send as its key;
* it has a session cookie that the server has signed, or a session token of the server's MCP endpoint.

Before that, its host and origin must be ours (``host_names``), whoever it is: browsers run as the user, too. Where the
kernel can't tell who calls (not Linux), every caller on this machine counts as the user. Requests to the address of an
attempt never come here, because they need the key of the attempt (``gateway_door``).
"""

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.keys import ALLOWED_HOSTS, HEAD_SERVER, SERVE_TOKEN
from nemo_gym.errors import ConfigError
from nemo_gym.io.loopback_peer import knows_users, user_of_peer
from nemo_gym.servers.mcp_tools import MCP_PATH, NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.servers.middleware.host_names import foreign_name, host_names, is_loopback
from nemo_gym.servers.middleware.sessions import SessionCookies, incoming_cookies
from nemo_gym.servers.server_client import TOKEN_HEADER, TOKEN_VARIABLE

_BEARER: Final = "bearer "
_HOSTS_HINT: Final = f"call it by an address that ng_run printed, or add the name: +{ALLOWED_HOSTS}=[NAME]"
_TOKEN_HINT: Final = (
    f"send the run's token as header {TOKEN_HEADER} or as bearer token (ng_run says where it is; our own client takes "
    f"it from there or from {TOKEN_VARIABLE}), or start the servers with +{SERVE_TOKEN}=off, which lets everybody call"
)


@dataclass(frozen=True, slots=True)
class Callers:
    """Decides which requests to the ports of a Gym are answered."""

    hosts: frozenset[str]
    token: str | None  # None: whoever uses the right host may call
    open_ports: frozenset[int] = frozenset()  # that ask for no token: the head server masks secrets by itself
    cookies: dict[int, SessionCookies | None] = field(default_factory=dict)  # by port

    def refusal(self, scope: Scope) -> Response | None:
        """The reply to a request that is refused; None for all others."""
        headers = Headers(scope=scope)
        foreign = foreign_name(headers, self.hosts)
        if foreign is not None:
            return _refused(421, f"this server does not answer {foreign}", _HOSTS_HINT)
        port = scope["server"][1]
        if self.token is None or port in self.open_ports or self._is_trusted(scope, headers, port):
            return None
        return _refused(401, "this server answers only the user who runs it", _TOKEN_HINT)

    def _is_trusted(self, scope: Scope, headers: Headers, port: int) -> bool:
        given = headers.get(TOKEN_HEADER) or _bearer(headers)
        if given and hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode()):
            return True
        if _is_same_user(scope):
            return True
        if scope["path"] == MCP_PATH and headers.get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER):
            return True  # the endpoint itself verifies it
        cookies = self.cookies.get(port)
        return cookies is not None and cookies.are_signed_in(incoming_cookies(scope))


def callers_of(
    config: Mapping[str, Any], instances: Iterable[ServerInstance], *, token: str | None = None, **places: Any
) -> Callers:
    """The callers that a configuration allows; without a token, that of the environment or a new one is used."""
    further = config.get(ALLOWED_HOSTS) or ()
    if isinstance(further, str) or not all(isinstance(name, str) for name in further):
        raise ConfigError(f"{ALLOWED_HOSTS} is {further!r}", hint=f"give a list of names: +{ALLOWED_HOSTS}=[NAME]")
    hosts = host_names([instance.host for instance in instances] + [config[HEAD_SERVER]["host"]], further=further)
    needed = token or os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
    return Callers(hosts, needed if asks_for_token(config) else None, **places)


def asks_for_token(config: Mapping[str, Any]) -> bool:
    """Whether callers have to prove who they are."""
    given = config.get(SERVE_TOKEN)
    if given in (None, True, "on"):
        return True
    if given in (False, "off"):
        return False
    raise ConfigError(f"{SERVE_TOKEN} is {given!r}", hint=f"+{SERVE_TOKEN}=off lets everybody call; the default is on")


def signed_cookies(app: Starlette) -> SessionCookies | None:
    """The cookies that an app signs; None if it has its own kind of sessions."""
    return getattr(app.state, "session_cookies", None)


def _is_same_user(scope: Scope) -> bool:
    peer = scope.get("client")
    if peer is None:
        return False
    # Root could read the token anyway.
    if user_of_peer(tuple(peer), tuple(scope["server"])) in (0, os.geteuid()):
        return True
    return is_loopback(peer[0].removeprefix("::ffff:")) and not knows_users()


def _bearer(headers: Headers) -> str:
    given = headers.get("authorization", "")
    return given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""


def _refused(status: int, error: str, hint: str) -> Response:
    return JSONResponse({"error": {"message": error, "hint": hint}}, status_code=status)
