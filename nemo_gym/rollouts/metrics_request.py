"""An agent's metrics: asked for over ``/aggregate_metrics``, or known to be the standard ones.

Only for servers in this process can that be known. A handler of ``/aggregate_metrics`` says where its answer comes from
(``answers_standard_metrics``, ``forwards_metrics_to``); the answer is the standard one if the handler computes it and
neither hook is replaced. Any other server has to be asked.

Transcripts are not sent: what metrics need is the scores, and the token counts in ``response.usage``. The request is
written to a file beside the output and sent from there, so its size costs no memory, unless the agent lives here.
"""

import asyncio
import logging
import tempfile
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode
from nemo_gym.metrics.aggregate import METRICS_SOURCE, AggregateMetricsMixin
from nemo_gym.rollouts.agents import Agents
from nemo_gym.rollouts.classify import expected_errors, failure_of_error, failure_of_status
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, AggregateMetrics

logger = logging.getLogger(__name__)


METRICS_PATH: Final = "/aggregate_metrics"


def has_default_metrics(servers: Mapping[str, Any], name: str) -> bool:
    """Whether a server, given all those of this process, would answer with the default metrics."""
    handler = _handler(servers.get(name))
    server = getattr(handler, "__self__", None)
    if server is None:
        return False
    source: str | None = getattr(handler, METRICS_SOURCE, None)
    if source:
        return has_default_metrics(servers, getattr(server.config, source).name)
    hooks = ("compute_metrics", "get_key_metrics")
    return source is not None and all(_is_default(server, hook) for hook in hooks)


def _handler(local: Any) -> Any:
    """The handler of a server in this process that answers ``/aggregate_metrics``."""
    for route in local.app.routes if local is not None else ():
        if getattr(route, "path", None) == METRICS_PATH and "POST" in (getattr(route, "methods", None) or ()):
            return route.endpoint
    return None


def _is_default(server: Any, hook: str) -> bool:
    return getattr(getattr(server, hook, None), "__func__", None) is getattr(AggregateMetricsMixin, hook)


Record = Mapping[str, Any]

_TRANSCRIPT: Final = frozenset({RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME})


def scores(record: Record) -> dict[str, Any]:
    """The fields of a rollout that metrics need."""
    kept = {name: value for name, value in record.items() if name not in _TRANSCRIPT}
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, dict) else None
    return {**kept, RESPONSE_KEY_NAME: {"usage": usage}} if usage else kept


async def ask(
    agent: str, records: Iterable[Record], agents: Agents, folder: Path | None = None
) -> AggregateMetrics | None:
    """The agent's metrics of these rollouts; None, with a warning, if it can't answer. ``folder`` holds the request."""
    # Beside the output, where there is room for rollouts; the folder for temporary files may be in memory.
    with tempfile.NamedTemporaryFile(prefix=".aggregate-", dir=folder) as file:
        await asyncio.to_thread(_write, file, records)
        try:
            answer = await agents.post_file(agent, METRICS_PATH, Path(file.name))
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


def _write(file: Any, records: Iterable[Record]) -> None:
    out: BinaryIO = file
    out.write(b'{"verify_responses":[')
    separators = chain([b""], repeat(b","))
    out.writelines(separator + encode(scores(record)) for separator, record in zip(separators, records, strict=False))
    out.write(b"]}")
    out.flush()
