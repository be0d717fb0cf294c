"""Sends the spans of a run to an OTLP endpoint, during the run or later.

During a run, a separate thread makes and sends the spans of outcomes that are already saved. An endpoint that is down,
slow or refuses spans causes one warning. Spans that could not be sent are retried until the run ends; their steps stay
in the steps file, from which they can be sent later. This module needs the extra ``otel`` and is imported only if
spans are requested.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from yarl import URL

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import open_lines
from nemo_gym.io.files import RunFiles, run_stem
from nemo_gym.rollouts.run import RunListener
from nemo_gym.rollouts.store.outcome import Completed, Outcome
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record
from nemo_gym.steps.rollout_steps import from_line
from nemo_gym.steps.steps_file import read_steps
from nemo_gym.steps.trace_context import run_identity
from nemo_gym.telemetry.spans import SpanBuilder

logger = logging.getLogger(__name__)
EXPORTER_LOG: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
NO_REPLY: Final = "it does not reply"
TRACES_PATH: Final = "/v1/traces"
BATCH_SPANS: Final = 512
MAX_WAITING: Final = 20_000  # attempts; the steps file has them all
SEND_EVERY_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
FINISH_S: Final = 10.0  # to send the rest when the run is over
FINISH_AFTER_FAILURE_S: Final = 1.0
SAMPLED_LINES: Final = 200  # of the rollouts, read to find the names of models


def model_of(line: bytes) -> tuple[str, str]:
    """The agent and the model of a rollout; empty if it does not name them."""
    try:
        record = Record.parse(line)
    except RolloutFormatError:
        return "", ""
    model = record.response.get("model")
    return record.agent or "", model if isinstance(model, str) else ""


def models_in(files: RunFiles) -> dict[str, str]:
    """The model that each agent used, taken from the first rollouts of a run."""
    if not files.rollouts.is_file():
        return {}
    with open_lines(files.rollouts) as file:
        return {agent: model for agent, model in map(model_of, islice(file, SAMPLED_LINES)) if model}


def otlp_url(endpoint: str) -> str:
    """The address to send spans to; the protocol's path is added if the endpoint has none."""
    url = URL(endpoint)
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            "the OTLP endpoint is not the address of an HTTP server", hint=f"http://localhost:4318{TRACES_PATH}"
        )
    return str(url.with_path(TRACES_PATH) if url.path in ("", "/") else url)


