"""Spans: real SDK, real HTTP, a receiver that decodes OTLP; endpoints that are down, slow or refuse."""

import gzip
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.executors.processes import worker_pool
from nemo_gym.io.files import RunFiles
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from nemo_gym.steps.rollout_steps import RolloutSteps, Step, StepRetry, to_line
from nemo_gym.steps.steps_file import read_steps

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nemo_gym.telemetry.span_sender import models_in, otlp_url, send_all

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"
GET_WEATHER = "execute_tool get_weather"


class Receiver:
    """An OTLP endpoint on loopback."""

    def __init__(self) -> None:
        self.status = 200
        self.hold = threading.Event()  # set: answers; until then it is slow
        self.hold.set()
        self.requests = 0
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Span] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests += 1
                outer.hold.wait(10)
                if outer.status == 200 and self.path == "/v1/traces":
                    outer.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(group.resource))
            for scope in group.scope_spans:
                assert scope.scope.name == "rollout-gym"
                self.spans += scope.spans


def attributes(thing: Any) -> dict[str, Any]:
    found = {}
    for pair in thing.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = Receiver()
    yield found
    found.hold.set()
    found.server.shutdown()
    found.server.server_close()


def configuration(base_url: str, *extra: str) -> DictConfig:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,{model}"
    policy = [f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=mock-large"]
    return parse_config([f"+config_paths=[{paths}]", *policy, *extra]).config


def parameters(folder: Path, **given: Any) -> RolloutCollectionConfig:
    tasks = folder / "tasks.jsonl"
    tasks.write_text((ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()[0] + "\n")
    return RolloutCollectionConfig(
        agent_name=AGENT,
        input_jsonl_fpath=str(tasks),
        output_jsonl_fpath=str(folder / "out.jsonl"),
        disable_aggregation=True,
        **given,
    )


def tree(spans: list[Span]) -> dict[bytes, list[Span]]:
    """Spans by the id of their parent."""
    found: dict[bytes, list[Span]] = {}
    for span in spans:
        found.setdefault(span.parent_span_id, []).append(span)
    return found


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """All warnings, except about the event loop: a machine that is busy with other tests may stop it for a while."""
    return [
        record for record in caplog.records if record.levelno >= 30 and record.name != "nemo_gym.servers.event_loop"
    ]


def identities(spans: list[Span]) -> set[tuple[bytes, bytes, str]]:
    return {(span.trace_id, span.span_id, span.name) for span in spans}


async def test_a_run_sends_a_trace_of_every_rollout_and_the_command_sends_the_same(
    mock_model: Any, tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = parameters(tmp_path, num_repeats=3, otel_endpoint=receiver.url)
    async with host_gym(configuration(mock_model.base_url)) as gym:
        summary = await RolloutCollectionHelper().collect(wanted, client=gym.client)
    assert summary.completed == 3
    assert len({span.trace_id for span in receiver.spans}) == 3
    roots = tree(receiver.spans)[b""]
    recorded = {record.rollout: record for record in read_steps(summary.files.steps)}
    for root in roots:
        told = attributes(root)
        record = recorded[told["rollout_gym.rollout_index"]]
        assert root.start_time_unix_nano == pytest.approx(record.started_at * 1e9, abs=1000)
        assert root.end_time_unix_nano - root.start_time_unix_nano == pytest.approx(record.duration * 1e9, abs=1000)
        assert root.name == f"invoke_agent {AGENT}"
        assert (told["gen_ai.operation.name"], told["gen_ai.agent.name"]) == ("invoke_agent", AGENT)
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (200, 40)
        calls = tree(receiver.spans)[root.span_id]
        assert [call.name for call in calls] == [
            "seed example_single_tool_call",
            f"call {AGENT}",
            "verify example_single_tool_call",
        ]
        inner = tree(receiver.spans)[calls[1].span_id]
        model = f"chat {attributes(inner[0])['gen_ai.request.model']}"
        assert [call.name for call in inner] == [model, GET_WEATHER, model]
        chat, tool = attributes(inner[0]), attributes(inner[1])
        assert inner[0].kind == Span.SPAN_KIND_CLIENT
        assert chat["gen_ai.operation.name"] == "chat"
        assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (100, 20)
        assert chat["gen_ai.response.finish_reasons"] == ["completed"]
        assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "get_weather")
    model_names = {attributes(span).get("gen_ai.request.model") for span in receiver.spans}
    assert model_names == {None, *models_in(summary.files).values()}
    assert receiver.resources[0]["service.name"] == "rollout-gym"
    assert not warnings_in(caplog)
    live, receiver.spans = identities(receiver.spans), []
    assert send_all(f"{receiver.url}/v1/traces", summary.files) == (3, len(live))
    assert identities(receiver.spans) == live


class ModelEndpoint:
    """Passes requests on to a model, and notes which span each of them says it comes from."""

    def __init__(self, base_url: str) -> None:
        self.callers: list[tuple[bytes, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.callers.append(caller_of(self.headers["traceparent"]))
                with urlopen(Request(base_url.removesuffix("/v1") + self.path, body)) as reply:
                    answer = reply.read()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


def caller_of(header: str | None) -> tuple[bytes, bytes]:
    """The trace and the span that a ``traceparent`` names, as OpenTelemetry's own code reads it."""
    context = TraceContextTextMapPropagator().extract({"traceparent": header or ""})
    found = get_current_span(context).get_span_context()
    return found.trace_id.to_bytes(16), found.span_id.to_bytes(8)


@pytest.fixture
def endpoint(mock_model: Any) -> Iterator[ModelEndpoint]:
    found = ModelEndpoint(mock_model.base_url)
    yield found
    found.server.shutdown()
    found.server.server_close()


ISOLATED = "++policy_model.responses_api_models.openai_model.isolation=process"


@pytest.mark.parametrize("where", ["one process", "model in its own process", "agent over HTTP", "workers"])
async def test_the_endpoint_is_told_the_span_that_calls_it(
    endpoint: ModelEndpoint, tmp_path: Path, receiver: Receiver, where: str
) -> None:
    wanted = parameters(tmp_path, num_repeats=2, otel_endpoint=receiver.url)
    config = configuration(endpoint.url, *([ISOLATED] if where == "model in its own process" else []))
    if where == "workers":
        async with worker_pool(config, 2, steps=True, trace_run=wanted.trace_run) as pool:
            nowhere = BaseServerConfig(host="127.0.0.1", port=9)
            client = GymClient(head_server_config=nowhere, global_config_dict=config)
            await RolloutCollectionHelper().collect(wanted, client=client, attempt=pool)
    else:
        async with host_gym(config) as gym:
            near, head = gym.client, gym.client.head_server_config
            far = GymClient(head_server_config=head, global_config_dict=near.global_config_dict)
            await RolloutCollectionHelper().collect(wanted, client=far if where == "agent over HTTP" else near)
    chats = [(span.trace_id, span.span_id) for span in receiver.spans if span.name.startswith("chat ")]
    assert len(chats) == 4
    assert sorted(endpoint.callers) == sorted(chats)
    assert [len(record.steps) for record in read_steps(RunFiles.of(wanted.output).steps)] == [6, 6]


async def test_the_endpoint_is_told_nothing_without_traces(endpoint: ModelEndpoint, tmp_path: Path) -> None:
    async with host_gym(configuration(endpoint.url)) as gym:
        await RolloutCollectionHelper().collect(parameters(tmp_path, steps=True), client=gym.client)
    assert set(endpoint.callers) == {(bytes(16), bytes(8))}


async def test_resuming_goes_on_with_the_ids_of_the_run(mock_model: Any, tmp_path: Path, receiver: Receiver) -> None:
    async with host_gym(configuration(mock_model.base_url)) as gym:
        first = parameters(tmp_path, num_repeats=2, otel_endpoint=receiver.url)
        await RolloutCollectionHelper().collect(first, client=gym.client)
        files = RunFiles.of(first.output)
        lines = files.rollouts.read_bytes().splitlines(keepends=True)
        files.rollouts.write_bytes(lines[0])  # the other one is owed again
        again = parameters(tmp_path, num_repeats=2, otel_endpoint=receiver.url, resume_from_cache=True)
        await RolloutCollectionHelper().collect(again, client=gym.client)
    assert len({span.trace_id for span in receiver.spans}) == 2


def saved(folder: Path, *records: RolloutSteps) -> RunFiles:
    files = RunFiles.of(folder / "out.jsonl")
    files.steps.write_bytes(b"".join(to_line(record) + b"\n" for record in records))
    return files


def attempt(number: int = 1, outcome: str = "completed", *steps: Step) -> RolloutSteps:
    return RolloutSteps(
        task=0, rollout=0, attempt=number, agent="a", started_at=1e9 + number, outcome=outcome, steps=list(steps)
    )


def test_attempts_of_a_rollout_share_a_trace_and_failures_are_told(tmp_path: Path, receiver: Receiver) -> None:
    retried = Step("model", "m", start=0.5, duration=0.5, status=503, retries=[StepRetry(0.7, "429")], waited=0.1)
    broken = Step("verify", "v", start=1.0, duration=0.5, finish="TimeoutError")
    judge = Step("judge", "j", start=1.1, duration=0.2, status=200, tokens_cached=5, parent=1)
    files = saved(tmp_path, attempt(1, "timeout", retried, broken, judge), attempt(2))
    files.rollouts.write_text(json.dumps({"agent_ref": {"name": "a"}, "response": {"model": "large"}}) + "\n{torn")
    assert send_all(receiver.url, files) == (2, 5)
    assert len({span.trace_id for span in receiver.spans}) == 1
    failed, chat, verify, judged, worked = receiver.spans
    assert (failed.status.code, failed.status.message, attributes(failed)["error.type"]) == (2, "timeout", "timeout")
    assert worked.status.code == 0
    assert chat.name == "chat large"
    assert (chat.status.code, attributes(chat)["error.type"]) == (2, "503")
    assert [(event.name, attributes(event)) for event in chat.events] == [("retry", {"error.type": "429"})]
    assert attributes(verify)["error.type"] == "TimeoutError"
    assert judged.parent_span_id == verify.span_id
    assert judged.name == "chat j"
    assert attributes(judged)["gen_ai.usage.cache_read.input_tokens"] == 5


def test_runs_differ_in_their_ids_and_large_ones_come_in_batches(tmp_path: Path, receiver: Receiver) -> None:
    records = [attempt(1, "completed", *[Step("tool", "t", tool="x", status=200)] * 99) for _ in range(10)]
    send_all(receiver.url, saved(tmp_path, *records))
    assert receiver.requests == 2
    assert len(receiver.spans) == 1000
    before = identities(receiver.spans)
    receiver.spans = []
    send_all(receiver.url, saved(tmp_path, attempt(2)))
    assert not before & identities(receiver.spans)


@pytest.mark.parametrize("fault", ["down", "slow", "refusing"])
async def test_an_endpoint_that_does_not_work_is_one_warning_and_nothing_is_lost(
    mock_model: Any,
    tmp_path: Path,
    receiver: Receiver,
    fault: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    endpoint = receiver.url
    if fault == "down":
        endpoint = "http://user:secret@127.0.0.1:9"
    elif fault == "slow":
        receiver.hold.clear()
    else:
        receiver.status = 400
    wanted = parameters(tmp_path, num_repeats=2, otel_endpoint=endpoint)
    async with host_gym(configuration(mock_model.base_url)) as gym:
        summary = await RolloutCollectionHelper().collect(wanted, client=gym.client)
    assert (summary.completed, summary.exit_code) == (2, 0)
    warned = warnings_in(caplog)
    assert len(warned) == 1, warned
    assert "ng_export_traces" in warned[0].getMessage()
    assert "secret" not in caplog.text
    receiver.hold.set()
    receiver.status = 200
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT")
    assert send_all(receiver.url, summary.files).attempts == 2
    assert len(identities(tree(receiver.spans)[b""])) == 2  # what comes twice, as it was only slow, is the same


def test_the_command_says_what_is_wrong(tmp_path: Path, receiver: Receiver) -> None:
    receiver.status = 403
    with pytest.raises(ConfigError, match=r"spans can't be sent to http://127\.0\.0\.1.*403"):
        send_all(receiver.url, saved(tmp_path, attempt(1)))
    with pytest.raises(ConfigError, match="no steps to send"):
        send_all(receiver.url, saved(tmp_path))
    with pytest.raises(ConfigError, match="not the address"):
        otlp_url("localhost:4317")
