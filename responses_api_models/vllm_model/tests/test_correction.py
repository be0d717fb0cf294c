"""The turns of a conversation form one sequence of tokens on every engine, or a break is reported."""

from typing import Any

import pytest

from nemo_gym.metrics.continuity import check_continuity
from responses_api_models.openai_model.tests.scripted_endpoint import reply, serving
from responses_api_models.vllm_model.tests.engine_cases import ADD, QUESTION, ask, vllm_model
from responses_api_models.vllm_model.tests.toy_engine import Kind, ToyEngine, toy_engine

FORCED = '[{"name": "add", "parameters": {"a": 2, "b": 3}}]'
CALLED = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 1}}</tool_call>'
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def conversation(
    engine: ToyEngine, turns: int, *, edit: dict[int, Any] | None = None, request: Any = None, **settings: Any
) -> list[dict[str, Any]]:
    """The outputs of all turns; ``edit`` replaces items of the history before the last turn."""
    server = vllm_model(engine.url, "m", return_token_id_information=True, **settings)
    history: list[dict[str, Any]] = [QUESTION]
    output: list[dict[str, Any]] = []
    for turn in range(turns):
        if turn == turns - 1:
            for place, item in (edit or {}).items():
                history[place] = item
        got = await ask(server, input=history, tools=[ADD], max_output_tokens=50, **(request or {}))
        assert got.status_code == 200, got.text
        items = got.json()["output"]
        output += items
        history += items
        calls = [item for item in items if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "5"} for call in calls]
        history += results or [{"role": "user", "content": "Go on."}]
    return output


@pytest.mark.parametrize("kind", ["vLLM", "SGLang", "llama.cpp"])
async def test_turns_after_a_forced_call_are_one_sequence_with_correction_and_break_without(kind: Kind) -> None:
    async with toy_engine(kind, FORCED, FORCED, "five", "more", "done") as engine:
        if kind != "llama.cpp":
            engine.script.pop(0)  # only llama.cpp gets a second request, as it returns no tokens without top_logprobs
        assert check_continuity(await conversation(engine, 4)).ok
        assert engine.sent_to(COMPLETIONS) or any("input_ids" in body for body in engine.sent_to(CHAT))
    async with toy_engine(kind, FORCED, FORCED, "five", "more", "done") as engine:
        if kind != "llama.cpp":
            engine.script.pop(0)
        found = check_continuity(await conversation(engine, 4, on_policy_correction=False))
        assert [one.turn for one in found.breaks] == [2]


async def test_a_call_that_is_written_after_a_correction_is_read() -> None:
    async with toy_engine("vLLM", FORCED, CALLED, "done") as engine:
        output = await conversation(engine, 3)

        assert [item["type"] for item in output] == ["function_call", "function_call", "message"]
        assert output[1]["arguments"] == '{"a": 1, "b": 1}'
        assert check_continuity(output).ok


async def test_a_prompt_that_the_template_renders_right_stays_a_chat() -> None:
    async with toy_engine("vLLM", "one", "two", "three") as engine:
        assert check_continuity(await conversation(engine, 3)).ok

        assert not engine.sent_to(COMPLETIONS)
        assert not any("required_prefix_token_ids" in body for body in engine.sent_to(CHAT))
        assert not any(
            "generation_token_ids" in message for body in engine.sent_to(CHAT) for message in body["messages"]
        )


async def test_each_part_of_a_conversation_is_rendered_once() -> None:
    async with toy_engine("vLLM", FORCED, "two", "three", "four", "five") as engine:
        await conversation(engine, 5)

        # For every turn, its prompt, and the conversation up to its answer.
        assert len(engine.sent_to("/tokenize")) <= 2 * 5 + 4


