"""Calls servers by name: a server of the same process directly, any other over HTTP.

The caller gets the same answer either way.
"""

import asyncio
import json as json_module
import os
from collections.abc import Coroutine, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, Protocol, Self
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

import msgspec
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field
from yarl import URL

from nemo_gym.config.addresses import base_url, server_settings, server_type
from nemo_gym.config.keys import HEAD_SERVER
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode_json
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.http.client import RequestSettings, as_aiohttp, total_seconds
from nemo_gym.servers.http.client import request as http_request
from nemo_gym.servers.http.connections import request_errors, settings_of, use_http_settings
from nemo_gym.servers.http.reply import Body, Reply, cookie_values
from nemo_gym.servers.models.gate import Gates
from nemo_gym.servers.rollout_scope import HEADER as ROLLOUT_HEADER
from nemo_gym.servers.rollout_scope import current_mark
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
USAGE_PATH = "/processor_usage"  # of the head server
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
        """Call a route and return its answer."""


class GymClient(BaseModel):
    """Calls servers by their instance names."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: BaseServerConfig
    global_config_dict: DictConfig
    found_by_head: bool = Field(default=False, exclude=True, repr=False)  # so the servers are in other processes

    # Fields rather than private attributes, which pydantic reads a hundred times more slowly: every call reads these.
    local_servers: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    addresses: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    # Shared by all model servers of a process, so that together they respect an endpoint's limits.
    gates: Gates = Field(default_factory=Gates, exclude=True, repr=False)
    # What calls over HTTP have in common, prepared with the first one, because that takes aiohttp.
    http_settings: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def load_from_head(cls, head: BaseServerConfig) -> Self:
        """A client for the Gym of a head server."""
        config = OmegaConf.create(fetch_global_config(head))
        assert isinstance(config, DictConfig)
        return cls(head_server_config=head, global_config_dict=config, found_by_head=True)

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
        # All clients of a Gym share one table of servers and one of gates.
        twin.local_servers, twin.gates = self.local_servers, self.gates
        return twin

    async def get(self, server_name: str, url_path: str, **options: Any) -> Any:
        """GET a path of a server."""
        return await self.request(server_name=server_name, url_path=url_path, method="GET", **options)

    async def post(
        self,
        server_name: str,
        url_path: str,
        json: Any = None,
        cookies: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """POST to a path of a server. ``json`` may be a pydantic model, of which only set fields are sent."""
        is_plain = not options and "?" not in url_path and "#" not in url_path
        local: DirectServer | None = self.local_servers.get(server_name) if is_plain else None
        if local is not None:  # by far the most frequent call, so it skips everything below
            return await local.call("POST", url_path, json=json, cookies=cookies)
        return await self.request(server_name, url_path, "POST", json=json, cookies=cookies, **options)

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
            return await asyncio.wait_for(call, total_seconds(timeout))
        except TimeoutError as error:
            url = self._address_of(server_name) + url_path
            raise request_errors.request_error(error, as_aiohttp(timeout), method, url, attempts=1) from error

    async def _request_over_http(self, server_name: str, url_path: str, method: str, options: dict[str, Any]) -> Any:
        if not self.addresses:  # the first call
            use_http_settings(settings_of(self.global_config_dict))
        address = self._address_of(server_name)
        content = options.pop("json", None)
        if content is not None:
            options["data"] = encode_json(content)
            if PLAIN_OPTIONS.issuperset(options):
                options["settings"] = self._prepared_settings()
            else:
                options["headers"] = {**JSON_CONTENT, **(options.get("headers") or {})}
        if mark := current_mark():
            options["headers"] = {**(options.get("headers") or {}), ROLLOUT_HEADER: mark}
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
        adopt_steps(span, take_tail(response, STEPS_HEADER))
        span.end(response.status, len(sent) if isinstance(sent, bytes) else 0, await response.read())
        return response

    def _prepared_settings(self) -> RequestSettings:
        if self.http_settings is None:
            self.http_settings = RequestSettings(_internal=True, reused=True, headers=JSON_CONTENT)
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
        """Whether a server answers; any answer counts. ``head_server`` is a valid name too."""
        settings = self.head_server_config
        if server_name != HEAD_SERVER:
            settings = server_settings(self.global_config_dict, server_name)
        return answers(base_url(settings))


def take_tail(response: Any, header: str) -> bytes:
    """Remove and return the bytes that follow the body of an answer.

    The header gives their number. Whoever sends a stream does not know it yet, so the header says ``end``, and the last
    eight bytes give the number.
    """
    announced = response.headers.get(header) or ""
    body: bytes = response._body or b""  # noqa: SLF001 - which the client has put there
    last = len(body)
    if announced == TAIL_AT_END:
        last -= TAIL_DIGITS
        announced = body[last:].decode("ascii", "replace") if last >= 0 else ""
    size = int(announced) if announced.isascii() and announced.isdigit() else 0
    if not 0 < size <= last:
        return b""
    response._body = body[: last - size]  # noqa: SLF001
    if not isinstance(response, Reply):
        response.content = Body(body[: last - size])
    return body[last - size : last]


async def _send(method: str, url: str, options: dict[str, Any]) -> Any:
    if "settings" in options:
        return await http_request(method, url, **options)
    return await http_request(method, url, _internal=True, **options)


def answers(address: str, *, timeout_s: float = STATUS_TIMEOUT_S) -> ServerStatus:
    """Whether anything answers at an address; any answer counts."""
    try:
        # Without a proxy, which could answer in the server's place.
        with build_opener(ProxyHandler({})).open(address, timeout=timeout_s):
            return "success"
    except HTTPError:
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
    """The token of a running head server on this machine, or None."""
    try:
        return token_path(port).read_text("utf-8").strip() or None
    except OSError:
        return None


class HeadServerUnreachableError(ConfigError, ValueError):
    """Nothing answers at the head server's address."""


def fetch_global_config(head: BaseServerConfig) -> str:
    """The whole configuration as YAML; secrets are included only for the user who started the run."""
    address = f"http://{head.host}:{head.port}"
    token = read_run_token(head.port)
    request = Request(f"{address}/global_config_dict_yaml", headers={TOKEN_HEADER: token} if token else {})  # noqa: S310
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=STATUS_TIMEOUT_S) as reply:
            content = reply.read()
    except HTTPError as error:
        raise _not_a_head_server(f"{address} answers with status {error.code}, so it is not a head server") from None
    except (URLError, TimeoutError, ConnectionError, HTTPException):
        raise HeadServerUnreachableError(
            f"Could not connect to the head server at {address}",
            hint="start the servers with ng_run in another terminal, or give +config_paths=[…] to host them here; "
            "for another head server: '+head_server={host: HOST, port: PORT}'",
        ) from None
    try:
        return str(json_module.loads(content))
    except ValueError:
        raise _not_a_head_server(f"{address} answers, but is not a head server") from None


def fetch_usage(head: BaseServerConfig) -> Usage:
    """What the processes of a head server's Gym have used so far; empty if it does not tell."""
    try:
        with build_opener(ProxyHandler({})).open(
            f"http://{head.host}:{head.port}{USAGE_PATH}", timeout=STATUS_TIMEOUT_S
        ) as reply:
            return msgspec.json.decode(reply.read(), type=dict[int, ProcessFacts])
    except (OSError, HTTPException, ValueError, msgspec.MsgspecError):  # older, foreign, or no longer there
        return {}


def _not_a_head_server(message: str) -> HeadServerUnreachableError:
    hint = "another program uses that port; '+head_server={host: HOST, port: PORT}' names the right one"
    return HeadServerUnreachableError(message, hint=hint)
