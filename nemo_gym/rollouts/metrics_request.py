"""Whether an agent's metrics are the default ones, so that they can be computed from numbers alone.

That can be told only of servers in this process: the handler of ``/aggregate_metrics`` must be that of the base class,
and neither hook may be replaced. An agent that hands the question on to its resources server is as good as that server.
Of everything else nothing is known, and it has to be asked.

Asks an agent for the metrics of its rollouts.

Transcripts are not sent: what metrics need is the scores, and the token counts in ``response.usage``. The request is
written to a file beside the output and sent from there, so its size costs no memory, unless the agent lives here.
"""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import decode, encode
from nemo_gym.metrics.aggregate import AggregateMetricsMixin
from nemo_gym.rollouts.attempt import AgentAnswer, AgentClient
from nemo_gym.rollouts.classify import expected_errors, failure_of_error, failure_of_status
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, AggregateMetrics
from nemo_gym.servers.server_client import GymClient

logger = logging.getLogger(__name__)


METRICS_PATH: Final = "/aggregate_metrics"
_DEFAULT: Final = frozenset(
    {
        "nemo_gym.base_resources_server.SimpleResourcesServer.aggregate_metrics",
        "nemo_gym.base_responses_api_agent.SimpleResponsesAPIAgent.aggregate_metrics",
    }
)
_HANDS_ON: Final = frozenset({"responses_api_agents.simple_agent.app.SimpleAgent.aggregate_metrics"})


def has_default_metrics(servers: Mapping[str, Any], name: str) -> bool:
    """Whether a server, given all those of this process, would answer with the default metrics."""
    handler = _handler(servers.get(name))
    server = getattr(handler, "__self__", None)
    if server is None:
        return False
    called = f"{handler.__module__}.{handler.__qualname__}"
    if called in _HANDS_ON:
        return has_default_metrics(servers, server.config.resources_server.name)
    hooks = ("compute_metrics", "get_key_metrics")
    return called in _DEFAULT and all(_is_default(server, hook) for hook in hooks)


def _handler(local: Any) -> Any:
    """What a server of this process calls for its metrics."""
    for route in local.app.routes if local is not None else ():
        if getattr(route, "path", None) == METRICS_PATH and "POST" in (getattr(route, "methods", None) or ()):
            return route.endpoint
    return None


def _is_default(server: Any, hook: str) -> bool:
    return getattr(getattr(server, hook, None), "__func__", None) is getattr(AggregateMetricsMixin, hook)


Record = Mapping[str, Any]

_TRANSCRIPT: Final = frozenset({RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME})
_AT_ONCE: Final = 8 << 20  # bytes; a larger body is streamed
_CHUNK: Final = 1 << 20


def scores(record: Record) -> dict[str, Any]:
    """What metrics need of a rollout."""
    kept = {name: value for name, value in record.items() if name not in _TRANSCRIPT}
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, dict) else None
    return {**kept, RESPONSE_KEY_NAME: {"usage": usage}} if usage else kept


async def ask(
    agent: str, records: Iterable[Record], client: AgentClient, folder: Path | None = None
) -> AggregateMetrics | None:
    """The metrics of these rollouts; None, with a warning, if the agent can't say. ``folder``: for the request."""
    with tempfile.NamedTemporaryFile(prefix=".aggregate-", dir=folder) as file:
        size = await asyncio.to_thread(_write, file, records)
        try:
            answer: AgentAnswer = await _post(client, agent, Path(file.name), size)
            body = await answer.read()
            if answer.status < 400:
                return AggregateMetrics.model_validate_json(body)
            reason = failure_of_status(answer.status, answer.headers, body).message
        except expected_errors() as error:
            reason = failure_of_error(error).message
        except ConfigError as error:  # there is no such server
            reason = str(error)
        except ValidationError as error:
            reason = f"its answer is not what {METRICS_PATH} returns: {error}"
    logger.warning("No metrics for %s: %s", agent, reason)
    return None


def _write(file: Any, records: Iterable[Record]) -> int:
    """Write the request; return its size."""
    out: BinaryIO = file
    out.write(b'{"verify_responses":[')
    separators = chain([b""], repeat(b","))
    out.writelines(separator + encode(scores(record)) for separator, record in zip(separators, records, strict=False))
    out.write(b"]}")
    out.flush()
    return out.tell()


async def _post(client: AgentClient, agent: str, request: Path, size: int) -> Any:
    if isinstance(client, GymClient) and agent not in client.local_servers and size > _AT_ONCE:
        headers = {"Content-Type": "application/json", "Content-Length": str(size)}
        return await client.post(agent, METRICS_PATH, data=_Streamed(request), headers=headers)
    body = await asyncio.to_thread(request.read_bytes)
    content = body if isinstance(client, GymClient) else decode(body)
    return await client.post(server_name=agent, url_path=METRICS_PATH, json=content)


class _Streamed:
    """A body that is read from its file anew for each attempt to send it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