class OtlpSender:
    """Sends spans and records why that failed. The exporter's own log messages are not shown."""

    def __init__(self, endpoint: str) -> None:
        url = otlp_url(endpoint)
        self.shown = str(URL(url).with_user(None).with_query(None))  # no credentials in messages
        self.reason = ""
        self._exporter = OTLPSpanExporter(endpoint=url)  # headers, timeout, …: as OTEL_EXPORTER_OTLP_* say
        self._thread: int | None = None  # the thread that is sending
        # The exporter reports the reason of a failure only in its log.
        logging.getLogger(EXPORTER_LOG).addFilter(self._note)

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Send spans; returns whether they arrived."""
        self.reason, self._thread = "", threading.get_ident()
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def stop(self) -> None:
        """Make no further attempts."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Stop suppressing log messages."""
        logging.getLogger(EXPORTER_LOG).removeFilter(self._note)

    def _note(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True  # a message of another exporter in this process
        self.reason = self.reason or record.getMessage().rstrip(".")
        return False


class LiveSpans(RunListener):
    """A listener that passes the steps of outcomes to a thread, which sends them as spans."""

    def __init__(self, sender: OtlpSender, files: RunFiles) -> None:
        self._sender = sender
        self._files = files
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._models: dict[str, str] = {}
        self._builder: SpanBuilder | None = None
        self._over = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._work, name="OpenTelemetry", daemon=True)
        self._thread.start()

    def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
        """Queue their steps."""
        if len(self._waiting) + len(outcomes) > MAX_WAITING:
            self._warn("it is slower than the run")
        for outcome in outcomes:
            agent = outcome.planned.agent
            if agent not in self._models and isinstance(outcome, Completed):
                self._models[agent] = model_of(outcome.line)[1]
            if outcome.steps:
                self._waiting.append(outcome.steps)

    def close(self) -> None:
        """Send the rest, but do not wait for an endpoint that does not reply."""
        # First a short wait, after which the last attempt is known to have failed or not; a longer one only if the
        # endpoint still takes spans. Stopping the sender also ends a request that hangs.
        self._over.set()
        self._thread.join(FINISH_AFTER_FAILURE_S)
        if self._thread.is_alive() and not self._sender.reason:
            self._thread.join(FINISH_S - FINISH_AFTER_FAILURE_S)
        self._sender.stop()
        self._thread.join(FINISH_AFTER_FAILURE_S)
        if self._thread.is_alive():
            self._warn("it is too slow")
        else:  # a thread that is still running may log more, which has to stay hidden
            self._sender.close()

    def _work(self) -> None:
        pause = SEND_EVERY_S
        while not self._over.wait(pause):
            pause = SEND_EVERY_S if self._send_waiting() else min(2 * pause, LONGEST_PAUSE_S)
        self._send_waiting(until=monotonic() + FINISH_S)

    def _send_waiting(self, until: float | None = None) -> bool:
        """Send batch after batch; stop at the first that does not arrive, and keep it for later."""
        while self._waiting and (until is None or monotonic() < until):
            batch: list[bytes] = []
            spans: list[ReadableSpan] = []
            while self._waiting and len(spans) < BATCH_SPANS:
                batch.append(self._waiting.popleft())
                spans += self._spans(batch[-1])
            if spans and not self._sender.send(spans):
                self._waiting.extendleft(reversed(batch))
                self._warn(self._sender.reason or NO_REPLY)
                return False
        return True

    def _spans(self, line: bytes) -> Iterable[ReadableSpan]:
        record = from_line(line)
        if record is None:
            return ()
        if self._builder is None:
            # The first record in the file identifies the run; in a resumed run that is not the current one.
            first = next(iter(read_steps(self._files.steps)), record)
            self._builder = SpanBuilder(run_identity(first), name=run_stem(self._files.rollouts), models=self._models)
        return self._builder.spans(record)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "spans can't be sent to %s: %s. The run is not affected. To send them later: ng_export_traces"
                " +rollouts=%s +endpoint=…",
                self._sender.shown,
                reason,
                self._files.rollouts,
            )


@asynccontextmanager
async def sending(endpoint: str, files: RunFiles) -> AsyncIterator[LiveSpans]:
    """Send the spans of a run for the duration of the context."""
    spans = LiveSpans(OtlpSender(endpoint), files)
    try:
        yield spans
    finally:
        await asyncio.to_thread(spans.close)


class SentSpans(NamedTuple):
    """What was sent."""

    attempts: int
    spans: int


def send_all(endpoint: str, files: RunFiles) -> SentSpans:
    """Send the spans of a saved run."""
    records = read_steps(files.steps)
    first = next(iter(records), None)
    if first is None:
        raise ConfigError(f"{files.steps}: there are no steps to send", hint="collect with +steps=true")
    builder = SpanBuilder(run_identity(first), name=run_stem(files.rollouts), models=models_in(files))
    sender = OtlpSender(endpoint)
    attempts = sent = 0
    spans: list[ReadableSpan] = []
    try:
        for record in records:
            spans += builder.spans(record)
            attempts += 1
            if len(spans) >= BATCH_SPANS:
                sent += _sent(sender, spans, sent)
                spans = []
        sent += _sent(sender, spans, sent)
    finally:
        sender.stop()
        sender.close()
    return SentSpans(attempts, sent)


def _sent(sender: OtlpSender, spans: Sequence[ReadableSpan], before: int) -> int:
    if spans and not sender.send(spans):
        raise ConfigError(
            f"spans can't be sent to {sender.shown}: {sender.reason or NO_REPLY} ({before} spans were sent)",
            hint="start the endpoint or correct +endpoint=…; spans that are sent again replace themselves",
        )
    return len(spans)
