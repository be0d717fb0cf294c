"""Telemetry by the commands: metrics, traces and trackers of one real run at once."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "resources_servers/example_single_tool_call"
MODEL = ROOT / "responses_api_models/openai_model/configs/openai_model.yaml"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[bytes]]]:
    """The address of an OTLP endpoint, and what it got."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()


def collection(base_url: str, *more: str) -> list[str]:
    return [
        "ng_collect_rollouts",
        f"+config_paths=[{ENVIRONMENT}/configs/example_single_tool_call.yaml,{MODEL}]",
        f"+policy_base_url={base_url}",
        "+policy_api_key=sk-secret",
        "+policy_model_name=mock",
        "+agent_name=example_single_tool_call_simple_agent",
        f"+input_jsonl_fpath={ENVIRONMENT}/data/example.jsonl",
        "+output_jsonl_fpath=out.jsonl",
        *more,
    ]


def test_one_run_serves_metrics_and_sends_traces_which_can_be_sent_again(
    run: Callable[..., Any], mock_model: Any, workspace: Path, endpoint: tuple[str, list[bytes]]
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    url, got = endpoint
    ran = run(*collection(mock_model.base_url, "+limit=2", "+metrics_port=0", f"+otel_endpoint={url}"))
    assert ran.code == 0, ran.err
    assert "metrics: http://127.0.0.1:" in ran.err
    assert "warning" not in ran.err.lower()
    assert len((workspace / "out_steps.jsonl").read_text().splitlines()) == 2
    live = b"".join(got)
    assert b"invoke_agent example_single_tool_call_simple_agent" in live
    assert b"sk-secret" not in live
    got.clear()
    again = run("ng_export_traces", "+rollouts=out.jsonl", f"+endpoint={url}")
    assert (again.code, again.err.strip()) == (0, "2 attempts sent as 14 spans")
    assert got


def test_traces_can_not_be_made_without_steps(run: Callable[..., Any], mock_model: Any, workspace: Path) -> None:
    refused = run(*collection(mock_model.base_url, "+otel_endpoint=http://127.0.0.1:9", "+steps=false"))
    assert refused.code == 2
    assert "otel_endpoint needs the steps of rollouts" in refused.err
    (workspace / "out.jsonl").touch()
    missing = run("ng_export_traces", "+rollouts=out.jsonl", "+endpoint=http://127.0.0.1:9")
    assert missing.code != 0
    assert "out_steps.jsonl: no such file" in missing.err


def test_a_run_is_logged_to_mlflow_without_its_secrets(
    run: Callable[..., Any], mock_model: Any, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (workspace / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    ran = run(*collection(mock_model.base_url, "+limit=2", "+trackers=mlflow", "+steps=true"))
    assert ran.code == 0, ran.err
    assert "not affected" not in ran.err
    client = mlflow.MlflowClient(tracking_uri=uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("rollout-gym").experiment_id])
    assert logged.data.metrics["progress/completed"] == 2
    assert logged.data.metrics["key_metrics/example_single_tool_call_simple_agent/mean/reward"] == 1.0
    assert logged.data.params["agent_name"] == "example_single_tool_call_simple_agent"
    assert "sk-secret" not in json.dumps(logged.to_dictionary())
    kept = {found.path for found in client.list_artifacts(logged.info.run_id)}
    assert {"out.jsonl", "out_steps.jsonl", "out_aggregate_metrics.json", "out_manifest.json"} <= kept


def test_an_unknown_tracker_is_refused_before_anything_starts(run: Callable[..., Any], workspace: Path) -> None:
    refused = run(*collection("http://127.0.0.1:9", "+trackers=[mlfow]"))
    assert refused.code != 0
    assert "there is no tracker 'mlfow', only mlflow, tensorboard, wandb" in refused.err
    assert "Traceback" not in refused.err
    assert not (workspace / "out.jsonl").exists()
