"""The real model behind both protocols."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

from nemo_gym.config.parse import parse_config
from nemo_gym.conversion.losses import LOSSES, Way
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
)
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.models.failures import ModelCallError
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.model import _score
from responses_api_models.local_model.tests.conftest import CALCULATOR, QUESTION, ask, build_model, seeded


async def test_an_answer_has_text_and_counts(model: LocalModel) -> None:
    response = await ask(model, max_output_tokens=200)
    assert response.status == "completed"
    assert response.incomplete_details is None
    assert response.output_text
    assert response.model == "SmolLM2-135M-Instruct.Q4_1"
    assert response.usage is not None
    assert response.usage.input_tokens > 5
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_an_answer_that_is_cut_off_says_so(model: LocalModel) -> None:
    response = await ask(model, "Tell me a long story.", max_output_tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 5


async def test_a_seed_repeats_an_answer(model: LocalModel) -> None:
    answers = [await ask(model, "Tell me a story.", temperature=1.0, metadata=seeded(s)) for s in (1, 1, 2)]
    first, again, other = (answer.output_text for answer in answers)
    assert first == again != other


async def test_a_stop_word_ends_an_answer_before_it(model: LocalModel) -> None:
    free = await ask(model, "Count from 1 to 10.", max_output_tokens=40)
    assert "5" in free.output_text
    stopped = await ask(model, "Count from 1 to 10.", max_output_tokens=40, metadata=seeded(0, stop="5"))
    assert stopped.output_text == free.output_text.partition("5")[0]
    assert stopped.status == "completed"


async def test_instructions_reach_the_model(model: LocalModel) -> None:
    assert (await ask(model)).output_text != (await ask(model, instructions="You are a pirate.")).output_text


async def test_log_probabilities_can_be_included(model: LocalModel, caplog: pytest.LogCaptureFixture) -> None:
    response = await ask(model, include=["message.output_text.logprobs"])
    [part] = response.output[0].content  # type: ignore[union-attr]
    assert len(part.logprobs) > 2  # type: ignore[union-attr,arg-type]
    assert not caplog.records


async def test_log_probabilities_are_those_of_the_text(model: LocalModel) -> None:
    response = await ask(model, top_logprobs=2)
    [part] = response.output[0].content  # type: ignore[union-attr]
    assert "".join(entry["token"] for entry in part.logprobs) == part.text  # type: ignore[union-attr]
    for entry in part.logprobs:  # type: ignore[union-attr]
        assert len(entry["top_logprobs"]) == 2
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0


async def test_a_context_that_is_exceeded_gives_an_empty_incomplete_answer(model: LocalModel) -> None:
    response = await ask(model, "word " * 3000)
    assert response.output_text == ""
    assert response.incomplete_details is not None
    assert response.usage is not None
    assert response.usage.input_tokens > 3000
    assert response.usage.output_tokens == 0


async def test_chat_completions_are_answered_too(model: LocalModel) -> None:
    body = NeMoGymChatCompletionCreateParamsNonStreaming(
        messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=8, n=2, seed=3, temperature=1.0
    )
    completion = await model.chat_completions(body)
    first, second = completion.choices
    assert first.message.content != second.message.content
    assert {first.finish_reason, second.finish_reason} == {"length"}
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16


async def test_others_are_served_while_it_generates(model: LocalModel) -> None:
    await ask(model)
    unlimited = {"max_output_tokens": 900, "metadata": seeded(1, ignore_eos=True)}
    generating = [asyncio.create_task(ask(model, "Tell me a story.", **unlimited)) for _ in range(4)]
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert not any(task.done() for task in generating)
    for task in generating:
        task.cancel()
    await asyncio.wait(generating)


async def test_a_request_that_is_cancelled_frees_its_slot(model: LocalModel) -> None:
    unlimited = {"max_output_tokens": 900, "metadata": seeded(1, ignore_eos=True)}
    tasks = [asyncio.create_task(ask(model, f"Story {n}", **unlimited)) for n in range(6)]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    answers = await asyncio.gather(*(ask(model, max_output_tokens=2) for _ in range(8)))
    assert len(answers) == 8


async def test_training_gets_the_true_tokens_of_every_turn(training_model: LocalModel) -> None:
    options = {"tools": [CALCULATOR], "max_output_tokens": 60}
    [call] = (await ask(training_model, [QUESTION], **options)).output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "86"}
    second = await ask(training_model, [QUESTION, call, result], **options)
    [told] = second.output
    thanks = {"role": "user", "content": "Thanks! And 3 plus 4?"}
    third = await ask(training_model, [QUESTION, call, result, told, thanks], **options)
    seen: list[int] = []
    for item in (call, told, third.output[-1]):
        trained = item.model_dump()
        assert trained["prompt_token_ids"][: len(seen)] == seen
        assert len(trained["generation_token_ids"]) == len(trained["generation_log_probs"]) > 0
        assert all(score <= 0 for score in trained["generation_log_probs"])
        seen = trained["prompt_token_ids"] + trained["generation_token_ids"]


async def test_tokens_of_split_characters_and_stop_words_have_scores_too(training_model: LocalModel) -> None:
    question = "Write 5 emoji: 😀🎉🚀🦄🍕, repeat them."
    emoji = (await ask(training_model, question, max_output_tokens=9)).output[-1].model_dump()
    assert len(emoji["generation_token_ids"]) == len(emoji["generation_log_probs"]) == 9
    counted = await ask(training_model, "Count from 1 to 10.", metadata=seeded(0, stop=["3"]), max_output_tokens=40)
    item = counted.output[-1].model_dump()
    assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
    # Greedy decoding takes the most probable token, so each is more probable than a random one of the vocabulary.
    assert min(item["generation_log_probs"] + emoji["generation_log_probs"]) > -5


async def test_a_score_found_later_is_the_one_reported_at_once(training_model: LocalModel) -> None:
    item = (await ask(training_model, "Count from 1 to 10.")).output[-1].model_dump()
    prompt, tokens = item["prompt_token_ids"], item["generation_token_ids"]
    async with training_model._model.pool.turn() as fleet:
        for position in (0, 3, len(tokens) - 1):
            later = await _score(fleet, [*prompt, *tokens[:position]], tokens[position])
            assert later == pytest.approx(item["generation_log_probs"][position], abs=0.05)


def test_mistakes_in_a_request_are_answered_with_400(model: LocalModel) -> None:
    client = TestClient(build_app(model))
    bad_tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    for body, reason in [
        ({"input": "?", "tools": [bad_tool]}, 'f: Unimplemented keys: ["not"]'),
        ({"input": [image]}, "reads text only"),
        ({"input": "?", "metadata": {"extra_body": "?"}}, "metadata.extra_body"),
        ({"input": "?", "metadata": {"extra_body": '{"top_k": "many"}'}}, "top_k"),
        ({"input": "?", "tool_choice": {"type": "function", "name": "z"}, "tools": [CALCULATOR]}, "names 'z'"),
    ]:
        reply = client.post("/v1/responses", json=body)
        assert reply.status_code == 400
        assert reason in reply.json()["error"]["message"]


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "audio": {"audio": {"voice": "v", "format": "wav"}},
    "modalities": {"modalities": ["text", "audio"]},
    "verbosity": {"verbosity": "low"},
    "web_search_options": {"web_search_options": {}},
    "*": {"temprature": 0.1},
}


async def test_options_that_the_engine_does_not_have_are_not_lost_in_silence(
    model: LocalModel, caplog: pytest.LogCaptureFixture
) -> None:
    lenient = build_model(n_ctx=512, n_parallel=1, on_loss="warn")
    strictly, leniently = TestClient(build_app(model)), TestClient(build_app(lenient))
    with leniently:
        for loss in [loss for loss in LOSSES if loss.way is Way.TO_LOCAL]:
            body = {"messages": [QUESTION], "max_tokens": 1, **UNSUPPORTED[loss.name]}
            words = f"the embedded model has no equivalent for {next(iter(UNSUPPORTED[loss.name]))}"
            refused = strictly.post("/v1/chat/completions", json=body)
            assert (refused.status_code, words in refused.json()["error"]["message"]) == (400, True)
            assert leniently.post("/v1/chat/completions", json=body).status_code == 200
            assert words in caplog.text


def test_options_of_the_engine_are_accepted_in_every_protocol(model: LocalModel) -> None:
    client = TestClient(build_app(model))
    asked = {"max_output_tokens": 8, "temperature": 0, "stop": ["!"], "top_k": 5}
    response = client.post("/v1/responses", json={"input": "Say hi.", **asked}).json()
    assert response["status"] == "completed"
    text = response["output"][0]["content"][0]["text"]
    sequences = {"max_tokens": 8, "temperature": 0, "stop_sequences": ["!"], "top_k": 5}
    question = [{"role": "user", "content": "Say hi."}]
    message = client.post("/v1/messages", json={"messages": question, **sequences}).json()
    assert message["content"] == [{"type": "text", "text": text}]
    refused = client.post("/v1/responses", json={"input": [{"type": "item_reference", "id": "x"}]})
    assert (refused.status_code, "item_reference" in refused.json()["error"]["message"]) == (400, True)


def test_tokens_are_counted_as_they_would_be_read(model: LocalModel) -> None:
    client = TestClient(build_app(model))
    asked = {"input": [QUESTION], "tools": [CALCULATOR]}
    counted = client.post("/v1/responses/input_tokens", json=asked).json()["input_tokens"]
    assert (
        counted == client.post("/v1/responses", json={**asked, "max_output_tokens": 1}).json()["usage"]["input_tokens"]
    )
    plain = client.post("/v1/messages/count_tokens", json={"messages": [QUESTION]}).json()
    assert 0 < plain["input_tokens"] < counted


async def test_a_model_path_that_leads_nowhere_is_found_out_at_the_start(tmp_path: Path) -> None:
    server = build_model(model_path=str(tmp_path / "nothing.gguf"))
    app = server.setup_webserver()
    with pytest.raises(ConfigError, match=r"nothing\.gguf cannot be read"):
        async with app.router.lifespan_context(app):
            pass


async def test_a_damaged_model_is_named_in_the_answer(torn: Path) -> None:
    server = build_model(model_path=str(torn))
    with pytest.raises(ModelCallError, match="it is damaged") as caught:
        await ask(server)
    assert (caught.value.status, caught.value.hint[:23]) == (400, "download the file again")


async def test_a_model_path_may_name_any_gguf_file(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(weights)
    server = build_model(model_path=str(tmp_path / "mine.gguf"), n_parallel=1, n_ctx=512)
    assert (await ask(server, max_output_tokens=2)).model == "mine"
    await server._model.pool.close()


async def test_the_official_client_finds_both_protocols(weights: Path) -> None:
    settings = "responses_api_models/local_model/configs/local_model.yaml"
    config = parse_config([f"+config_paths=[{settings}]"]).config
    async with host_gym(config) as gym:
        [instance] = gym.instances
        url = f"http://{instance.host}:{instance.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            response = await client.responses.create(model="any", input="Say hi.", max_output_tokens=4)
            completion = await client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                max_tokens=4,
                temperature=0,  # always the same answer, in which every token is a complete piece of text
                logprobs=True,
            )
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 4
    [choice] = completion.choices
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert len(choice.logprobs.content or []) == 4


async def test_a_whole_rollout_runs_in_this_process(weights: Path) -> None:
    paths = (
        "resources_servers/calculator/configs/calculator.yaml,responses_api_models/local_model/configs/local_model.yaml"
    )
    row = {
        "responses_create_params": {"input": [QUESTION], "tools": [CALCULATOR], "temperature": 0.0},
        "expected_answer": "86",
    }
    async with host_gym(parse_config([f"+config_paths=[{paths}]"]).config) as gym:
        reply = await gym.client.post(server_name="calculator_simple_agent", url_path="/run", json=row)
        rollout = json.loads(await reply.read())
    assert rollout["used_calculator"]
    assert rollout["reward"] == 1.0
