"""The agents of a run: who they are, what they cost, and how to call them.

Only ``agents_of`` looks at the type of the client. A ``GymClient`` lists its servers, takes JSON as bytes, and can find
restarted servers again; all that is known of any other client is that it can POST.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.config.addresses import server_names
from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import decode
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import Prices
from nemo_gym.servers.rollout_scope import mark_rollout, wants_marks
from nemo_gym.servers.server_client import GymClient, fetch_usage
from nemo_gym.steps.facts import Usage

logger = logging.getLogger(__name__)

RUN_PATH: Final = "/run"
AGENT_TYPE: Final = "responses_api_agents"
_REFRESH_S: Final = 1.0
_AT_ONCE: Final = 8 << 20  # bytes; a larger body is streamed
_CHUNK: Final = 1 << 20


class AgentAnswer(Protocol):
    """What a call returns, as far as it is looked at here."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, whatever the case of their names."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...


class AgentClient(Protocol):
    """Reaches agents by name: a ``ServerClient``, or anything that can do this one thing."""

    async def post(self, *, server_name: str, url_path: str, json: Any) -> Any:
        """POST a JSON body; returns an ``AgentAnswer``."""
        ...


class Agents:
    """Agents behind a client of unknown type."""

    names: frozenset[str] | None = None  # None if unknown
    prices: Mapping[str, Prices] = {}
    servers: Mapping[str, Any] = {}  # those of this process

    def __init__(self, client: AgentClient) -> None:
        self.client = client

    def run(self, planned: PlannedRollout) -> Awaitable[AgentAnswer]:
        """Have an agent run a rollout."""
        return self.client.post(
            server_name=planned.agent,
            url_path=RUN_PATH,
            json=planned.row,  # as an object, because the client may want to look into it
        )

    async def post_file(self, agent: str, path: str, request: Path) -> AgentAnswer:
        """POST the JSON of a file."""
        body = await asyncio.to_thread(request.read_bytes)
        answer: AgentAnswer = await self.client.post(server_name=agent, url_path=path, json=decode(body))
        return answer

    async def find_again(self) -> None:
        """Look for servers that may have been restarted."""

    def processor_usage(self) -> Usage:
        """What the other processes that host the servers have used so far; empty if unknown, or if there are none."""
        return {}


class GymAgents(Agents):
    """The agents of a Gym."""

    def __init__(self, client: GymClient) -> None:
        super().__init__(client)
        self.gym = client
        config = client.global_config_dict
        self.names = frozenset(server_names(config, AGENT_TYPE))
        self.prices = prices_by_name(config)
        self.servers = client.local_servers
        self._marks = wants_marks(config)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    def run(self, planned: PlannedRollout) -> Awaitable[AgentAnswer]:
        """Have an agent run a rollout."""
        if self._marks:
            mark_rollout(*planned.key, planned.attempt)
        return self.gym.post(planned.agent, RUN_PATH, json=planned.text or planned.row)

    async def post_file(self, agent: str, path: str, request: Path) -> AgentAnswer:
        """POST the JSON of a file; a large one is streamed, unless the agent lives in this process."""
        size = (await asyncio.to_thread(request.stat)).st_size
        answer: AgentAnswer
        if agent not in self.servers and size > _AT_ONCE:
            headers = {"Content-Type": "application/json", "Content-Length": str(size)}
            answer = await self.gym.post(agent, path, data=_Streamed(request), headers=headers)
        else:
            answer = await self.gym.post(agent, path, json=await asyncio.to_thread(request.read_bytes))
        return answer

    async def find_again(self) -> None:
        """Ask the head server where everything is now, because restarted servers have other ports."""
        # Thousands of rollouts lose their connection at the same moment. One of them asks; the others use the answer.
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
