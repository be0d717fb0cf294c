"""Calls servers by name: a server of the same process directly, any other over HTTP.

The caller gets the same reply either way.
"""

import asyncio
import json as json_module
import os
from collections.abc import Coroutine, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

import msgspec
from multidict import CIMultiDict
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field
from yarl import URL

from nemo_gym.capture.calls import CallStore
from nemo_gym.capture.gateway import Gateway
from nemo_gym.config.addresses import base_url, server_names, server_settings, server_type
from nemo_gym.config.keys import HEAD_SERVER, SERVER_TYPES
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode_json
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, SESSION_LOST_STATUS, FailureClass
from nemo_gym.servers.crashes import Crash, CrashLog
from nemo_gym.servers.http.client import RequestSettings, as_aiohttp, raise_for_status, total_seconds
from nemo_gym.servers.http.client import request as http_request
from nemo_gym.servers.http.connections import request_errors, settings_of, use_http_settings
from nemo_gym.servers.http.deadlines import HEADER as ATTEMPT_HEADER
from nemo_gym.servers.http.deadlines import attempt_deadline
from nemo_gym.servers.http.gate import Gates
from nemo_gym.servers.http.reply import HttpReply, cookie_values
from nemo_gym.servers.middleware.rollout_scope import HEADER as ROLLOUT_HEADER
from nemo_gym.servers.middleware.rollout_scope import current_mark
from nemo_gym.steps.facts import ProcessFacts, Usage
from nemo_gym.steps.recording import Span, describe_callee, open_span
from nemo_gym.steps.remote import ASK as ASK_FOR_STEPS
from nemo_gym.steps.remote import ASK_AND_COUNT, TAIL_AT_END, TAIL_DIGITS, adopt_steps
from nemo_gym.steps.remote import HEADER as STEPS_HEADER
from nemo_gym.steps.remote import ROLLOUT_HEADER as ROLLOUT_STEPS_HEADER
from nemo_gym.steps.trace_context import HEADER as TRACE_HEADER
from nemo_gym.steps.trace_context import traceparent

ServerStatus = Literal["success", "connection_error", "timeout", "unknown_error"]
STATUS_TIMEOUT_S = 5.0
TOKEN_HEADER = "X-NeMo-Gym-Run-Token"  # noqa: S105 - the name of a header
TOKEN_VARIABLE = "NEMO_GYM_RUN_TOKEN"  # noqa: S105 - the name of a variable: the token where there is no file
USAGE_PATH = "/processor_usage"  # of the head server
CRASHES_PATH = "/server_crashes"  # of the head server
WAITED_PATH = "/ng-waited/"  # of every process; followed by the name of an attempt
WAITED_TIMEOUT_S = 5.0
DIRECT_OPTIONS = frozenset({"json", "cookies", "headers", "params", "timeout"})
JSON_CONTENT = {"Content-Type": "application/json"}
# Calls over HTTP with these options and JSON can share their settings.
PLAIN_OPTIONS = frozenset({"data", "cookies", "headers"})


class DirectServer(Protocol):
    """A server of the same process (see ``direct``, which is imported only by processes that host servers)."""

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        cookies: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        query: bytes = b"",
    ) -> Coroutine[Any, Any, Any]:
        """Call a route and return its reply."""


