"""The agents of a run: who they are, what they cost, and how to call them.

Only ``agents_of`` looks at the type of the client. A ``GymClient`` lists its servers, takes JSON as bytes, and can find
restarted servers again; all that is known of any other client is that it can POST.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final, Protocol

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.capture.call_files import CALLS_KEY, capture_dirs_of, captured_calls
from nemo_gym.capture.calls import CallFields
from nemo_gym.capture.traces import complete, references
from nemo_gym.capture.trajectories import attach_trajectory
from nemo_gym.config.addresses import server_names
from nemo_gym.config.environments import Routing, routing_of
from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.config.secrets import is_credential_key
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import decode
from nemo_gym.rollouts.environment_calls import EnvironmentCalls
from nemo_gym.rollouts.store.outcome import PlannedRollout
from nemo_gym.schemas.call_tokens import with_added_prompts, with_full_prompts
from nemo_gym.schemas.record import Row
from nemo_gym.schemas.rows import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, Prices
from nemo_gym.servers.crashes import Crash
from nemo_gym.servers.http.connections import aiohttp
from nemo_gym.servers.http.urls import shown
from nemo_gym.servers.middleware.rollout_scope import (
    current_mark,
    current_scope,
    mark_of_program,
    mark_rollout,
)
from nemo_gym.servers.models.capturing import (
    FULL,
    ON_ITEMS,
    TAKE_PATH,
    TOKEN_IDS_KEY,
    capturing_servers,
)
from nemo_gym.servers.server_client import GymClient, fetch_crashes, fetch_usage
from nemo_gym.steps.facts import Usage

logger = logging.getLogger(__name__)

RUN_PATH: Final = "/run"
AGENT_TYPE: Final = "responses_api_agents"
MODEL_TYPE: Final = "responses_api_models"
_REFRESH_S: Final = 1.0
# How long after a broken connection, or another error that may hide one, a crash is known.
_NOTICED_WITHIN_S: Final = 1.0
_SWALLOWED_WITHIN_S: Final = 0.1
_ASK_AFTER_S: Final = 0.5
_AT_ONCE: Final = 8 << 20  # bytes; a larger body is streamed
_CHUNK: Final = 1 << 20


class AgentReply(Protocol):
    """What a call returns, as far as it is looked at here."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, whatever the case of their names."""
        ...

    async def read(self) -> bytes: ...


class AgentClient(Protocol):
    """Reaches agents by name: a ``ServerClient``, or anything that can do this one thing."""

    async def post(self, *, server_name: str, url_path: str, json: Any) -> Any:
        """POST a JSON body; returns an ``AgentReply``."""
        ...


class Agents:
    """Agents behind a client of unknown type."""

    names: frozenset[str] | None = None  # None if unknown
    prices: Mapping[str, Prices] = {}
    models: Mapping[str, Any] | None = None  # what model servers ask for (``models_of``); None if unknown
    servers: Mapping[str, Any] = {}  # those of this process
    captures: bool = False  # whether model servers keep or record the calls of an attempt
    routing: Routing = Routing()

    def __init__(self, client: AgentClient) -> None:
        self.client = client

    def run(self, planned: PlannedRollout) -> Awaitable[AgentReply]:
        return self.client.post(
            server_name=planned.agent,
            url_path=RUN_PATH,
            json=planned.row,  # as an object, because the client may want to look into it
        )

    async def post_file(self, agent: str, path: str, request: Path) -> AgentReply:
        """POST the JSON of a file."""
        body = await asyncio.to_thread(request.read_bytes)
        reply: AgentReply = await self.client.post(server_name=agent, url_path=path, json=decode(body))
        return reply

    async def find_again(self) -> None:
        """Look for servers that may have been restarted."""

    async def with_tokens(self, result: Row) -> Row:
        """The result of the current attempt with the tokens of its model calls, in the form in which it is saved."""
        return with_added_prompts(result)

    def end_attempt(self) -> None:
        """Let go of what was kept for the current attempt."""

    async def waited(self, attempt: str) -> float:  # noqa: ARG002 - for those that can ask
        """How many seconds an attempt has waited in other processes, which does not count against its time limit."""
        return 0.0

    async def crash_since(self, moment: float, *, is_likely: bool) -> Crash | None:  # noqa: ARG002 - nothing is known
        """The last crash of a server, if there was one after a moment of ``perf_counter``.

        If one is likely, because a connection broke, it is worth waiting for the news of it.
        """
        return None

    def processor_usage(self) -> Usage:
        """What the other processes that host the servers have used so far; empty if unknown, or if there are none."""
        return {}


