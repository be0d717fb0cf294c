"""Verifying again from the command line: with a Gym of its own, without the model, and with what changed at the end."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.api.verifying import needed, select_servers, verifiers_of
from nemo_gym.errors import ConfigError

VERIFIER = """\
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer


class Row(BaseVerifyRequest):
    do: str = ""


class Verifier(SimpleResourcesServer):
    async def verify(self, body: Row) -> BaseVerifyResponse:
        if body.do == "fail":
            raise ValueError("as asked")
        return BaseVerifyResponse(**body.model_dump(), reward=1.0 if body.do == "good" else 0.0)


if __name__ == "__main__":
    Verifier.run_webserver()
"""
REF = {"type": "resources_servers", "name": "verifier_for_tests"}
AGENT = {
    "entrypoint": "app.py",
    "resources_server": REF,
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}
CONFIG = {
    "verifier_for_tests": {"resources_servers": {"verifier_for_tests": {"entrypoint": "app.py", "domain": "other"}}},
    "my_agent": {"responses_api_agents": {"simple_agent": AGENT}},
}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
COMMAND = ("ng_reverify", "+config_paths=[gym.yaml]", "+input=old.jsonl", "+output=results/new.jsonl")


@pytest.fixture(autouse=True)
def _gym(write_gym):
    write_gym("resources_servers/verifier_for_tests", VERIFIER, CONFIG)


def save(*actions: str, agent: str = "my_agent", reward: float = 0.0) -> None:
    rows = [
        {
            "_ng_task_index": number,
            "responses_create_params": {"input": "?"},
            "response": RESPONSE,
            "reward": reward,
            "do": action,
            "agent_ref": {"name": agent},
            "_ng_rollout_index": 0,
        }
        for number, action in enumerate(actions)
    ]
    Path("old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rewards() -> dict[int, float]:
    lines = map(json.loads, Path("results/new.jsonl").read_text().splitlines())
    return {line["_ng_task_index"]: line["reward"] for line in lines}


def test_rollouts_are_verified_again_without_a_model(run):
    save("good", "good", "bad")
    ran = run(*COMMAND)
    assert ran.code == 0, ran.err
    assert rewards() == {0: 1.0, 1: 1.0, 2: 0.0}
    assert ran.out.startswith("Key metrics for my_agent:\n")
    assert ran.out.endswith("2 of 3 rewards changed; mean 0 → 0.6667\n  old → new  rollouts\n    0 → 1           2\n")
    assert "3 of 3 rollouts completed" in ran.err
    assert Path("results/new_aggregate_metrics.json").exists()


def test_failures_are_told_and_can_be_tried_again(run):
    save("good", "fail")
    ran = run(*COMMAND)
    assert ran.code == 3, ran.err
    assert "verifier_error" in ran.err
    assert "as asked" in ran.err
    assert rewards() == {0: 1.0}
    app = Path("resources_servers/verifier_for_tests/app.py")
    app.write_text(VERIFIER.replace('body.do == "fail"', "False"))
    for name in [name for name in sys.modules if name.startswith("resources_servers.verifier_for_tests")]:
        del sys.modules[name]
    ran = run(*COMMAND, "+resume_from_cache=true", "+retry_failed=[verifier_error]")
    assert ran.code == 0, ran.err
    assert rewards() == {0: 1.0, 1: 0.0}
    assert "1 of 2 rewards changed" in ran.out


def test_the_advice_about_an_output_that_is_taken_works(run):
    save("good", "bad")
    assert run(*COMMAND).code == 0
    verified = Path("results/new.jsonl")
    verified.write_bytes(verified.read_bytes().splitlines(keepends=True)[0])
    ran = run(*COMMAND)
    assert ran.code == 1
    advised = re.findall(r"add (\+[a-z_]+=true)", ran.err)
    assert advised == ["+resume_from_cache=true", "+append=true", "+overwrite=true"]
    for advice in advised:
        assert run(*COMMAND, advice).code == 0, advice
    assert Path("results/new.jsonl.backup-1/new.jsonl").exists()


def test_recorded_tool_calls_can_be_made_again(run):
    save("good")
    ran = run(
        "ng", "eval", "reverify", "--config", "gym.yaml", "-i", "old.jsonl", "-o", "b.jsonl", "+replay_tools=true"
    )
    assert ran.code == 0, ran.err
    assert "0 tool calls made again, 0 of them with another result" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("+input=missing.jsonl",), "missing.jsonl: no such file"),
        (("+output=old.jsonl",), "would replace them"),
        (("+resources_server=nobody",), "there is no server named 'nobody'"),
        (("+inptu=x",), "inptu"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(run, arguments: tuple[str, ...], message: str):
    save("good")
    names = {argument.partition("=")[0] for argument in arguments}
    ran = run(*(part for part in COMMAND if part.partition("=")[0] not in names), *arguments)
    assert ran.code != 0
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not Path("results").exists()


def test_rollouts_of_an_agent_that_is_not_there_are_refused(run):
    save("good", agent="stranger")
    ran = run(*COMMAND)
    assert ran.code == 1
    assert "there is no server named 'stranger'" in ran.err


def gym(**settings: Any) -> Any:
    judge = {"type": "responses_api_models", "name": "judge"}
    return OmegaConf.create(
        {
            "policy": {"responses_api_models": {"m": {"entrypoint": "a", "host": "h", "port": 1}}},
            "judge": {"responses_api_models": {"m": {"entrypoint": "a", "host": "h", "port": 2}}},
            "verifier": {
                "resources_servers": {
                    "v": {"entrypoint": "a", "domain": "other", "host": "h", "port": 3, "judges": [{"model": judge}]}
                }
            },
            "agent": {"responses_api_agents": {"a": {"entrypoint": "a", "host": "h", "port": 4, **settings}}},
            "other": "${policy.responses_api_models.m.port}",
        }
    )


def test_the_policy_is_not_hosted_and_a_judge_is():
    model = {"type": "responses_api_models", "name": "policy"}
    config = gym(resources_server={"type": "resources_servers", "name": "verifier"}, model_server=model)
    verifiers = verifiers_of(config, ["agent"], None)
    assert verifiers == {"agent": "verifier"}
    kept = needed(config, verifiers)
    assert kept == {"agent", "verifier", "judge"}
    assert set(select_servers(config, kept)) == {"agent", "verifier", "judge", "other"}
    assert select_servers(config, kept)["other"] == 1


def test_an_agent_without_a_verifier_needs_to_be_given_one():
    with pytest.raises(ConfigError, match="has no resources_server"):
        verifiers_of(gym(), ["agent"], None)
    assert verifiers_of(gym(), ["agent"], "verifier") == {"agent": "verifier"}
    with pytest.raises(ConfigError, match="do not name an agent"):
        verifiers_of(gym(), [], None)


def fail(*numbers: int, kind: str = "judge_failed") -> None:
    """The file of failures beside the rollouts: attempts that have no verdict."""
    saved = [json.loads(line) for line in Path("old.jsonl").read_text().splitlines()]
    failed = [{**saved[number], "_ng_failure_class": kind, "reward": 0.0} for number in numbers]
    Path("old_failures.jsonl").write_text("".join(json.dumps(record) + "\n" for record in failed))
    kept = [record for number, record in enumerate(saved) if number not in numbers]
    Path("old.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))


def test_only_rollouts_whose_judge_failed_can_be_verified_and_added_to_others(run):
    save("good", "bad", "good")
    fail(2)
    flags = ("ng", "eval", "reverify", "--config", "gym.yaml", "--rollouts", "old.jsonl", "-o", "results/new.jsonl")
    first = run(*flags, "--force")
    assert (first.code, rewards()) == (0, {0: 1.0, 1: 0.0}), first.err
    ran = run(*flags, "--judge-failed-only", "--append")
    assert ran.code == 0, ran.err
    assert rewards() == {0: 1.0, 1: 0.0, 2: 1.0}
    assert "rollouts.jsonl" not in ran.err


def test_a_rollout_that_was_completed_after_all_did_not_fail(run):
    save("good", "bad")
    fail(1)
    Path("old.jsonl").write_text("")
    save("good", "bad")  # the second one was judged in a later attempt
    ran = run(*COMMAND, "+judge_failed_only=true")
    assert (ran.code, ran.err) == (0, "old.jsonl: no judge failed, so there is nothing to verify again\n")
    assert not Path("results").exists()


def test_the_tasks_may_be_in_another_file(run):
    save("good")
    rows = [{**json.loads(Path("old.jsonl").read_text()), "do": "bad"}]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run(*COMMAND, "+inputs=tasks.jsonl")
    assert ran.code == 0, ran.err
    assert rewards() == {0: 0.0}
    assert "nowhere.jsonl: no such file" in run(*COMMAND, "+inputs=nowhere.jsonl").err
