"""The metrics that Prometheus scrapes: counters and histograms of rollouts and their calls, and the event loop's lag.

``ng_run`` serves them at its head server (``served_requests``), a collector on a port of its own. This module needs the
extra ``prometheus`` and is imported only if metrics are requested. Labels are names of servers, agents, tools and
failure classes, never content. Tools that a model made up are not among them, and no label takes more than
``MOST_VALUES`` values, whatever other processes report about their calls.
"""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.rollouts.progress import Load
from nemo_gym.rollouts.run import RunListener
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome
from nemo_gym.servers.listen import bind, listening
from nemo_gym.steps.rollout_steps import MODEL_KINDS, Step, from_line, is_outer_model_call

logger = logging.getLogger(__name__)

MOST_VALUES: Final = 200  # of one label
OTHER: Final = "other"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
PREFIX: Final = "rollout_gym_"
BEAT_S: Final = 0.1
CALL_BUCKETS: Final = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
ROLLOUT_BUCKETS: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_000)
LAG_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_WORD: Final = re.compile(r"[\w.:/ -]{1,80}")


class RunMeters:
    """The metrics of one process. They may be updated and read only on its event loop."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._values: defaultdict[str, set[str]] = defaultdict(set)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"{PREFIX}{name}_seconds", text, labels, buckets=buckets, registry=registry)

        self._rollouts = counter("rollouts", "Attempts at rollouts that ended.", "agent", "outcome")
        self._failures = counter("rollout_failures", "Attempts that failed.", "agent", "failure_class")
        self._seconds = histogram("rollout_duration", "How long attempts took.", ROLLOUT_BUCKETS, "agent")
        self.in_flight = Gauge(f"{PREFIX}rollouts_in_flight", "Rollouts that are running.", registry=registry)
        self._calls = histogram(
            "call_duration", "How long the calls of rollouts took.", CALL_BUCKETS, "kind", "server", "tool"
        )
        self._model_calls = counter("model_calls", "Calls of models.", "server", "status")
        self._tokens = counter("tokens", "Tokens that models read (input, cached) and wrote.", "server", "kind")
        self._waits = counter("call_waiting_seconds", "What calls waited for, of their duration.", "server", "cause")
        self._retries = counter("call_retries", "Attempts at calls that were repeated.", "server", "reason")
        self._lag = histogram("event_loop_lag", "How late the event loop does what is due.", LAG_BUCKETS)
        self._beat: asyncio.TimerHandle | None = None

    def follow(self, load: Load) -> None:
        """Report how busy this run is."""
        self.in_flight.set_function(lambda: load.in_flight)
        limit = Gauge(f"{PREFIX}rollouts_limit", "Rollouts that may run at once.", registry=self.registry)
        limit.set_function(lambda: load.allowed)

    def count_rollout(self, agent: str, outcome: str, seconds: float, failure_class: str = "") -> None:
        """Count an attempt that has ended."""
        agent = self._bounded("agent", agent)
        self._rollouts.labels(agent, outcome).inc()
        self._seconds.labels(agent).observe(seconds)
        if failure_class:
            self._failures.labels(agent, self._bounded("failure_class", failure_class)).inc()

    def count_steps(self, steps: Sequence[Step]) -> None:
        """Count the calls of an attempt."""
        for step in steps:
            server = self._bounded("server", step.server)
            # Status 404 means that the tool does not exist, so a model may have made up its name.
            tool = self._bounded("tool", step.tool) if step.status != 404 else OTHER
            self._calls.labels(self._bounded("kind", step.kind), server, tool).observe(step.duration)
            if step.waited:
                self._waits.labels(server, self._bounded("cause", step.waited_for or OTHER)).inc(step.waited)
            for retry in step.retries:
                self._retries.labels(server, self._bounded("reason", retry.failed)).inc()
            if step.kind in MODEL_KINDS:
                self._model_calls.labels(server, self._bounded("status", str(step.status or step.finish))).inc()
            if is_outer_model_call(step, steps):
                self._count_tokens(server, step)

    def _count_tokens(self, server: str, step: Step) -> None:
        for kind, count in (("input", step.tokens_in), ("output", step.tokens_out), ("cached", step.tokens_cached)):
            if count:
                self._tokens.labels(server, kind).inc(count)

    def _bounded(self, label: str, value: str) -> str:
        """The value, or a common placeholder if there are too many values or it is not a name."""
        known = self._values[label]
        if value in known or not value:
            return value
        if len(known) >= MOST_VALUES or not _WORD.fullmatch(value):
            return OTHER
        known.add(value)
        return value

    def watch_lag(self) -> None:
        """Start measuring the lag of the running event loop."""
        loop = asyncio.get_running_loop()

        def beat(due: float) -> None:
            now = loop.time()
            self._lag.observe(max(0.0, now - due))
            self._beat = loop.call_at(now + BEAT_S, beat, now + BEAT_S)

        due = loop.time() + BEAT_S
        self._beat = loop.call_at(due, beat, due)

    def close(self) -> None:
        """Stop measuring."""
        if self._beat is not None:
            self._beat.cancel()

    def page(self, accept: str, others: Sequence[str] = ()) -> Response:
        """All metrics, in the format that the scraper asks for; ``others`` are the texts of other processes."""
        encoder, content_type = choose_encoder(accept)
        registry = _Together(self.registry, others) if others else self.registry
        return Response(encoder(registry), headers={"content-type": content_type})

    def text(self) -> str:
        """The metrics of this process alone, for another one that adds them to its own."""
        encoder, _ = choose_encoder(OPENMETRICS)
        return encoder(self.registry).decode()


class _Together:
    """The metrics of several processes as one registry, in which equal samples are added up."""

    def __init__(self, own: CollectorRegistry, others: Sequence[str]) -> None:
        self._own = own
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """The families of this process, with the samples of the others in those that are ours."""
        parse: Callable[[str], Iterator[Metric]] = text_string_to_metric_families
        texts = [{found.name: found for found in parse(text)} for text in self._others]
        for family in self._own.collect():
            theirs = [found[family.name] for found in texts if family.name in found]
            yield _added(family, theirs) if family.name.startswith(PREFIX) else family


def _added(family: Metric, others: Sequence[Metric]) -> Metric:
    """One family from several processes. A family is as old as its oldest part."""
    values: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in (sample for each in (family, *others) for sample in each.samples):
        key = (sample.name, frozenset(sample.labels.items()))
        known = values.get(key)
        if known is not None:
            is_date = sample.name.endswith("_created")
            both = (known.value, sample.value)
            sample = known._replace(value=min(both) if is_date else sum(both))  # noqa: PLW2901
        values[key] = sample
    together = Metric(family.name, family.documentation, family.type, family.unit)
    together.samples = list(values.values())
    return together


class MetricsPort(RunListener):
    """Counts what a collector runs, and serves scrapes."""

    def __init__(self, meters: RunMeters) -> None:
        self._meters = meters

    def run_started(self, load: Load) -> None:
        self._meters.follow(load)

    def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
        """Count attempts that ended, and the calls they made."""
        for outcome in outcomes:
            failure_class = ""
            if isinstance(outcome, Completed):
                ending = "completed"
            elif isinstance(outcome, Failed):
                ending, failure_class = "retried" if outcome.will_retry else "failed", outcome.failure.kind
            else:
                ending = "vanished"
            self._meters.count_rollout(outcome.planned.agent, ending, outcome.seconds, failure_class)
            record = from_line(outcome.steps) if outcome.steps else None
            if record is not None:
                self._meters.count_steps(record.steps)

    async def page(self, request: Request) -> Response:
        return self._meters.page(request.headers.get("accept", ""))


@asynccontextmanager
async def serving_metrics(host: str, port: int) -> AsyncIterator[MetricsPort]:
    """Serve the metrics of a collector while the context lasts."""
    with closing(RunMeters()) as meters, bind(host, port, owner="metrics", setting="metrics_port") as socket:
        chosen = socket.getsockname()[1]
        served = MetricsPort(meters)
        async with listening({chosen: Starlette(routes=[Route("/metrics", served.page)])}, [socket]):
            meters.watch_lag()
            logger.info("metrics: http://%s:%d/metrics", f"[{host}]" if ":" in host else host, chosen)
            yield served