class GymAgents(Agents):
    """The agents of a Gym."""

    def __init__(self, client: GymClient) -> None:
        super().__init__(client)
        self.gym = client
        config = client.global_config_dict
        self.prices = prices_by_name(config)
        self.models = models_of(config)
        self.servers = client.local_servers
        self.routing = routing_of(config)
        # An environment server that stands for no agent is one itself.
        self.names = frozenset({*server_names(config, AGENT_TYPE), *self.routing.agents.values()})
        own = self.routing.doors or self.routing.tasksets
        self._environments = EnvironmentCalls(client, self.routing) if own else None
        self._capturing = capturing_servers(config)
        self._model_servers = server_names(config, MODEL_TYPE)
        self._form = config.get(TOKEN_IDS_KEY)
        self._capture_dirs = capture_dirs_of(config)
        self.captures = bool(self._capturing or self._capture_dirs)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._has_processes = client.found_by_head  # whether the head server knows of servers that can crash

    def run(self, planned: PlannedRollout) -> Awaitable[AgentReply]:
        mark_rollout(*planned.key, planned.attempt, captured=bool(self._capturing))
        if self._environments is not None and self._environments.takes(planned):
            return self._environments.run(planned)
        return self.gym.post(planned.agent, RUN_PATH, json=planned.text or planned.row)

    async def post_file(self, agent: str, path: str, request: Path) -> AgentReply:
        """POST the JSON of a file; a large one is streamed, unless the agent lives in this process."""
        agent = self.routing.doors.get(agent, agent)
        size = (await asyncio.to_thread(request.stat)).st_size
        reply: AgentReply
        if agent not in self.servers and size > _AT_ONCE:
            headers = {"Content-Type": "application/json", "Content-Length": str(size)}
            reply = await self.gym.post(agent, path, data=_Streamed(request), headers=headers)
        else:
            reply = await self.gym.post(agent, path, json=await asyncio.to_thread(request.read_bytes))
        return reply

    async def with_tokens(self, result: Row) -> Row:
        delivered = references(result)
        # A program's calls are kept by every kind of server, others only together with their tokens.
        servers = self._model_servers if delivered else self._capturing
        mark = mark_of_program()
        found = await asyncio.gather(*(self._take(name, mark, delivered) for name in servers))
        if servers:
            complete(result, [call for calls in found for call in calls])
        if self._capture_dirs:
            await asyncio.to_thread(self._attach_recorded_calls, result)
        if self._form in (FULL, ON_ITEMS):
            return with_full_prompts(result)
        return with_added_prompts(result)

    def _attach_recorded_calls(self, result: Row) -> None:
        """Put the calls that model servers have recorded in files into the result, and the trajectory they are of."""
        scope = current_scope()
        if scope is not None:
            recorded = captured_calls(
                scope.rollout_id, self._capture_dirs, attempt=current_mark(), include_payloads=True
            )
            result[CALLS_KEY] = recorded
            key = {TASK_INDEX_KEY_NAME: scope.task, ROLLOUT_INDEX_KEY_NAME: scope.rollout}
            attach_trajectory({**result, **key}, result)

    async def _take(self, server: str, mark: str, delivered: list[str]) -> list[CallFields]:
        """The calls of an attempt that a model server has kept; none if it was restarted or keeps none."""
        if server in self.servers:
            return self.gym.calls.take(mark, delivered)
        request = {"attempt": mark, "delivered": delivered}
        with suppress(OSError, TimeoutError, aiohttp.ClientError):
            reply = await self.gym.post(server, TAKE_PATH, json=request)
            if reply.status < 400:
                calls: list[CallFields] = decode(await reply.read())
                return calls
        return []

    def end_attempt(self) -> None:
        self.gym.calls.forget(mark_of_program())

    async def find_again(self) -> None:
        """Ask the head server where everything is now, because restarted servers have other ports."""
        # Thousands of rollouts lose their connection at the same moment. One of them asks; the others use its result.
        async with self._looking:
            if self.servers or monotonic() - self._looked_at < _REFRESH_S:
                return
            try:
                found = await asyncio.to_thread(GymClient.load_from_head, self.gym.head_server_config)
            except ConfigError:
                return  # it is still unreachable
            finally:
                self._looked_at = monotonic()
            self.gym.global_config_dict = found.global_config_dict
            self.gym.addresses.clear()
            self._has_processes = self.gym.found_by_head

    async def crash_since(self, moment: float, *, is_likely: bool) -> Crash | None:
        """Ask those who watch the servers: the supervisors of this process, or the head server."""
        log = self.gym.crashes
        if log.is_used:
            return await log.expect(moment, within_s=_NOTICED_WITHIN_S if is_likely else _SWALLOWED_WITHIN_S)
        if is_likely and self._has_processes and log.latest(moment) is None:
            await self._ask_for_crashes()
        return log.latest(moment)

    async def _ask_for_crashes(self) -> None:
        """Learn about crashes from the head server. One asks for all whose attempts have failed by then."""
        failed_at = perf_counter()
        async with self._looking:
            if self._asked_at < failed_at + _ASK_AFTER_S:
                await asyncio.sleep(_ASK_AFTER_S)  # the head server, too, has to notice it first
                self._asked_at = perf_counter()
                reported = await asyncio.to_thread(fetch_crashes, self.gym.head_server_config)
                self._has_processes = reported.supervised
                known = set(self.gym.crashes.crashes)
                for crash in reported.crashes:
                    if crash not in known:
                        self.gym.crashes.add(crash)

    async def waited(self, attempt: str) -> float:
        """Ask every process that hosts servers."""
        return await self.gym.waited(attempt)

    def processor_usage(self) -> Usage:
        """Ask the head server; one that did not name these servers belongs to another Gym."""
        return fetch_usage(self.gym.head_server_config) if self.gym.found_by_head else {}


