"""The examples, repaired and cheated. The packages are fetched from the index on the first run."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import ServerClient
from resources_servers.code_repair.app import CodeRepairConfig, CodeRepairServer
from resources_servers.code_repair.packages import files_of, pytest_folder
from resources_servers.code_repair.tasks import RepairTask, broken_source, package_named, visible_files

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in EXAMPLES.read_text("utf-8").splitlines()]
FIXED = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
RESPONSE = {**FIXED, "parallel_tool_calls": True, "tool_choice": "auto", "output": []}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    try:
        pytest_folder()
        for row in ROWS:
            files_of(row["package"])
    except ConfigError as error:
        pytest.skip(str(error))
    config = CodeRepairConfig(host="127.0.0.1", port=8080, entrypoint="", name="code_repair")
    server = CodeRepairServer(config=config, server_client=ServerClient.detached())
    with TestClient(server.setup_webserver()) as client:
        yield client


def attempt(client: TestClient, row: Mapping[str, Any], *commands: str, **files: str) -> dict[str, Any]:
    """The verdict on a rollout with these commands, and these files written afterwards."""
    assert client.post("/seed_session", json=row).status_code == 200
    for command in commands:
        reply = client.post("/run", json={"command": command}).json()
        assert reply.get("exit_code") == 0, reply
    for path, text in files.items():
        assert "error" not in client.post("/write_file", json={"path": path, "content": text}).json()
    reply = client.post("/verify", json={**row, "response": RESPONSE})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def original(row: Mapping[str, Any]) -> dict[str, str]:
    files = files_of(row["package"])
    return {mutation["path"]: files[mutation["path"]].decode() for mutation in row["mutations"]}


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_original_is_worth_one_and_the_broken_package_nothing(client: TestClient, number: int) -> None:
    row = ROWS[number]
    assert attempt(client, row)["reward"] == 0.0
    repaired = attempt(client, row, **original(row))
    assert (repaired["reward"], repaired["reason"]) == (1.0, None)
    assert repaired["workspace_diff"].count("\n+") >= 1


def test_what_happens_to_tests_and_settings_has_no_effect(client: TestClient) -> None:
    row = ROWS[0]
    package = package_named(row["package"])
    deleted = f"find {package.tests} -name 'test_*.py' -delete"
    passing = {f"{package.source}/conftest.py": "import sys", "conftest.py": "collect_ignore_glob = ['*']"}
    for verdict in (attempt(client, row, deleted), attempt(client, row, **passing)):
        assert (verdict["reward"], verdict["tests_passed"]) == (0.0, 0)
    assert attempt(client, row, deleted, **original(row))["reward"] == 1.0


def test_a_repair_for_the_shown_test_alone_is_worth_nothing(client: TestClient) -> None:
    row = next(row for row in ROWS if row["mutations"][0]["function"] == "date_convert")
    task = RepairTask.model_validate(row)
    assert task.tests.shown is not None
    ((path, text),) = original(row).items()
    broken = broken_source(package_named(task.package), task.mutations)[path].decode()
    # The original while the shown test is among the callers, the broken one otherwise.
    cheat = f"""
import traceback
space = {{"__name__": __name__, "__file__": __file__}}
exec({text!r}, space)
broken = date_convert
def date_convert(*given, **named):
    names = [frame.name for frame in traceback.extract_stack()]
    return (space["date_convert"] if {task.tests.shown.rpartition("::")[2]!r} in names else broken)(*given, **named)
"""
    verdict = attempt(client, row, **{path: broken + cheat})
    assert verdict["reward"] == 0.0
    assert verdict["reason"] == "hidden tests fail", verdict


def test_a_repair_that_forges_outcomes_is_worth_nothing(client: TestClient) -> None:
    row = ROWS[0]
    (path, text), *_ = original(row).items()
    verdict = attempt(client, row, **{path: f"import pytest\n{text}"})
    assert (verdict["reward"], verdict["reason"]) == (0.0, "the repair mentions pytest, which no repair needs")


def test_the_agent_can_run_the_shown_test_and_sees_no_hidden_one(client: TestClient) -> None:
    row = ROWS[0]
    task = RepairTask.model_validate(row)
    assert client.post("/seed_session", json=row).status_code == 200
    ran = client.post("/run", json={"command": f"python3 -m pytest -q {task.tests.shown}"}).json()
    assert "1 failed" in ran["output"] or "failed" in ran["output"], ran
    files = visible_files(task)
    for name in task.tests.hidden:
        path, _, inner = name.partition("::")
        assert f"def {inner.rpartition('::')[2]}(".encode() not in files[path] or "::" in inner
    client.post("/verify", json={**row, "response": RESPONSE})


def test_a_row_for_another_version_is_refused(client: TestClient) -> None:
    reply = client.post("/seed_session", json={**ROWS[0], "version": "0.0.1"})
    assert reply.status_code == 422
    assert "made for" in reply.text
