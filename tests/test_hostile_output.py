"""Whatever a model writes, verifying it takes time in proportion to its length.

Every environment in the repository is asked to verify answers and tool calls of 40,000 characters that make naive
readers of text slow: long runs of marks, brackets, digits and fragments of what verifiers look for. Cost is CPU time,
and only how it grows is judged: quadratic work grows sixteenfold when the answer gets four times as long.
"""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.parse import parse_config
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.venvs import read_requirements, unmet

ROOT = Path(__file__).parent.parent
OPENAI_MODEL = ROOT / "responses_api_models/openai_model/configs/openai_model.yaml"
LENGTH = 40_000
# Between the factors of linear (4) and quadratic (16) work.
MAX_GROWTH = 9
# What costs less is not worth measuring: any quadratic reader of 40,000 characters costs a second or more.
NOTICEABLE_S = 0.1
UNITS = [
    *(".", "!?", ".'", "[", "{", "(", "{}", '"', "- ", "\n", " ", "a-", "```\n", "\\", "$", "\u00e9", "\u200b"),
    *("1", "1,", "1/", ".1", "1 ", "1. ", "=1", "#### ", "answer is ", "answer: is is "),
    *("\\boxed{", "\\boxed{{}", "\\frac{1}", "<think>", "</think>", "<tool_call>"),
]
# An environment that leaves the verdict to a judge waits for a model; its own reading of answers has tests of its own.
ENVIRONMENTS = sorted(
    path.parents[1].name
    for path in ROOT.glob("resources_servers/*/configs/*.yaml")
    if path.stem == path.parents[1].name
    and (path.parents[1] / "data" / "example.jsonl").is_file()
    and "judge_model_server:" not in path.read_text("utf-8")
)


def hostile(unit: str, length: int) -> str:
    # The end differs, so that expressions which want the unit up to the end of the text fail only there.
    return (unit * (length // len(unit) + 1))[:length] + "x"


def response(text: str, row: dict[str, Any]) -> dict[str, Any]:
    tools = row["responses_create_params"].get("tools") or []
    calls = [
        {"type": "function_call", "call_id": f"call_{number}", "name": tool["name"], "arguments": arguments}
        for tool in tools
        for number, arguments in enumerate([text, json.dumps(dict.fromkeys(properties(tool), text))])
    ]
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    fixed = {"id": "resp_1", "created_at": 0.0, "model": "hostile", "object": "response", "parallel_tool_calls": True}
    return {**fixed, "tool_choice": "auto", "tools": [], "output": [*calls, message]}


def properties(tool: dict[str, Any]) -> list[str]:
    return list(tool.get("parameters", {}).get("properties", {}))


@pytest.fixture(params=ENVIRONMENTS)
async def environment(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Gym, str, list[dict[str, Any]]]]:
    folder = ROOT / "resources_servers" / request.param
    missing = unmet(read_requirements(folder))
    if missing:
        pytest.skip(f"needs packages that are not installed: {missing}")
    config = parse_config(
        [
            f"+config_paths=[{folder}/configs/{request.param}.yaml,{OPENAI_MODEL}]",
            "+policy_base_url=http://127.0.0.1:9",
            "+policy_api_key=none",
            "+policy_model_name=none",
        ]
    ).config
    rows = [json.loads(line) for line in (folder / "data/example.jsonl").read_text().splitlines()]
    async with host_gym(config) as gym:
        [name] = [one.name for one in gym.instances if one.server_type == "resources_servers"]
        yield gym, name, rows


async def verify(gym: Gym, name: str, row: dict[str, Any], text: str) -> float:
    """CPU seconds of verifying one answer."""
    seeded = await gym.client.post(server_name=name, url_path="/seed_session", json=row)
    assert seeded.status == 200, await seeded.text()
    body = {**row, "response": response(text, row)}
    start = time.process_time()
    scored = await gym.client.post(server_name=name, url_path="/verify", json=body, cookies=seeded.cookies)
    cost = time.process_time() - start
    assert scored.status == 200, await scored.text()
    return cost


async def test_verifying_takes_time_in_proportion(environment: tuple[Gym, str, list[dict[str, Any]]]) -> None:
    gym, name, rows = environment
    for number, unit in enumerate(UNITS):
        row = rows[number % len(rows)]
        cost = await verify(gym, name, row, hostile(unit, LENGTH))
        if cost > NOTICEABLE_S:
            longer = min([cost, *[await verify(gym, name, row, hostile(unit, LENGTH)) for _ in range(2)]])
            shorter = min([await verify(gym, name, row, hostile(unit, LENGTH // 4)) for _ in range(3)])
            assert longer / shorter < MAX_GROWTH, f"{unit!r}: {shorter:.3f} s, four times as much: {longer:.3f} s"
