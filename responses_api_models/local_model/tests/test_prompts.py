"""Earlier turns keep their tokens only as long as their text is unchanged, with every kind of template."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.servers.models.model_requests import ForwardedChatParams
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.tests.conftest import CALCULATOR, QUESTION, ask, build_model
from responses_api_models.vllm_model.tokens import carry_prefix

FUNCTION = {name: value for name, value in CALCULATOR.items() if name != "type"}

# Turns end with a token that is not the model's end-of-sequence token, as with Gemma.
OTHER_END = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<file_sep>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Earlier answers are shortened, as with Qwen3, whose template omits earlier reasoning.
REWRITING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and not loop.last %}{{ message.content[1:] }}{% else %}{{ message.content }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN_END = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}. Write <tool_call>{}</tool_call>.<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@asynccontextmanager
async def templated(tmp_path: Path, template: str) -> AsyncIterator[LocalModel]:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    server = build_model(n_ctx=2048, n_parallel=1, return_token_id_information=True, chat_template=str(path))
    try:
        yield server
    finally:
        await server._model.pool.close()


async def turns(model: LocalModel, count: int = 2, **options: Any) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = [QUESTION]
    for _ in range(count):
        response = await ask(model, history, max_output_tokens=8, temperature=1.5, **options)
        history += [item.model_dump(exclude_unset=True) for item in response.output]
        history.append({"role": "user", "content": "Go on."})
    return history


def outputs(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in history if "generation_token_ids" in item]


async def test_an_edited_history_does_not_keep_the_old_tokens(training_model: LocalModel) -> None:
    history = await turns(training_model)
    secret = outputs(history)[0]["prompt_token_ids"]
    history[0] = {"role": "user", "content": "What is [redacted]?"}
    [answer] = (await ask(training_model, history, max_output_tokens=4)).output

    prompt = answer.model_dump()["prompt_token_ids"]
    text = await training_model._model.pool.text(prompt)
    assert "redacted" in text
    assert "55 plus 31" not in text
    assert prompt[: len(secret)] != secret


async def test_an_edited_answer_does_not_keep_its_tokens_but_those_before_it_do(training_model: LocalModel) -> None:
    history = await turns(training_model)
    first, second = outputs(history)
    second["content"][0]["text"] = "[removed]"
    [answer] = (await ask(training_model, history, max_output_tokens=4)).output

    prompt = answer.model_dump()["prompt_token_ids"]
    kept = [*first["prompt_token_ids"], *first["generation_token_ids"]]
    assert prompt[: len(kept)] == kept
    assert "[removed]" in await training_model._model.pool.text(prompt)


async def test_a_tool_that_may_not_be_called_now_is_still_part_of_what_was_said(training_model: LocalModel) -> None:
    history = await turns(training_model, 1, tools=[CALCULATOR], tool_choice="none")
    answer = await ask(training_model, history, max_output_tokens=4, tools=[CALCULATOR], tool_choice="auto")

    assert check_continuity([*outputs(history), answer.output[-1].model_dump()]).ok


async def test_a_turn_may_end_with_another_token_than_the_models_own_end(weights: Path, tmp_path: Path) -> None:
    async with templated(tmp_path, OTHER_END) as model:
        history = await turns(model, 3)
        end = await model._model.pool.end_of_turn()

        assert end is not None
        assert end != await model._model.pool.eos_token()
        assert check_continuity(outputs(history)).ok


@pytest.mark.parametrize("template", [REWRITING, PLAIN_END])
async def test_a_template_that_can_not_be_corrected_says_so(
    weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str
) -> None:
    async with templated(tmp_path, template) as model:
        with caplog.at_level(logging.WARNING):
            history = await turns(model)

        assert "earlier turns are tokenized anew" in caplog.text
        found = check_continuity(outputs(history))
        assert not found.ok or template is PLAIN_END


async def test_the_models_own_tool_template_is_used_where_it_has_one(weights: Path, tmp_path: Path) -> None:
    async with templated(tmp_path, HERMES) as model:
        history = await turns(model, 1, tools=[CALCULATOR])
        text = await model._model.pool.text(outputs(history)[0]["prompt_token_ids"])

        assert "Write <tool_call>{}</tool_call>." in text
        assert "You can call tools" not in text


async def test_training_samples_without_truncation_and_says_so(training_model: LocalModel) -> None:
    [free] = (await ask(training_model, temperature=None, max_output_tokens=2)).output
    extra = {"extra_body": '{"top_k": 20}'}
    [cut] = (await ask(training_model, temperature=0.5, max_output_tokens=2, metadata=extra)).output

    none = {"log_probs": "raw", "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    none |= {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert free.model_dump()["generation_sampling"] == none
    assert cut.model_dump()["generation_sampling"] == none | {"temperature": 0.5, "top_k": 20}


async def test_earlier_tokens_are_found_in_the_prompt_of_the_last_answer(
    training_model: LocalModel, caplog: pytest.LogCaptureFixture
) -> None:
    """As vllm_model sends a conversation: only the last answer carries tokens, which include all earlier ones."""
    messages: list[dict[str, Any]] = [QUESTION]
    sequence: list[int] = []
    options = {"max_tokens": 6, "temperature": 1.5, "seed": 7, "tools": [{"type": "function", "function": FUNCTION}]}
    for _ in range(3):
        body = {"messages": list(messages), **options}
        carry_prefix(body)
        answer = (await training_model.chat_completions(ForwardedChatParams(**body))).choices[0].message.model_dump()
        assert answer["prompt_token_ids"][: len(sequence)] == sequence
        sequence = [*answer["prompt_token_ids"], *answer["generation_token_ids"]]
        messages += [answer, {"role": "user", "content": "Go on."}]
    assert "tokenized anew" not in caplog.text