async def test_a_later_turn_is_rendered_whole_and_up_to_the_last_answer_but_not_up_to_every_answer() -> None:
    async with toy_engine("vLLM", *map(str, range(8))) as engine:
        await conversation(engine, 8)
        assert len(engine.sent_to("/tokenize")) == 7 * 2

    async with toy_engine("vLLM", *map(str, range(3))) as engine:  # what was cut off is not remembered
        await conversation(engine, 3, extra_body={"truncate_prompt_tokens": 4000})
        assert len(engine.sent_to("/tokenize")) > 2 * 2


async def test_tokens_of_a_client_that_are_no_tokens_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"prompt_token_ids": ["a"], "generation_token_ids": [1], "generation_log_probs": [0.0]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}], **wrong}
    async with toy_engine("vLLM", "two", "three") as engine:
        engine.ids("one")
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        got = await ask(server, input=[QUESTION, said, {"role": "user", "content": "Go on."}], max_output_tokens=50)

        assert got.status_code == 200
        assert "no longer what it was" in caplog.text


@pytest.mark.parametrize("kind", ["vLLM", "SGLang"])
async def test_an_edited_history_does_not_keep_the_old_tokens(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    redacted = {"role": "user", "content": "What is secret?"}
    async with toy_engine(kind, FORCED, "five", "done") as engine:
        output = await conversation(engine, 3, edit={0: redacted})

        said = engine.text(output[-1]["prompt_token_ids"])
        assert "secret" in said
        assert "2 plus 3" not in said
        assert "no longer what it was" in caplog.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hermes": False}, "in a form that only the endpoint can read"),
        ({"without": frozenset({COMPLETIONS})}, "has no /v1/completions"),
        ({"without": frozenset({"/tokenize"})}, "status 404 at /tokenize"),
    ],
)
async def test_what_can_not_be_corrected_is_said_and_the_tokens_are_sent_along(
    more: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with toy_engine("vLLM", FORCED, "five", "done", **more) as engine:
        output = await conversation(engine, 2)

        assert words in caplog.text
        assert not check_continuity(output).ok
        [first] = [item for item in output if item["type"] == "function_call"]
        carried = [*first["prompt_token_ids"], *first["generation_token_ids"]]
        assert engine.sent_to(CHAT)[-1]["required_prefix_token_ids"] == carried


async def test_an_effort_that_changes_the_prompt_is_rendered_too() -> None:
    async with toy_engine("vLLM", FORCED, "five") as engine:
        output = await conversation(engine, 2, request={"reasoning": {"effort": "high"}})

        assert check_continuity(output).ok
        assert engine.sent_to("/tokenize")[0]["chat_template_kwargs"] == {
            "enable_thinking": True,
            "reasoning_effort": "high",
        }


async def test_what_the_log_probabilities_are_is_recorded() -> None:
    untruncated = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    untruncated |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for kind, asked, record in (
        ("vLLM", {}, {"log_probs": "raw", **untruncated}),
        ("vLLM", {"tool_choice": "required"}, {"log_probs": "grammar_masked", **untruncated}),
        ("SGLang", {"temperature": 0.5}, {"log_probs": "processed", **untruncated, "temperature": 0.5}),
    ):
        async with toy_engine(kind, "hi") as engine:  # type: ignore[arg-type]
            [item] = await conversation(engine, 1, request=asked)

            assert item["generation_sampling"] == record
            assert {name: engine.sent_to(CHAT)[0][name] for name in untruncated}.items() <= record.items()
    async with toy_engine("vLLM", "hi") as engine:  # a strict tool is enforced by a grammar
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        tool = {"type": "function", "function": {"name": "add", "parameters": ADD["parameters"], "strict": True}}
        got = await ask(server, CHAT, messages=[QUESTION], tools=[tool])
        assert got.json()["choices"][0]["message"]["generation_sampling"]["log_probs"] == "grammar_masked"
    async with toy_engine("vLLM", "hi") as engine:
        [item] = await conversation(engine, 1, logprobs_mode="processed", extra_body={"top_k": 20})
        assert item["generation_sampling"] == {"log_probs": "processed", **untruncated, "top_k": 20}


async def test_an_endpoint_without_a_limit_of_its_own_needs_one_in_the_request() -> None:
    async with toy_engine("vLLM", FORCED, "five", context=None) as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        first = (await ask(server, input=[QUESTION], tools=[ADD])).json()["output"]
        result = {"type": "function_call_output", "call_id": first[0]["call_id"], "output": "5"}
        await ask(server, input=[QUESTION, *first, result], tools=[ADD])

        assert not engine.sent_to(COMPLETIONS)


async def test_images_are_not_lost_for_the_sake_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    seen = {"role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]}
    async with toy_engine("vLLM", FORCED, "five", "six") as engine:
        await conversation(engine, 2, edit={2: seen})

        assert not engine.sent_to(COMPLETIONS)
        assert "images and recordings" in caplog.text


@pytest.mark.parametrize("missing", ["/detokenize", COMPLETIONS])
async def test_an_engine_that_takes_a_prefix_is_asked_for_the_prompt_with_it(missing: str) -> None:
    async with toy_engine("patched vLLM", FORCED, "five", "six", without=frozenset({missing})) as engine:
        output = await conversation(engine, 3)

        assert check_continuity(output).ok
        assert engine.sent_to(CHAT)[-1]["required_prefix_token_ids"]


async def test_an_answer_that_the_agent_shortened_does_not_keep_the_old_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shortened = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "five"}]}
    async with toy_engine("vLLM", FORCED, "five, I am sure", "done") as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        history: list[dict[str, Any]] = [QUESTION]
        for _ in range(2):
            history += (await ask(server, input=history, tools=[ADD], max_output_tokens=50)).json()["output"]
            if history[-1]["type"] == "function_call":
                history.append({"type": "function_call_output", "call_id": history[-1]["call_id"], "output": "5"})
        history[-1] |= shortened
        history.append({"role": "user", "content": "Go on."})
        [last] = (await ask(server, input=history, tools=[ADD], max_output_tokens=50)).json()["output"]

        assert "sure" not in engine.text(last["prompt_token_ids"])
        assert "completion 2 is no longer what it was" in caplog.text