class GymClient(BaseModel):
    """Calls servers by their instance names."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: BaseServerConfig
    global_config_dict: DictConfig
    found_by_head: bool = Field(default=False, exclude=True, repr=False)  # so the servers are in other processes
    token: str | None = Field(default=None, exclude=True, repr=False)  # shows servers of other processes who calls

    # Fields rather than private attributes, which pydantic reads a hundred times more slowly: every call reads these.
    local_servers: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    addresses: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    # Shared by all model servers of a process, so that together they respect an endpoint's limits.
    gates: Gates = Field(default_factory=Gates, exclude=True, repr=False)
    # The model calls of open attempts, kept by the model servers of this process until a collector takes them.
    calls: CallStore = Field(default_factory=CallStore, exclude=True, repr=False)
    # The attempts that programs may call the model servers of this process for.
    gateway: Gateway = Field(default_factory=Gateway, exclude=True, repr=False)
    # The crashes of servers in other processes, and which of them are down.
    crashes: CrashLog = Field(default_factory=CrashLog, exclude=True, repr=False)
    # What calls over HTTP have in common, prepared with the first one, because that takes aiohttp.
    http_settings: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def load_from_head(cls, head: BaseServerConfig) -> Self:
        config = OmegaConf.create(fetch_global_config(head))
        assert isinstance(config, DictConfig)
        token = read_run_token(head.port)
        return cls(head_server_config=head, global_config_dict=config, found_by_head=True, token=token)

    @classmethod
    def detached(cls) -> Self:
        """A client without a Gym, for tests of one server: it reaches nothing but servers attached to it."""
        head = BaseServerConfig(host="127.0.0.1", port=0)
        return cls(head_server_config=head, global_config_dict=OmegaConf.create({}))

    def attach(self, name: str, server: DirectServer) -> None:
        """Call this server directly from now on."""
        self.local_servers[name] = server

    def for_server(self, server_class: type[BaseModel]) -> "GymClient":
        """This client as an object of the class that a server declares for its ``server_client``."""
        declared = server_class.model_fields["server_client"].annotation
        if not (isinstance(declared, type) and issubclass(declared, GymClient)) or isinstance(self, declared):
            return self
        twin = declared(head_server_config=self.head_server_config, global_config_dict=self.global_config_dict)
        # All clients of a Gym share one table of servers, one of gates, one of calls, and what is known about crashes.
        twin.local_servers, twin.gates, twin.crashes = self.local_servers, self.gates, self.crashes
        twin.token, twin.calls, twin.gateway = self.token, self.calls, self.gateway
        return twin

    async def get(self, server_name: str, url_path: str, **options: Any) -> Any:
        return await self.request(server_name=server_name, url_path=url_path, method="GET", **options)

    def post(
        self,
        server_name: str,
        url_path: str,
        json: Any = None,
        cookies: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Coroutine[Any, Any, Any]:
        """POST to a path of a server. ``json`` may be a pydantic model, of which only set fields are sent."""
        # Not a coroutine itself, which would add one to every call.
        is_plain = not options and "?" not in url_path and "#" not in url_path
        local: DirectServer | None = self.local_servers.get(server_name) if is_plain else None
        if local is not None:  # by far the most frequent call, so it skips everything below
            return local.call("POST", url_path, json=json, cookies=cookies)
        return self.request(server_name, url_path, "POST", json=json, cookies=cookies, **options)

    async def request(self, server_name: str, url_path: str, method: str, **options: Any) -> Any:
        """Call a server with aiohttp's options: ``json``, ``cookies``, ``headers``, ``params``, ``timeout``, …"""
        local: DirectServer | None = self.local_servers.get(server_name)
        if local is None or not DIRECT_OPTIONS.issuperset(options):
            return await self._request_over_http(server_name, url_path, method, options)
        timeout = options.pop("timeout", None)
        params = options.pop("params", None)
        url_path = url_path.partition("#")[0]
        if params or "?" in url_path:
            url_path, _, query = url_path.partition("?")
            given = URL("/").with_query(params).raw_query_string if params else ""
            options["query"] = "&".join(filter(None, (query, given))).encode()
        call = local.call(method, url_path, **options)
        if timeout is None:
            return await call
        try:
            async with asyncio.timeout(total_seconds(timeout)):
                return await call
        except TimeoutError as error:
            url = self._address_of(server_name) + url_path
            raise request_errors.request_error(error, as_aiohttp(timeout), method, url, attempts=1) from error

    async def _request_over_http(self, server_name: str, url_path: str, method: str, options: dict[str, Any]) -> Any:
        if not self.addresses:  # the first call
            use_http_settings(settings_of(self.global_config_dict))
        address = self._address_of(server_name)
        if self.crashes.down:
            await self.crashes.wait_until_up(server_name)
        content = options.pop("json", None)
        if content is not None:
            options["data"] = encode_json(content)
            if PLAIN_OPTIONS.issuperset(options):
                options["settings"] = self._prepared_settings()
            else:
                options["headers"] = {**JSON_CONTENT, **(options.get("headers") or {})}
        if self.token and "settings" not in options:
            options["headers"] = {TOKEN_HEADER: self.token, **(options.get("headers") or {})}
        if mark := current_mark():
            options["headers"] = {**(options.get("headers") or {}), ROLLOUT_HEADER: mark}
        if (attempt := attempt_deadline.get()) is not None:
            options["headers"] = {**(options.get("headers") or {}), ATTEMPT_HEADER: attempt.name}
        if options.get("cookies") is not None:
            options["cookies"] = cookie_values(options["cookies"])
        path = url_path if url_path.startswith("/") else f"/{url_path}"
        caller = open_span()
        if caller is None:
            return await _send(method, address + path, options)
        return await self._request_with_steps(server_name, path, method, options, caller)

    async def _request_with_steps(
        self, server_name: str, path: str, method: str, options: dict[str, Any], caller: Span
    ) -> Any:
        """Call a server of another process for a rollout, and record a step that contains the steps made there."""
        kind = server_type(self.global_config_dict, server_name)
        span = caller.begin(describe_callee(kind, server_name, path, from_resources=caller.callee.is_resources))
        trail = span.trail
        ask = ASK_AND_COUNT if trail.is_counted else ASK_FOR_STEPS
        trail.rollout = trail.rollout or uuid4().hex
        headers = options["headers"] = {**(options.get("headers") or {}), **ask, ROLLOUT_STEPS_HEADER: trail.rollout}
        if trail.trace is not None:
            headers[TRACE_HEADER] = traceparent(span)
        sent = options.get("data")
        try:
            response = await _send(method, self._address_of(server_name) + path, options)
        except BaseException as error:
            span.fail(error)
            raise
        adopt_steps(span, _take_steps(response))
        span.end(response.status, len(sent) if isinstance(sent, bytes) else 0, await response.read())
        return response

    async def waited(self, attempt: str) -> float:
        """How many seconds an attempt has waited for a turn at an endpoint in other processes."""
        names = (name for kind in SERVER_TYPES for name in server_names(self.global_config_dict, kind))
        elsewhere = {self._address_of(name) for name in names if name not in self.local_servers}
        headers = {TOKEN_HEADER: self.token} if self.token else {}
        return sum(await asyncio.gather(*(_waited_at(address, attempt, headers) for address in elsewhere)))

    def _prepared_settings(self) -> RequestSettings:
        if self.http_settings is None:
            headers = {**JSON_CONTENT, **({TOKEN_HEADER: self.token} if self.token else {})}
            self.http_settings = RequestSettings(_internal=True, headers=CIMultiDict(headers))
        settings: RequestSettings = self.http_settings
        return settings

    def _address_of(self, server_name: str) -> str:
        address = self.addresses.get(server_name)
        if address is None:
            address = base_url(server_settings(self.global_config_dict, server_name))
            self.addresses[server_name] = address
        return address

    @staticmethod
    def _build_server_base_url(server_config: Any) -> str:
        """The address of a server, from its settings."""
        return base_url(server_config)

    def poll_for_status(self, server_name: str) -> ServerStatus:
        """Whether a server replies; any reply counts. ``head_server`` is a valid name too."""
        settings = self.head_server_config
        if server_name != HEAD_SERVER:
            settings = server_settings(self.global_config_dict, server_name)
        return probe_server(base_url(settings))


