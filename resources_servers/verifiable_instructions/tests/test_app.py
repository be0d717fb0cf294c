import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import ServerClient
from resources_servers.verifiable_instructions.app import VerifiableInstructionsConfig, VerifiableInstructionsServer
from resources_servers.verifiable_instructions.generate import generate, main
from resources_servers.verifiable_instructions.registry import read_instructions

DATA = Path(__file__).parent.parent / "data"
ROW: dict[str, Any] = {
    "responses_create_params": {"input": "?"},
    "id": 7,
    "prompt": "Write.",
    "instruction_id_list": ["punctuation:no_comma", "startend:quotation"],
    "kwargs": [{}, None],
}


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "scripted", "output": [item], **fixed}


def score(text: str, *, grading: str = "strict", **row: Any) -> dict[str, Any]:
    config = VerifiableInstructionsConfig(host="127.0.0.1", port=1, entrypoint="", name="", grading=grading)
    server = VerifiableInstructionsServer(config=config, server_client=ServerClient.detached())
    reply = TestClient(server.setup_webserver()).post("/verify", json={**ROW, **row, "response": response(text)})
    assert reply.status_code == 200, reply.text
    scored: dict[str, Any] = reply.json()
    return scored


def test_all_instructions_must_be_followed() -> None:
    scored = score('"all good"')
    assert (scored["reward"], scored["accuracy"], scored["follow_all_instructions"]) == (1.0, 1.0, True)
    assert (scored["id"], scored["prompt"], scored["reason"]) == (7, "Write.", "all instructions are followed")
    scored = score('"a, b"')
    assert (scored["reward"], scored["follow_instruction_list"]) == (0.0, [False, True])
    assert scored["reason"] == "not followed: punctuation:no_comma"


def test_a_share_can_be_rewarded() -> None:
    assert score('"a, b"', grading_mode="fraction")["reward"] == 0.5


def test_loosely_a_greeting_does_not_count() -> None:
    text = 'Sure, here it is:\n"all good"'
    assert score(text)["reward"] == 0.0
    scored = score(text, grading="loose")
    assert (scored["reward"], scored["follow_all_instructions"], scored["follow_all_instructions_loose"]) == (
        1.0,
        False,
        True,
    )


def test_thoughts_are_left_out_and_long_answers_are_refused() -> None:
    assert score('<think>a, b</think>\n"good"')["reward"] == 1.0
    assert score('<think>"good"')["reward"] == 0.0
    scored = score("a" * 300_000)
    assert (scored["reward"], scored["reason"]) == (0.0, "the answer is longer than 200000 characters")


def test_a_long_answer_gets_the_same_verdict() -> None:
    assert score('"' + "good " * 4000 + '"')["reward"] == 1.0


def test_a_row_with_an_unknown_instruction_is_refused_at_the_start() -> None:
    config = VerifiableInstructionsConfig(host="127.0.0.1", port=1, entrypoint="", name="")
    server = VerifiableInstructionsServer(config=config, server_client=ServerClient.detached())
    client = TestClient(server.setup_webserver())
    assert client.post("/seed_session", json=ROW).status_code == 200
    refused = client.post("/seed_session", json={**ROW, "instruction_id_list": ["a:b", "c:d"]})
    assert refused.status_code == 422
    assert "unknown instruction 'a:b'" in refused.text


def test_the_shipped_data_is_what_the_generator_writes_and_can_be_verified(tmp_path: Path) -> None:
    train, validation, example = (tmp_path / f"{name}.jsonl" for name in ("train", "validation", "example"))
    main(["--n", "300", "--seed", "0", "--output", str(train)])
    main(["--n", "60", "--seed", "1", "--exclude", str(train), "--output", str(validation)])
    main(["--n", "5", "--seed", "2", "--difficulty", "2", "--output", str(example)])
    for path in (train, validation, example):
        assert path.read_bytes() == (DATA / path.name).read_bytes()
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            assert read_instructions(row["instruction_id_list"], row["kwargs"])


def test_impossible_wishes_are_errors() -> None:
    with pytest.raises(ConfigError, match="no more different tasks"):
        generate(100_000, seed=0)
    with pytest.raises(ConfigError, match="5 instructions"):
        generate(1, seed=0, difficulty=5)