@pytest.mark.parametrize("kind", ["vLLM", "SGLang"])
async def test_a_stop_string_is_not_taken_for_the_end_of_a_turn(kind: Kind) -> None:
    async with toy_engine(kind, "one", "two", "three", stop="\n") as engine:
        output = await conversation(engine, 3, extra_body={"stop": ["\n"]})

        assert check_continuity(output).ok
        said = engine.text(output[-1]["prompt_token_ids"])
        assert "one\n<|im_end|>\n<|im_start|>user" in said
        assert "two\n<|im_end|>\n<|im_start|>user" in said


async def test_a_line_break_at_the_limit_is_not_taken_for_the_end_of_a_turn() -> None:
    async with toy_engine("vLLM", "two", "three") as engine:
        prompt = engine.ids(engine.render({"messages": [QUESTION], "tools": [ADD]}, completion_follows=True))
        cut = {"prompt_token_ids": prompt, "generation_token_ids": engine.ids("one\n"), "generation_log_probs": [0, 0]}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}], **cut}
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        history = [QUESTION, said, {"role": "user", "content": "Go on."}]
        [last] = (await ask(server, input=history, tools=[ADD], max_output_tokens=50)).json()["output"]

        assert "one\n<|im_end|>\n<|im_start|>user" in engine.text(last["prompt_token_ids"])


async def test_ids_that_are_fewer_than_the_tokens_that_were_generated_are_refused() -> None:
    async with toy_engine("llama.cpp", "\u2764\ufe0f", "\u2764\ufe0f", unscored=1) as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        got = await ask(server, input=[QUESTION])

        assert got.status_code == 502
        assert got.json()["error"]["type"] == "invalid_response"
        assert "generated tokens, but" in got.json()["error"]["message"]