def _take_steps(reply: HttpReply) -> bytes:
    """Remove and return the steps that follow the body of a reply.

    The header gives their length. Whoever sends a stream does not know it yet, so the header says ``end``, and the last
    eight bytes give the length.
    """
    announced = reply.headers.get(STEPS_HEADER)
    if announced == TAIL_AT_END:
        announced = reply.take_end(TAIL_DIGITS).decode("ascii", "replace")
    return reply.take_end(int(announced)) if announced and announced.isascii() and announced.isdigit() else b""


async def _waited_at(address: str, attempt: str, headers: Mapping[str, str]) -> float:
    """What the process at an address knows; 0 if it does not reply, or is of another program."""
    try:
        async with asyncio.timeout(WAITED_TIMEOUT_S):
            reply = await http_request("GET", f"{address}{WAITED_PATH}{attempt}", headers=headers, _internal=True)
            return max(0.0, msgspec.json.decode(await reply.read(), type=float)) if reply.ok else 0.0
    except (request_errors.RequestFailedError, TimeoutError, ValueError, msgspec.MsgspecError):
        return 0.0


async def _send(method: str, url: str, options: dict[str, Any]) -> HttpReply:
    if "settings" in options:
        reply = await http_request(method, url, **options)
    else:
        reply = await http_request(method, url, _internal=True, **options)
    if reply.status == SESSION_LOST_STATUS and reply.headers.get(FAILURE_CLASS_HEADER) == FailureClass.SERVER_CRASHED:
        await raise_for_status(reply)  # the rollout is over, and its model must not see this as the reply of a tool
    return reply