class _Streamed:
    """A body that is read from its file again for each attempt to send it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def agents_of(client: AgentClient) -> Agents:
    """The agents that a client reaches."""
    return GymAgents(client) if isinstance(client, GymClient) else Agents(client)


# ---- what their models are asked for ---------------------------------------------------------------------------------
# Settings that change how a model is reached but not what it replies. All others are part of a run's identity.
OPERATIONAL: Final = frozenset(
    {
        *("entrypoint", "host", "port", "domain", "num_workers", "isolation", "prices", "max_retries", "cache_dir"),
        *("max_concurrent_requests", "endpoint_max_concurrent_requests", "max_queue_depth", "request_timeout_s"),
        *("connect_timeout_s", "engines", "threads", "n_parallel", "n_gpu_layers", "default_headers"),
        *("openai_default_headers", "anthropic_default_headers"),
    }
)
LARGEST_FILE: Final = 1 << 20  # bytes; larger ones are weights and not prompts


def models_of(config: DictConfig) -> dict[str, dict[str, Any]]:
    """What determines the completions of a Gym's models: the settings of each model server, and each agent's choice.

    Without secrets. Files that settings name (a prompt, a template) count with their content.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in map(str, config):
        if settings := _settings(config, name, MODEL_TYPE):
            plain = plain_data(settings)
            found[name] = {key: _identity(value) for key, value in plain.items() if _matters(str(key))}
        reference = _settings(config, name, AGENT_TYPE).get("model_server")
        if isinstance(reference, DictConfig) and reference.get("name"):
            found[name] = {"model_server": str(reference["name"])}
    return found


def _matters(key: str) -> bool:
    return key not in OPERATIONAL and not is_credential_key(key)


def _identity(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _identity(part) for key, part in value.items() if not is_credential_key(str(key))}
    if isinstance(value, list):
        return [_identity(part) for part in value]
    if not isinstance(value, str):
        return value
    if "://" in value:
        return shown(value)
    with suppress(OSError, ValueError):
        path = Path(value)
        if path.is_file() and path.stat().st_size <= LARGEST_FILE:
            return f"{value} (sha256 {sha256(path.read_bytes()).hexdigest()[:16]})"
    return value


# ---- what their models cost ------------------------------------------------------------------------------------------
def prices_by_name(config: DictConfig) -> dict[str, Prices]:
    """The prices of every server that sets them (a judge, for example) and of every agent whose model does."""
    found: dict[str, Prices] = {}
    for name in map(str, config):
        given = _settings(config, name, *SERVER_TYPES).get("prices")
        if given is not None:
            found[name] = _read(name, OmegaConf.to_container(given) if OmegaConf.is_config(given) else given)
    for agent in map(str, config):
        reference = _settings(config, agent, AGENT_TYPE).get("model_server")
        model = reference.get("name") if isinstance(reference, DictConfig) else None
        if model in found:
            found[agent] = found[model]
    return found


def _settings(config: DictConfig, name: str, *kinds: str) -> Mapping[Any, Any]:
    block = config.get(name)
    kind = next((kind for kind in kinds if isinstance(block, DictConfig) and kind in block), None)
    inner = next(iter(block[kind].values()), None) if kind is not None and block[kind] else None
    return inner if isinstance(inner, DictConfig) else {}


def _read(model: str, given: Any) -> Prices:
    try:
        return Prices.model_validate(given)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'prices'}: {e['msg']}" for e in error.errors())
        raise ConfigError(
            f"the prices of {model} can't be read: {reasons}",
            hint="write prices: {input: 0.15, output: 0.60}, in USD per million tokens; cached_input is optional",
        ) from None
