import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.example_multi_step.app import (
    Lookup,
    ScoredSynonyms,
    Submission,
    SynonymEnvironment,
    SynonymRollout,
    SynonymTask,
    word_value,
)

EXPECTED = [390, 414]
MINE = 407

DATA = Path(__file__).parents[1] / "data"


def handed_in(*arguments: str) -> NeMoGymResponse:
    output: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": "call_0", "name": "get_synonym_value", "arguments": '{"synonym": "Mild"}'},
        {"type": "function_call_output", "call_id": "call_0", "output": '{"synonym_value": 390}'},
    ]
    for number, text in enumerate(arguments, start=1):
        call_id = f"call_{number}"
        output += [
            {"type": "function_call", "call_id": call_id, "name": "extract_synonym_values", "arguments": text},
            {"type": "function_call_output", "call_id": call_id, "output": '{"success": true}'},
        ]
    fields = {"id": "resp_1", "created_at": 0.0, "model": "scripted", "object": "response", "output": output}
    return NeMoGymResponse.model_validate({**fields, "parallel_tool_calls": False, "tool_choice": "auto", "tools": []})


def values(*numbers: int) -> str:
    return json.dumps({"synonym_values": numbers})


@pytest.fixture
def server() -> SynonymEnvironment:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=8080, entrypoint="", name="synonyms")
    return SynonymEnvironment(config=config, server_client=ServerClient.detached())


async def score(server: SynonymEnvironment, *arguments: str) -> ScoredSynonyms:
    body = SynonymRollout(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="Word: Warm\nSynonyms: Mild, Cosy"),
        response=handed_in(*arguments),
        id=0,
        expected_synonym_values=EXPECTED,
        expected_synonyms=["Mild", "Cosy"],
        minefield_label="Warm",
        minefield_label_value=MINE,
    )
    return await server.verify(body)


async def test_a_word_is_worth_the_sum_of_its_code_points(server: SynonymEnvironment) -> None:
    answer = await server.look_up(Lookup(synonym="Mild"))
    assert answer.synonym_value == sum(map(ord, "Mild")) == EXPECTED[0]


async def test_handing_in_says_nothing_about_the_score(server: SynonymEnvironment) -> None:
    answer = await server.submit(Submission(synonym_values=[1]))
    assert answer.success


async def test_the_expected_values_in_order_are_rewarded(server: SynonymEnvironment) -> None:
    scored = await score(server, values(*EXPECTED))
    assert (scored.reward, scored.accuracy, scored.set_overlap) == (1.0, True, 1.0)
    assert scored.parsed_synonym_values == EXPECTED
    assert not scored.original_term_minefield_hit
    assert not scored.order_instruction_following_failure


async def test_the_wrong_order_is_told_apart(server: SynonymEnvironment) -> None:
    scored = await score(server, values(*reversed(EXPECTED)))
    assert (scored.reward, scored.accuracy, scored.set_overlap) == (0.0, False, 1.0)
    assert scored.order_instruction_following_failure


async def test_the_word_itself_is_a_mine(server: SynonymEnvironment) -> None:
    scored = await score(server, values(MINE, EXPECTED[1]))
    assert (scored.reward, scored.set_overlap) == (0.0, 0.5)
    assert scored.original_term_minefield_hit
    assert not scored.order_instruction_following_failure


async def test_the_last_call_counts(server: SynonymEnvironment) -> None:
    assert (await score(server, values(1), values(*EXPECTED))).reward == 1.0
    assert (await score(server, values(*EXPECTED), values(1))).reward == 0.0


@pytest.mark.parametrize("arguments", [(), ("no JSON",), ('{"synonym_values": ["a"]}',), ("[390, 414]",), ("{}",)])
async def test_no_usable_answer_scores_zero(server: SynonymEnvironment, arguments: tuple[str, ...]) -> None:
    scored = await score(server, *arguments)
    assert (scored.reward, scored.parsed_synonym_values, scored.set_overlap) == (0.0, [], 0.0)


def test_the_tools_are_routes(server: SynonymEnvironment) -> None:
    client = TestClient(server.setup_webserver())
    assert client.post("/get_synonym_value", json={"synonym": "Cosy"}).json() == {"synonym_value": EXPECTED[1]}
    assert client.post("/extract_synonym_values", json={"synonym_values": EXPECTED}).json() == {"success": True}
    assert client.post("/extract_synonym_values", json={"synonym_values": "390"}).status_code == 422


def test_the_examples_expect_what_the_tool_says() -> None:
    rows = [json.loads(line) for line in (DATA / "example.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row in map(SynonymTask.model_validate, rows):
        assert row.expected_synonym_values == [word_value(synonym) for synonym in row.expected_synonyms]
        assert row.minefield_label_value == word_value(row.minefield_label)
        assert row.minefield_label_value not in row.expected_synonym_values
