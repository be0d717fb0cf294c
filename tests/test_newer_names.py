"""Names that folders of releases after 0.4.0 import, and what they do."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientResponseError
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import nemo_gym
from nemo_gym import openai_utils, prompt, rollout_observability, task_data
from nemo_gym.base_responses_api_model import start_model_execution
from nemo_gym.benchmarks import BENCHMARKS_DIR, BenchmarkConfig
from nemo_gym.config_types import ConfigError
from nemo_gym.deliverables import is_deliverable
from nemo_gym.failure_kinds import FAILURE_KINDS, is_namespaced, validate_failure_kind
from nemo_gym.global_config import get_first_server_config_dict
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.prompt import PromptConfig, load_prompt_config
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ModelCallRef
from nemo_gym.sandbox import AsyncSandbox, SandboxResources, SandboxSpec, resolve_provider_config
from nemo_gym.sandbox import process_supervisor as supervisor
from nemo_gym.sandbox.config import resolve_provider_metadata
from nemo_gym.sandbox.providers.base import SandboxEndpoint, SandboxHandle
from nemo_gym.sandbox.providers.local import LocalProvider
from nemo_gym.sandbox.utils import CPU_CAP_ENV_VARS, cpu_cap_env, rewrite_image
from nemo_gym.server_utils import raise_for_status
from nemo_gym.servers.middleware.faults import CancellationMiddleware
from nemo_gym.task_data import TaskDataSchemaError, normalize_task_fields, validate_jsonl_rows
from nemo_gym.task_materialization import materialize_task
from nemo_gym.verifier_fixture import VerifierFixture, VerifierFixtureError, exercise_verifier_fixture
from nemo_gym.vision_input import build_image_input


# ---- replies and errors ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("known", [{}, {"reason": None}, {"request_info": SimpleNamespace(real_url=object())}])
async def test_an_error_of_a_minimal_reply_has_a_text(known: dict[str, Any]) -> None:
    async def read() -> bytes:
        return b"why"

    with pytest.raises(ClientResponseError) as caught:
        await raise_for_status(SimpleNamespace(ok=False, status=418, read=read, **known))
    assert "status 418" in str(caught.value)
    assert caught.value.response_content == b"why"


def test_settings_of_a_server_are_found_in_plain_dictionaries() -> None:
    config = {"a": {"responses_api_models": {"m": {"entrypoint": "app.py"}}}}
    assert get_first_server_config_dict(config, "a") == {"entrypoint": "app.py"}
    with pytest.raises(ConfigError, match="no server 'b'"):
        get_first_server_config_dict(config, "b")


async def test_a_request_whose_client_has_left_is_cancelled() -> None:
    app, ended = FastAPI(), asyncio.Event()

    @app.post("/wait")
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    messages = iter([{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return next(messages)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/wait", "headers": [], "query_string": b"", "app": app}
    await asyncio.wait_for(CancellationMiddleware(app)(scope, receive, send), 5)
    assert ended.is_set()


# ---- types -----------------------------------------------------------------------------------------------------------
def test_items_of_hosted_tools_are_classes_that_responses_accept() -> None:
    pytest.importorskip("openai")
    item = openai_utils.NeMoGymResponseMcpCall(
        id="1", arguments="{}", name="look", server_label="s", type="mcp_call", status="completed"
    )
    fields = {"id": "r", "created_at": 1, "model": "m", "object": "response", "parallel_tool_calls": True}
    response = NeMoGymResponse(**fields, tool_choice="auto", tools=[], output=[item])
    assert response.model_dump()["output"][0]["server_label"] == "s"
    with pytest.raises(AttributeError):
        _ = openai_utils.NeMoGymNothing


def test_where_a_response_came_from_is_noted_on_the_request() -> None:
    request: Any = SimpleNamespace(state=SimpleNamespace())
    noted = start_model_execution(request, upstream_attempted=False)
    assert request.state.nemo_gym_model_execution is noted
    assert noted["response_source"] is None


def test_kinds_of_failures_have_names_and_namespaces(caplog: pytest.LogCaptureFixture) -> None:
    assert {"judge_failed", "session_lost", "cohort_incomplete"} < FAILURE_KINDS
    assert is_namespaced("my_server:no_rope")
    for name in ("judge_failed", "my_server:no_rope", None, "Odd Name", "Odd Name"):
        assert validate_failure_kind(name) == name
    assert caplog.text.count("Odd Name") == 1


def test_an_agents_own_record_is_consistent() -> None:
    with pytest.raises(ValidationError, match="needs model_call_id"):
        ModelCallRef(response_id="r")
    with pytest.raises(ValidationError, match="before started_at"):
        rollout_observability.ToolCallObservation(
            invocation_id="i",
            tool_call_id="t",
            started_at=datetime(2026, 1, 2, tzinfo=UTC),
            completed_at="2026-01-01T00:00:00Z",
        )
    first, second = AgentInvocation(invocation_id="1", parent_invocation_id="2"), AgentInvocation(invocation_id="2")
    AgentObservationBundle(source="me", records=[first, second])
    second.parent_invocation_id = "1"
    with pytest.raises(ValidationError, match="its own ancestor"):
        AgentObservationBundle(source="me", records=[first, second])
    with pytest.raises(ValidationError, match="must be unique"):
        AgentObservationBundle(source="me", records=[first, first])


def test_references_are_completed_by_captured_calls() -> None:
    def call(number: int, **fields: Any) -> SimpleNamespace:
        ids = {"model_call_id": f"c{number}", "model_ref": "policy", "response_id": f"r{number}", "call_index": number}
        return SimpleNamespace(**{**ids, "client_session_id": None, **fields})

    refs = [ModelCallRef(model_call_id="c0"), ModelCallRef(model_ref="policy", response_id="r1")]
    refs += [ModelCallRef(model_call_id="lost"), ModelCallRef(model_call_id="c2", model_ref="p", response_id="x")]
    bundle = AgentObservationBundle(source="me", records=[AgentInvocation(invocation_id="main", model_calls=refs)])
    calls = [call(0), call(1), call(2), call(3, client_session_id="main"), call(4)]
    joined = rollout_observability.join_model_call_observations(bundle, calls)
    [main] = joined.invocations
    assert [ref.model_call_id for ref in main.model_calls] == ["c0", "c1", "lost", "c2", "c3"]
    assert [gap.code.removeprefix("model_call_") for gap in joined.gaps] == [
        "reference_unmatched",
        "reference_conflict",
        "ownership_unavailable",
    ]
    assert joined.gaps[-1].detail == "capture:c4:call_index=4"
    assert not bundle.gaps


# ---- tasks -----------------------------------------------------------------------------------------------------------
def test_a_flat_row_becomes_a_whole_task() -> None:
    row = {"problem_id": 7, "question": "?", "agent_ref": {"name": "a"}, "task_source": "s", "_ng_task_index": 3}
    whole = materialize_task(row, taskset="e:t")
    assert whole == {
        "task_id": {"taskset": "e:t", "task_id": "7"},
        "task_input": {"problem_id": 7, "question": "?"},
    }
    assert materialize_task({"_ng_task_index": 3}, taskset="e:t")["task_id"]["task_id"] == "3"
    for bad, index in (({}, None), ({}, -1), (whole, 1)):
        with pytest.raises(ValueError, match=r"task_index|already"):
            materialize_task(bad, taskset="e:t", task_index=index)


class Letters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: str
    count: int = Field(default=0, json_schema_extra={"legacy_location": "verifier_metadata"})


def test_rows_are_checked_against_the_schema_of_their_server() -> None:
    assert normalize_task_fields({"a": 1, "verifier_metadata": {"a": 2, "b": 3}, "agent_ref": {}}) == (
        {"a": 1, "b": 3},
        ["a"],
    )
    rows = [{"word": "x", "verifier_metadata": {"count": 1}}, {"word": "x", "count": 2}, {"word": 1, "odd": 2}]
    lines = [json.dumps(row) for row in rows]
    report = validate_jsonl_rows("letters", TypeAdapter(Letters), "data.jsonl", [*lines, "not json"])
    assert (report.rows, report.error_rows, report.clean) == (4, 2, False)
    assert dict(report.unknown_keys) == {"odd": 1}
    assert dict(report.misplaced_keys) == {"count": 1}
    assert "keys not in TaskData: odd (1 rows)" in report.summary()
    assert validate_jsonl_rows("letters", TypeAdapter(Letters), "data.jsonl", lines[:1]).clean


def test_a_schema_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "odd"
    folder.mkdir(parents=True)
    assert task_data.load_task_data_schema(folder) is None
    for text, message in (("import nothing_here", "can't be imported"), ("x = 1", "has no TaskData")):
        (folder / "task_data.py").write_text(text)
        with pytest.raises(TaskDataSchemaError, match=message):
            task_data.load_task_data_schema(folder)


# ---- sandboxes -------------------------------------------------------------------------------------------------------
def test_a_provider_is_found_by_its_name_or_block() -> None:
    named = {"fast": {"local": {"shell": "/bin/sh"}, "default_metadata": {"team": "a"}}}
    assert resolve_provider_config("fast", named) == {"local": {"shell": "/bin/sh"}}
    assert resolve_provider_metadata("fast", named) == {"team": "a"}
    assert resolve_provider_config("local") == {"local": {}}
    for bad, error in (("nowhere", ValueError), ({"a": {}, "b": {}}, ValueError), ({}, ValueError), (7, TypeError)):
        with pytest.raises(error):
            resolve_provider_config(bad)  # type: ignore[arg-type]


def test_specifications_are_checked() -> None:
    assert SandboxSpec(resources={"cpu": 2}).resources == SandboxResources(cpu=2)
    for bad in (
        lambda: SandboxSpec(ports=[80, 80]),
        lambda: SandboxSpec(ports=[0]),
        lambda: SandboxResources.from_mapping({"cpus": 2}),
        lambda: SandboxEndpoint("host:80"),
    ):
        with pytest.raises(ValueError, match=r"ports|unknown resources|absolute URL"):
            bad()
    assert cpu_cap_env(2.7) == dict.fromkeys(CPU_CAP_ENV_VARS, "2")
    assert cpu_cap_env(None) == {}
    rules = [{"from": "docker.example/", "to": "mirror/"}, {"from": "docker", "to": "never"}]
    assert rewrite_image("docker.example/x:1", rules) == "mirror/x:1"
    assert rewrite_image(None, rules) is None


async def test_a_local_sandbox_runs_commands_and_is_removed(tmp_path: Path) -> None:
    spec = SandboxSpec(files={"a/b.txt": "hello"}, env={"NAME": "you"})
    async with AsyncSandbox(LocalProvider(tmp_path), spec, owns_provider=True) as box:
        result = await box.exec("cat a/b.txt; echo $NAME")
        assert (result.stdout, result.return_code) == ("helloyou\n", 0)
        late = await box.exec("sleep 60 & sleep 60", timeout_s=0.2)
        assert (late.error_type, late.return_code) == ("timeout", 124)
        await box.download("a/b.txt", tmp_path / "copy.txt")
        with pytest.raises(ValueError, match="port 80"):
            await box.endpoint(80)
        with pytest.raises(NotImplementedError, match="can't pause"):
            await box.pause()
        with pytest.raises(RuntimeError, match="another process"):
            await box.serialize()
    assert os.listdir(tmp_path) == ["copy.txt"]  # noqa: PTH208


class SharedProvider(LocalProvider):
    """Local sandboxes that others may use, too."""

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        return {"id": handle.sandbox_id, "scope": scope}

    async def connect(self, descriptor: Any) -> SandboxHandle:
        return SandboxHandle(descriptor["id"], self.name)


async def test_a_sandbox_can_be_connected_to_and_goes_on_without_us(tmp_path: Path) -> None:
    provider = SharedProvider(tmp_path)
    async with AsyncSandbox(provider, SandboxSpec(workdir="w")) as box:
        descriptor = await box.serialize(scope="mine")
        assert descriptor["workdir"] == "w"
        other = await AsyncSandbox.connect(descriptor, provider=provider, owns_provider=False)
        assert (await other.exec("basename $PWD")).stdout == "w\n"
        await other.disconnect()
        assert (await box.exec("echo on")).stdout == "on\n"
        with pytest.raises(RuntimeError, match="disconnected"):
            await box.disconnect()

    async def fail(_: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await AsyncSandbox(provider).start_with_setup(SandboxSpec(), fail)
    assert not os.listdir(tmp_path)  # noqa: PTH208


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_supervised_command_ends_with_all_its_descendants(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"

    def supervise(*command: str, timeout: str = "20") -> dict[str, Any]:
        line = [sys.executable, supervisor.__file__, "--timeout", timeout, "--receipt", str(receipt), "--", *command]
        subprocess.run(line, check=False, timeout=60)
        found: dict[str, Any] = json.loads(receipt.read_bytes())
        return found

    # A daemon: it leaves its session, and its parent ends.
    daemon = f"setsid sh -c 'sleep 2; touch {tmp_path}/escaped' & exit 3"
    assert supervise("sh", "-c", daemon) == {
        "cleanup_confirmed": True,
        "return_code": 3,
        "error": None,
        "timed_out": False,
    }
    assert supervise("sleep", "60", timeout="0.2")["timed_out"] is True
    assert "FileNotFoundError" in supervise("no-such-program")["error"]
    time.sleep(2)
    assert not (tmp_path / "escaped").exists()
    assert supervisor.exec_timeout(timeout=10) == 70


# ---- the rest --------------------------------------------------------------------------------------------------------
async def test_a_verifier_is_run_on_cases_whose_rewards_are_known(tmp_path: Path) -> None:
    class Answer(BaseModel):
        answer: str

    class Server:
        async def verify(self, body: Answer) -> dict[str, float]:
            return {"reward": float(body.answer == "42")}

    cases = tmp_path / "cases.jsonl"
    fixture = VerifierFixture(Server, Answer, cases)
    known = [
        {"name": "right", "kind": "full_reward", "request": {"answer": "42"}, "expected_reward": 1.0},
        {"name": "wrong", "kind": "zero_reward", "request": {"answer": "41"}, "expected_reward": 0.0},
        {"name": "odd", "kind": "malformed", "request": {}, "expected_error": "Field required"},
        {"name": "same", "kind": "determinism", "request": {"answer": "42"}, "expected_reward": 1.0},
    ]

    async def exercise(*given: dict[str, Any], **options: Any) -> Any:
        cases.write_text("".join(json.dumps(case) + "\n" for case in given))
        return await exercise_verifier_fixture(fixture, reward_range=(0.0, 1.0), **options)

    assert [case.observed_rewards for case in await exercise(*known, determinism="seeded")] == [
        (1.0,),
        (0.0,),
        (),
        (1.0, 1.0),
    ]
    with pytest.raises(VerifierFixtureError, match="no case of the kind malformed"):
        await exercise(*known[:2])
    with pytest.raises(VerifierFixtureError, match="wrong: the reward is 0"):
        await exercise(known[0], {**known[1], "kind": "full_reward"}, known[1], known[2])
    with pytest.raises(VerifierFixtureError, match="does not say 'other'"):
        await exercise(*known[:2], {**known[2], "expected_error": "other"})


def test_a_prompt_is_read_again_only_after_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("user: '{question}'\n")
    assert load_prompt_config(str(path)) is load_prompt_config(str(path))
    prompt.load_prompt_config.cache_clear()  # type: ignore[attr-defined]
    path.write_text("user: 'Now {question}'\n")
    assert load_prompt_config(str(path)).user == "Now {question}"


def test_an_image_is_shown_beside_the_question() -> None:
    config = PromptConfig(user="Look: {question}", system="s")
    [system, user] = build_image_input(config, "what?", "abc")
    assert system == {"role": "system", "content": "s"}
    assert user["content"][0] == {"type": "input_text", "text": "Look: what?"}
    assert user["content"][1]["image_url"] == "data:image/png;base64,abc"
    assert build_image_input(config, "what?", None)[1]["content"] == "Look: what?"


def test_what_was_delivered_is_told_from_how_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_text("x")
    (tmp_path / "log.txt").write_text("x")
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_deliverable(path)] == ["report.pdf"]


def test_a_benchmark_is_read_from_its_file(tmp_path: Path) -> None:
    found = BenchmarkConfig.from_config_path(BENCHMARKS_DIR / "gsm8k" / "config.yaml")
    assert found is not None
    assert found.name == "gsm8k"
    (tmp_path / "config.yaml").write_text("a: [")
    assert BenchmarkConfig.from_config_path(tmp_path / "config.yaml", strict=False) is None
    with pytest.raises(ConfigError):
        BenchmarkConfig.from_config_path(tmp_path / "config.yaml")


def test_paths_are_looked_for_in_more_folders_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    assert nemo_gym._resolve_under_cwd_or_install("a.txt") == tmp_path / "a.txt"
    assert nemo_gym._resolve_under_cwd_or_install("nothing.txt") == tmp_path / "nothing.txt"
    assert nemo_gym._resolve_under_cwd_or_install("/x") == Path("/x")


def test_folders_of_a_workspace_are_below_the_parent_directory(tmp_path: Path) -> None:
    (tmp_path / "resources_servers").mkdir()
    code = "import nemo_gym; print(nemo_gym.PARENT_DIR)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(tmp_path)