async def test_penalties_of_the_models_own_defaults_are_off() -> None:
    async with toy_engine("vLLM", "hi", "hi") as engine:
        await conversation(engine, 1)
        assert engine.sent_to(CHAT)[0]["repetition_penalty"] == 1.0
        options = {"logit_bias": {"7": -100.0}, "min_tokens": 3, "repetition_penalty": 1.2}
        [item] = await conversation(engine, 1, request=options)
        assert options.items() <= item["generation_sampling"].items()


async def refusal(engine: ToyEngine, **settings: Any) -> str:
    """Why an answer is refused."""
    server = vllm_model(engine.url, "m", return_token_id_information=True, **settings)
    got = await ask(server, input=[QUESTION], max_output_tokens=50)
    assert got.status_code == 502, got.text
    return str(got.json()["error"]["message"])


@pytest.mark.parametrize("kind", ["vLLM", "SGLang", "llama.cpp"])
@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (12.5, "log-probability"),
        (True, "log-probability"),
        (float("nan"), "the value NaN, which JSON does not have"),
        (float("-inf"), "the value -Infinity, which JSON does not have"),
    ],
)
async def test_what_can_not_be_a_log_probability_is_refused(kind: Kind, score: float, reason: str) -> None:
    async with toy_engine(kind, "hi", "hi", score=score) as engine:
        assert reason in await refusal(engine)


async def test_drafted_tokens_of_llama_cpp_are_refused_because_their_scores_are_not_known() -> None:
    async with toy_engine("llama.cpp", "hi", "hi", timings={"draft_n": 9, "draft_n_accepted": 3}) as engine:
        assert "drafted tokens" in await refusal(engine)
    async with toy_engine("llama.cpp", "hi", "hi", timings={"draft_n": 9, "draft_n_accepted": 0}) as engine:
        assert len(await conversation(engine, 1)) == 1


async def test_drafted_tokens_are_refused_after_a_correction_too() -> None:
    async with toy_engine("llama.cpp", FORCED, FORCED, "five") as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        first = (await ask(server, input=[QUESTION], tools=[ADD], max_output_tokens=50)).json()["output"]
        engine.timings = {"draft_n": 9, "draft_n_accepted": 3}
        result = {"type": "function_call_output", "call_id": first[0]["call_id"], "output": "5"}
        got = await ask(server, input=[QUESTION, *first, result], tools=[ADD], max_output_tokens=50)

        assert engine.sent_to(COMPLETIONS)
        assert "drafted tokens" in got.json()["error"]["message"]


async def test_an_answer_that_outgrew_the_context_is_refused_because_its_prompt_was_forgotten() -> None:
    async with toy_engine("llama.cpp", "hi", "one two three four five", n_ctx=24) as engine:
        assert "more tokens than its context of 24" in await refusal(engine)


async def test_samplers_that_only_llama_cpp_has_are_off_and_recorded() -> None:
    async with toy_engine("llama.cpp", "hi", "hi") as engine:
        [item] = await conversation(engine, 1, extra_body={"xtc_probability": 0.2})

        assert engine.sent_to(CHAT)[-1]["dry_multiplier"] == 0.0
        assert item["generation_sampling"]["xtc_probability"] == 0.2
        assert item["generation_sampling"]["typical_p"] == 1.0


async def test_an_engine_that_was_restarted_with_another_template_is_asked_again_for_its_prompts() -> None:
    async with toy_engine("llama.cpp", "hi", "hi", "hi") as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        for role in ("assistant", "model"):
            engine.answers_as = role
            [item] = (await ask(server, input=[QUESTION], max_output_tokens=50)).json()["output"]
            assert engine.text(item["prompt_token_ids"]).endswith(f"<|im_start|>{role}\n")


