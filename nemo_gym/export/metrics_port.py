"""The metrics of a collector, served for Prometheus on a separate port while it collects.

This module needs the extra ``prometheus`` and is imported only if the port is asked for.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.rollouts.outcome import Completed, Failed, Outcome
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.prometheus_metrics import RunMeters
from nemo_gym.steps.record import from_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsPort:
    """Where metrics are served."""

    meters: RunMeters
    url: str

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count attempts that ended, and the calls they made."""
        for outcome in outcomes:
            failure_class = ""
            if isinstance(outcome, Completed):
                ending = "completed"
            elif isinstance(outcome, Failed):
                ending, failure_class = "retried" if outcome.will_retry else "failed", outcome.failure.kind
            else:
                ending = "vanished"
            self.meters.count_rollout(outcome.planned.agent, ending, outcome.seconds, failure_class)
            record = from_line(outcome.steps) if outcome.steps else None
            if record is not None:
                self.meters.count_steps(record.steps)

    async def page(self, request: Request) -> Response:
        """Answer a scrape."""
        return self.meters.page(request.headers.get("accept", ""))


@asynccontextmanager
async def metrics_port(host: str, port: int) -> AsyncIterator[MetricsPort]:
    """Serve metrics while the context lasts."""
    with closing(RunMeters()) as meters, bind(host, port, owner="metrics", setting="metrics_port") as socket:
        chosen = socket.getsockname()[1]
        served = MetricsPort(meters, f"http://{f'[{host}]' if ':' in host else host}:{chosen}/metrics")
        async with listening({chosen: Starlette(routes=[Route("/metrics", served.page)])}, [socket]):
            meters.watch_lag()
            logger.info("metrics: %s", served.url)
            yield served
