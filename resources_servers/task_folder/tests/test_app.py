import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import nemo_gym
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import SandboxError
from nemo_gym.server_utils import ServerClient
from resources_servers.task_folder.app import TaskFolderConfig, TaskFolderServer

EXAMPLES = Path(__file__).parents[1] / "data" / "example"
FIXED = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
RESPONSE = {**FIXED, "parallel_tool_calls": True, "tool_choice": "auto", "output": []}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    config = TaskFolderConfig(host="127.0.0.1", port=8080, entrypoint="", name="task_folder")
    server = TaskFolderServer(config=config, server_client=ServerClient.detached())
    with TestClient(server.setup_webserver()) as client:
        yield client


def row(folder: Path) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "Do it."}]}
    return {"responses_create_params": params, "task_folder": str(folder), "task_name": folder.name}


def make(folder: Path, *, test: str, toml: str = "", dockerfile: str = "FROM debian\nWORKDIR /app\n") -> Path:
    texts = {"task.toml": toml, "instruction.md": "Do it.", "tests/test.sh": f"#!/bin/sh\n{test}\n"}
    for path, text in {**texts, "environment/Dockerfile": dockerfile}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def begin(client: TestClient, folder: Path) -> None:
    reply = client.post("/seed_session", json=row(folder))
    assert reply.status_code == 200, reply.text


def run(client: TestClient, command: str) -> dict[str, Any]:
    return dict(client.post("/run", json={"command": command}).json())


def verify(client: TestClient, folder: Path) -> dict[str, Any]:
    reply = client.post("/verify", json={**row(folder), "response": RESPONSE})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nothing", 0.0)])
def test_solutions_solve_every_example_and_nothing_solves_none(agent: str, reward: float, tmp_path: Path) -> None:
    run = nemo_gym.collect(tasks=EXAMPLES, agent=agent, output=tmp_path / "rollouts.jsonl")
    assert [rollout.reward for rollout in run] == [reward] * 10, run.failures
    named = next(rollout for rollout in run if rollout.fields["task_name"] == "named-rewards")
    assert named.fields["rewards"] == {"reward": reward, "files": 3 * reward}


def test_a_model_works_on_a_folder_of_tasks_by_its_tools(tmp_path: Path) -> None:
    def writes_hello(request: Any) -> Any:
        if request["input"][-1].get("type") == "function_call_output":
            return "Done."
        assert "hello" in request["input"][-1]["content"]
        arguments = '{"command": "echo hello > hello.txt"}'
        return {"type": "function_call", "name": "run", "call_id": "c", "arguments": arguments}

    run = nemo_gym.collect(tasks=str(EXAMPLES / "hello-file"), model=writes_hello, output=tmp_path / "rollouts.jsonl")
    (rollout,) = run
    assert rollout.reward == 1.0
    assert "+hello" in rollout.fields["workspace_diff"]


def test_tasks_that_can_not_run_are_named_before_anything_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(EXAMPLES / "hello-file", tmp_path / "set" / "good")
    make(tmp_path / "set" / "bad", test="", toml="[environment]\ngpus = 4\n")
    run = nemo_gym.collect(tasks=tmp_path / "set", agent="oracle", output=tmp_path / "rollouts.jsonl")
    assert len(run) == 1
    assert "1 of 2 tasks can't run here and are left out:\n  bad: it asks for GPUs" in caplog.text
    with pytest.raises(ConfigError, match="none of the tasks can run here:\n  bad: it asks for GPUs"):
        nemo_gym.collect(tasks=tmp_path / "set" / "bad", agent="oracle")


def test_neither_an_environment_nor_tasks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="neither an environment nor a folder of tasks"):
        nemo_gym.collect(model="local")