async def test_of_several_engines_each_is_recorded_as_what_it_is() -> None:
    async with toy_engine("vLLM", "a") as one, toy_engine("SGLang", "b") as other:
        server = vllm_model("", "m", return_token_id_information=True, base_url=[one.url, other.url])
        found = [
            (await ask(server, input=[{"role": "user", "content": word}], max_output_tokens=50)).json()["output"][0]
            for word in ("one", "two")
        ]
        assert [item["generation_sampling"]["log_probs"] for item in found] == ["raw", "processed"]


async def test_the_tokens_of_a_prompt_come_from_the_engine_that_answered() -> None:
    async with (
        toy_engine("llama.cpp", "a", "a", down=frozenset({"/apply-template"})) as one,
        toy_engine("llama.cpp", "b", "b") as other,
    ):
        server = vllm_model("", "m", return_token_id_information=True, base_url=[one.url, other.url])
        got = await ask(server, input=[QUESTION], max_output_tokens=50)

        assert got.status_code == 502
        assert "another endpoint at /apply-template" in got.json()["error"]["message"]


async def test_calls_that_a_user_mentions_do_not_tell_how_the_model_writes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mentions = {"role": "user", "content": "What do <tool_call> and </tool_call> mean?"}
    async with toy_engine("vLLM", FORCED, "five", hermes=False) as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        first = (await ask(server, input=[mentions], tools=[ADD], max_output_tokens=50)).json()["output"]
        result = {"type": "function_call_output", "call_id": first[0]["call_id"], "output": "5"}
        await ask(server, input=[mentions, *first, result], tools=[ADD], max_output_tokens=50)

        assert not engine.sent_to(COMPLETIONS)
        assert "in a form that only the endpoint can read" in caplog.text


async def test_a_token_that_the_caller_stops_at_is_not_taken_for_the_end_of_a_turn() -> None:
    async with toy_engine("vLLM", "one", "two", "three", stop="\n") as engine:
        stops = engine.ids("\n")
        output = await conversation(engine, 3, extra_body={"stop_token_ids": stops})

        assert check_continuity(output).ok
        assert "one\n<|im_end|>\n<|im_start|>user" in engine.text(output[-1]["prompt_token_ids"])


async def test_words_before_a_call_that_the_agent_removed_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    async with toy_engine("vLLM", FORCED, "My pin is 1234." + CALLED, "done") as engine:
        server = vllm_model(engine.url, "m", return_token_id_information=True)
        history: list[dict[str, Any]] = [QUESTION]
        for _ in range(2):
            history += (await ask(server, input=history, tools=[ADD], max_output_tokens=50)).json()["output"]
            history.append({"type": "function_call_output", "call_id": history[-1]["call_id"], "output": "5"})
        redacted = [item for item in history if item.get("role") != "assistant"]
        assert len(redacted) == len(history) - 1
        [last] = (await ask(server, input=redacted, tools=[ADD], max_output_tokens=50)).json()["output"]

        assert "1234" not in engine.text(last["prompt_token_ids"])
        assert "completion 2 is no longer what it was" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation_token_ids": ["h", "i"]},
        {"generation_token_ids": [7, -8]},
        {"generation_log_probs": [-0.5, None]},
        {"generation_log_probs": [-0.5, 12.0]},
        {"generation_log_probs": [-0.5]},
        {"prompt_token_ids": [1, -2]},
    ],
)
async def test_tokens_of_a_trainers_server_are_checked_too(wrong: dict[str, Any]) -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [7, 8], "generation_log_probs": [-0.5, -0.5]}
    usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    answers = []
    for more in ({}, wrong):
        message = {"role": "assistant", "content": "hi", **tokens, **more}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        async with serving(reply({**completion, "usage": usage})) as endpoint:
            server = vllm_model(endpoint.url, "m", return_token_id_information=True)
            answers.append((await ask(server, input=[QUESTION])).status_code)
    assert answers == [200, 502]
