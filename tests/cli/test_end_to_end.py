"""From datasets to metrics in one command, with an agent that answers by itself."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = """\
from typing import Any

from fastapi import Body

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent

RESPONSE = {
    "id": "r", "object": "response", "created_at": 0, "model": "m", "output": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}


class Prompt(SimpleResponsesAPIAgent):
    async def responses(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        return RESPONSE

    async def run(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        return {**body, "response": RESPONSE, "reward": 1.0}


if __name__ == "__main__":
    Prompt.run_webserver()
"""
DRIVER = """\
import json

from nemo_gym.server_utils import ServerClient


async def drive(config, global_config):
    answer = await ServerClient.load_from_global_config().post(
        server_name="my_agent", url_path="/run", json={"responses_create_params": {"input": "driven"}}
    )
    with open("driven.json", "w") as file:
        json.dump([config.input_jsonl_fpath, await answer.json(), type(global_config).__name__], file)
"""
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Hi"}]}}
BASE = ("+config_paths=[gym.yaml]", "+output_jsonl_fpath=results/out.jsonl")


@pytest.fixture(autouse=True)
def gym(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = workspace / "responses_api_agents" / "end_to_end_agent"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(AGENT)
    (folder / "requirements.txt").touch()
    data = [
        {"name": kind, "type": kind, "jsonl_fpath": f"data/{kind}.jsonl", "license": "Apache 2.0"}
        for kind in ("validation", "example")
    ]
    for kind, rows in (("validation", 2), ("example", 5)):
        path = workspace / "data" / f"{kind}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({**ROW, "n": n}) + "\n" for n in range(rows)))
    agent = {"entrypoint": "app.py", "datasets": data}
    (workspace / "gym.yaml").write_text(json.dumps({"my_agent": {"responses_api_agents": {"end_to_end_agent": agent}}}))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("responses_api_agents.end_to_end_agent", "my_driver")):
            del sys.modules[name]


def results() -> list[dict]:
    return [json.loads(line) for line in Path("results/out.jsonl").read_text().splitlines()]


def test_data_is_prepared_and_rollouts_are_collected_and_measured(run):
    ran = run("ng_e2e_collect_rollouts", *BASE, "+split=validation", "+num_repeats=2", "+limit=1")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.partition("\n")[2])["mean/reward"] == 1.0
    assert [(r["n"], r["agent_ref"]["name"]) for r in results()] == [(0, "my_agent")] * 2
    assert len(Path("results/preprocessed_datasets/validation.jsonl").read_text().splitlines()) == 2
    assert Path("results/out_aggregate_metrics.json").exists()
    assert "my_agent: 2 of 2 rollouts completed (100.0 %)" in ran.err


@pytest.mark.parametrize("command", [("ng", "eval", "run"), ("ng", "eval", "e2e")])
def test_the_examples_of_an_environment_can_be_tried(run, command):
    ran = run(*command, "--config", "gym.yaml", "--split", "example", "-o", "results/out.jsonl")
    assert ran.code == 0, ran.err
    assert len(results()) == 5


def test_an_earlier_preparation_is_reused_on_request(run):
    prepared = Path("results/preprocessed_datasets/validation.jsonl")
    prepared.parent.mkdir(parents=True)
    prepared.write_text(json.dumps({**ROW, "n": 9, "agent_ref": {"name": "my_agent"}}) + "\n")
    reuse = "+reuse_existing_data_preparation=true"
    assert run("ng_e2e_collect_rollouts", *BASE, "+split=validation", reuse).code == 0
    assert [r["n"] for r in results()] == [9]
    assert run("ng_e2e_collect_rollouts", *BASE, "+split=validation", "+overwrite=true").code == 0
    assert [r["n"] for r in results()] == [0, 1]


def test_two_datasets_can_be_prepared_beside_the_same_results(run, workspace):
    config = json.loads((workspace / "gym.yaml").read_text())
    (server,) = config["my_agent"]["responses_api_agents"].values()
    for dataset in server["datasets"]:
        dataset |= {"name": f"other {dataset['name']}", "jsonl_fpath": "data/other.jsonl"}
    (workspace / "other.yaml").write_text(json.dumps(config))
    (workspace / "data" / "other.jsonl").write_text(json.dumps({**ROW, "n": 70}) + "\n")
    other = ("+config_paths=[other.yaml]", "+output_jsonl_fpath=results/other.jsonl", "+split=validation")
    for _ in range(2):
        assert run("ng_e2e_collect_rollouts", *BASE, "+split=validation", "+overwrite=true").code == 0
        ran = run("ng_e2e_collect_rollouts", *other, "+overwrite=true")
        assert ran.code == 0, ran.err
    assert [r["n"] for r in results()] == [0, 1]
    assert [json.loads(line)["n"] for line in Path("results/other.jsonl").read_text().splitlines()] == [70]
    again = run("ng_e2e_collect_rollouts", *other, "+overwrite=true", "+reuse_existing_data_preparation=true")
    assert again.code == 0
    assert [json.loads(line)["n"] for line in Path("results/other.jsonl").read_text().splitlines()] == [70]


def test_a_split_that_no_dataset_has_is_an_error(run):
    ran = run("ng_e2e_collect_rollouts", *BASE, "+split=train")
    assert ran.code == 1
    assert "no configured agent has a train dataset" in ran.err
    wrong = run("ng_e2e_collect_rollouts", *BASE, "+split=test")
    assert wrong.code == 2
    assert "  split (expected train | validation | benchmark | example): " in wrong.err


def test_another_driver_may_collect(run, workspace):
    (workspace / "my_driver.py").write_text(DRIVER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = f"+head_server={{host: 127.0.0.1, port: {server.getsockname()[1]}}}"
    driver = "+rollout_collection_driver=my_driver:drive"
    ran = run("ng_e2e_collect_rollouts", *BASE, "+split=validation", driver, head)
    assert ran.code == 0, ran.err
    tasks, answer, kind = json.loads(Path("driven.json").read_text())
    assert tasks == "results/preprocessed_datasets/validation.jsonl"
    assert (answer["reward"], kind) == (1.0, "dict")
    assert not Path("results/out.jsonl").exists()


@pytest.mark.parametrize("driver", ["nonsense", "my_missing_driver:drive", "json:no_such_function"])
def test_a_driver_that_can_not_be_loaded_is_noticed_before_anything_happens(run, driver):
    ran = run("ng_e2e_collect_rollouts", *BASE, "+split=validation", f"+rollout_collection_driver='{driver}'")
    assert ran.code == 1
    assert f"rollout_collection_driver={driver}" in ran.err
    assert "hint: write module.path:function" in ran.err
    assert not Path("results").exists()