def test_rewards_that_an_agent_plants_do_not_count(client: TestClient) -> None:
    folder = EXAMPLES / "traps"
    begin(client, folder)
    planted = "rm -rf /tests /logs/verifier; mkdir -p /app/t /logs; ln -s /app/t /tests; ln -s /app/t /logs/verifier; "
    assert run(client, f"{planted} echo 1 > /app/t/reward.txt; mkdir /solution 2>/dev/null; echo ok")["exit_code"] == 0
    assert verify(client, folder)["reward"] == 0.0


def test_what_an_agent_left_running_is_gone_when_the_tests_run(client: TestClient, tmp_path: Path) -> None:
    found = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'sleep 12[3]45'"
    folder = make(tmp_path, test=f"if {found}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt")
    begin(client, folder)
    assert run(client, f"sleep 12345 & sleep 0.2; {found} && echo seen")["output"] == "seen\n"
    assert verify(client, folder)["reward"] == 0.0


def test_tests_without_a_reward_fail_the_rollout(client: TestClient, tmp_path: Path) -> None:
    folder = make(tmp_path, test="echo it broke; exit 7")
    begin(client, folder)
    with pytest.raises(SandboxError, match=r"wrote neither .* \(exit code 7\): it broke"):
        verify(client, folder)


@pytest.mark.parametrize("text", ["nan", "1e999", "much", ""])
def test_a_reward_that_is_not_a_number_fails_the_rollout(client: TestClient, tmp_path: Path, text: str) -> None:
    folder = make(tmp_path, test=f"printf '%s' '{text}' > /logs/verifier/reward.txt")
    begin(client, folder)
    with pytest.raises(SandboxError, match="not a number"):
        verify(client, folder)


def test_tests_that_take_too_long_are_worth_nothing(client: TestClient, tmp_path: Path) -> None:
    toml = "[verifier]\ntimeout_sec = 1\n"
    folder = make(tmp_path, toml=toml, test="echo 1 > /logs/verifier/reward.txt; sleep 60")
    begin(client, folder)
    verdict = verify(client, folder)
    assert (verdict["reward"], verdict["reason"]) == (0.0, "the tests took longer than 1 s")


def test_after_the_agents_time_tools_are_refused_and_the_tests_still_run(client: TestClient, tmp_path: Path) -> None:
    toml = "[agent]\ntimeout_sec = 2\n"
    folder = make(tmp_path, toml=toml, test="cp /app/reward.txt /logs/verifier/reward.txt")
    begin(client, folder)
    assert run(client, "echo 1 > reward.txt; sleep 60") == {"error": "the time that the task allows is over"}
    assert "time" in run(client, "echo 0 > reward.txt")["error"]
    assert verify(client, folder)["reward"] == 1.0


def test_a_step_of_the_dockerfile_that_fails_is_named(client: TestClient, tmp_path: Path) -> None:
    folder = make(tmp_path, test="", dockerfile="FROM debian\nRUN echo no luck >&2; exit 4\n")
    with pytest.raises(SandboxError, match=r"line 2 of the Dockerfile ended with exit code 4 \(exited\): no luck"):
        begin(client, folder)


def test_files_outside_of_the_task_are_not_copied(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    folder = make(tmp_path / "task", test="", dockerfile="FROM debian\nCOPY ../../secret /app/\n")
    with pytest.raises(SandboxError, match="leads out of"):
        begin(client, folder)


def test_a_health_check_that_never_succeeds_fails_the_rollout(client: TestClient, tmp_path: Path) -> None:
    toml = '[environment.healthcheck]\ncommand = "echo not yet; false"\ninterval_sec = 0.1\nretries = 2\n'
    folder = make(tmp_path, toml=toml, test="")
    with pytest.raises(SandboxError, match="health check of the task failed 2 times: not yet"):
        begin(client, folder)


def test_a_model_can_not_begin_the_rollout_again_as_the_oracle(client: TestClient) -> None:
    folder = EXAMPLES / "hello-file"
    begin(client, folder)
    reply = client.post("/seed_session", json={**row(folder), "solved_by": "solution"})
    assert reply.status_code == 409
    assert verify(client, folder)["reward"] == 0.0
