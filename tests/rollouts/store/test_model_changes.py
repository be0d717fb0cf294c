"""A run is resumed with the models that it began with, or its rows say that the models are others."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.rollouts.agents import models_of
from nemo_gym.rollouts.store.output import Manifest, PlanFacts, Request
from tests.forked_commands import ForkedCommands
from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

EXAMPLE = "resources_servers/example_single_tool_call"
CONFIGS = f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
CHANGE = 'policy_model.openai_model: "mock" → "other"'


def settings(**own: Any) -> dict[str, dict[str, Any]]:
    block = {"openai_base_url": "https://me:pw@api.example.org/v1?key=1", "openai_model": "small", **own}
    return models_of(
        OmegaConf.create(
            {
                "policy_model": {"responses_api_models": {"openai_model": block}},
                "solver": {"responses_api_agents": {"simple_agent": {"model_server": {"name": "policy_model"}}}},
            }
        )
    )


def test_the_identity_of_a_model_has_what_shapes_completions_and_no_secrets(tmp_path: Path) -> None:
    (prompt := tmp_path / "prompt.txt").write_text("Be brief.")
    own = {"extra_body": {"temperature": 0.5, "api_key": "sk-1"}, "max_tokens": 9, "chat_template": str(prompt)}
    found = settings(**own, openai_api_key="sk-2", max_retries=3, request_timeout_s=5, port=8000)
    assert found["solver"] == {"model_server": "policy_model"}
    content = found["policy_model"].pop("chat_template")
    assert found["policy_model"] == {
        "openai_base_url": "https://api.example.org/v1",
        "openai_model": "small",
        "extra_body": {"temperature": 0.5},
        "max_tokens": 9,
    }
    prompt.write_text("Be long.")
    assert settings(**own)["policy_model"]["chat_template"] != content


def test_differences_name_the_server_the_setting_and_both_values() -> None:
    earlier = Manifest({}, None, PlanFacts(0, 0), models=settings())
    now = Request({}, models=settings(openai_model="large", extra_body={"top_p": 1}) | {"judge": {"model": "x"}})
    assert list(now.model_differences(earlier)) == [
        'policy_model.openai_model: "small" → "large"',
        'policy_model.extra_body: null → {"top_p": 1}',
    ]
    assert not list(now.model_differences(Manifest({}, None, PlanFacts(0, 0)))), "an earlier version wrote it"


@pytest.mark.parametrize("how", ["in process", "ng_run"])
def test_a_resume_with_another_model_is_refused_or_forced_and_marked(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path, how: str
) -> None:
    output, head = tmp_path / "out.jsonl", f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"

    @contextmanager
    def gym(model: str) -> Iterator[list[str]]:
        given = [f"+config_paths=[{CONFIGS}]", "+policy_api_key=none", f"+policy_model_name={model}"]
        given += [f"+policy_base_url={mock_model.base_url}", head]
        if how == "in process":
            yield given
            return
        with commands.start("ng_run", *given) as served:
            served.read_until("servers ready!")
            yield [head]

    collect = [
        *("ng_collect_rollouts", "+agent_name=example_single_tool_call_simple_agent", "+limit=2"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}"),
    ]
    resume = [*collect, "+resume_from_cache=true"]
    with gym("mock") as found:
        assert commands.run(*collect, *found).code == 0
        first = output.read_bytes().splitlines(keepends=True)[0]
        output.write_bytes(first)
    with gym("other") as found:
        refused = commands.run(*resume, *found)
        assert refused.code == 1, refused.err
        assert CHANGE in refused.err
        assert "+resume_mode=force" in refused.err
        assert output.read_bytes() == first
        forced = commands.run(*resume, *found, "+resume_mode=force")
        assert forced.code == 0, forced.err
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row.get("_ng_model_changes") for row in rows] == [None, [CHANGE]]


def test_a_run_that_collected_nothing_is_resumed_with_the_corrected_settings(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    common = [
        *("ng_collect_rollouts", f"+config_paths=[{CONFIGS}]", "+policy_api_key=none", "+policy_model_name=mock"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}", "+patience_s=0"),
        *("+agent_name=example_single_tool_call_simple_agent", "+limit=2"),
    ]
    wrong = commands.run(*common, f"+policy_base_url=http://127.0.0.1:{free_port()}/v1")
    assert wrong.code == 3, wrong.err
    resumed = commands.run(*common, f"+policy_base_url={mock_model.base_url}", "+resume_from_cache=true")
    assert resumed.code == 0, resumed.err
    assert "_ng_model_changes" not in output.read_text()
    manifest = Manifest.read(tmp_path / "out_manifest.json")
    assert manifest is not None
    assert manifest.models is not None
    assert manifest.models["policy_model"]["openai_base_url"] == mock_model.base_url