def probe_server(address: str, *, timeout_s: float = STATUS_TIMEOUT_S) -> ServerStatus:
    """Whether anything replies at an address; any reply counts."""
    try:
        # Without a proxy, which could reply in the server's place.
        with build_opener(ProxyHandler({})).open(address, timeout=timeout_s):
            return "success"
    except HTTPError as error:
        error.close()
        return "success"
    except TimeoutError:
        return "timeout"
    except URLError as error:
        return "timeout" if isinstance(error.reason, TimeoutError) else "connection_error"
    except ConnectionError:
        return "connection_error"
    except (OSError, HTTPException):
        return "unknown_error"


def token_path(port: int) -> Path:
    """The token file of the run whose head server has this port."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollout-gym" / f"head-{port}.token"


def read_run_token(port: int) -> str | None:
    """The token of the Gym to call: that of the environment, or of a running head server on this machine."""
    return os.environ.get(TOKEN_VARIABLE) or read_token_file(port)


def read_token_file(port: int) -> str | None:
    """The token of a running head server on this machine, or None."""
    try:
        return token_path(port).read_text("utf-8").strip() or None
    except OSError:
        return None


class HeadServerUnreachableError(ConfigError, ValueError):
    """Nothing replies at the head server's address."""


def fetch_global_config(head: BaseServerConfig) -> str:
    """The whole configuration as YAML; secrets are included only for the user who started the run."""
    address = f"http://{head.host}:{head.port}"
    token = read_run_token(head.port)
    request = Request(f"{address}/global_config_dict_yaml", headers={TOKEN_HEADER: token} if token else {})  # noqa: S310
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=STATUS_TIMEOUT_S) as reply:
            content = reply.read()
    except HTTPError as error:
        error.close()
        raise _not_a_head_server(f"{address} replies with status {error.code}, so it is not a head server") from None
    except (URLError, TimeoutError, ConnectionError, HTTPException):
        raise HeadServerUnreachableError(
            f"Could not connect to the head server at {address}",
            hint="start the servers with ng_run in another terminal, or give +config_paths=[…] to host them here; "
            "for another head server: '+head_server={host: HOST, port: PORT}'",
        ) from None
    try:
        return str(json_module.loads(content))
    except ValueError:
        raise _not_a_head_server(f"{address} replies, but is not a head server") from None


def fetch_usage(head: BaseServerConfig) -> Usage:
    """What the processes of a head server's Gym have used so far; empty if it does not tell."""
    try:
        with build_opener(ProxyHandler({})).open(
            f"http://{head.host}:{head.port}{USAGE_PATH}", timeout=STATUS_TIMEOUT_S
        ) as reply:
            return msgspec.json.decode(reply.read(), type=dict[int, ProcessFacts])
    except HTTPError as error:
        error.close()
        return {}
    except (OSError, HTTPException, ValueError, msgspec.MsgspecError):  # older, foreign, or no longer there
        return {}


class ServerCrashes(NamedTuple):
    """What a head server tells about crashes."""

    supervised: bool = False  # whether any server of the Gym has processes of its own
    crashes: Sequence[Crash] = ()


def fetch_crashes(head: BaseServerConfig) -> ServerCrashes:
    """The last crashes of servers of a head server's Gym; none if it does not tell."""
    try:
        with build_opener(ProxyHandler({})).open(
            f"http://{head.host}:{head.port}{CRASHES_PATH}", timeout=STATUS_TIMEOUT_S
        ) as reply:
            reported = json_module.loads(reply.read())
            return ServerCrashes(bool(reported["supervised"]), [Crash(**crash) for crash in reported["crashes"]])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):  # older, foreign, or no longer there
        return ServerCrashes()


def _not_a_head_server(message: str) -> HeadServerUnreachableError:
    hint = "another program uses that port; '+head_server={host: HOST, port: PORT}' names the right one"
    return HeadServerUnreachableError(message, hint=hint)
