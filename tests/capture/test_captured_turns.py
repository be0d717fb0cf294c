"""Model servers keep the tokens of an attempt: items travel with references, and the row gets every token once."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from nemo_gym.capture.traces import complete, references
from nemo_gym.exporting.tokens import token_spans
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.schemas.call_tokens import with_full_prompts
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from nemo_gym.training.sequences import sequences_of
from responses_api_models.vllm_model.tests.engine_cases import ADD
from responses_api_models.vllm_model.tests.toy_engine import Kind, ToyEngine, toy_engine
from tests.servers.models.test_long_conversations import vllm

FORCED = '[{"name": "add", "parameters": {"a": 2, "b": 3}}]'
QUESTION = {"role": "user", "content": "What is two and three?"}
IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


@asynccontextmanager
async def gym_with(*script: str, kind: Kind = "vLLM") -> AsyncIterator[tuple[ToyEngine, Any]]:
    """A Gym with one model server, and the engine behind it."""
    async with (
        toy_engine(kind, *script) as engine,
        host_gym(vllm(engine.url, return_token_id_information=True)) as gym,
    ):
        yield engine, gym


async def ask(client: Any, history: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    body = {"input": history, "tools": [ADD], "max_output_tokens": 50, **options}
    reply = await client.post("policy_model", "/v1/responses", json=body)
    content = await reply.json()
    assert reply.status == 200, content
    return content["output"]  # type: ignore[no-any-return]


def next_message(output: list[dict[str, Any]]) -> dict[str, Any]:
    call = output[-1].get("call_id")
    return (
        {"type": "function_call_output", "call_id": call, "output": "5"}
        if call
        else {"role": "user", "content": "Go on."}
    )


async def converse(client: Any, turns: int, **options: Any) -> list[dict[str, Any]]:
    """The output of a conversation, as an agent would return it."""
    output: list[dict[str, Any]] = []
    for _ in range(turns):
        made = await ask(client, [QUESTION, *output], **options)
        output += [*made, next_message(made)]
    return output[:-1]


def completed(client: Any, mark: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"response": {"output": output}}
    complete(row, client.calls.take(mark, references(row)))
    return row


def spoken(engine: ToyEngine, ids: list[int]) -> str:
    return engine.text(ids)


@pytest.mark.parametrize("kind", ["vLLM", "SGLang", "llama.cpp", "patched vLLM"])
async def test_items_carry_references_and_the_row_gets_the_tokens(kind: Kind) -> None:
    said = [FORCED, "five", FORCED, FORCED, "more", "done"]
    script = said if kind in ("vLLM", "SGLang", "patched vLLM") else [said[0], *said]
    async with gym_with(*script, kind=kind) as (engine, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        output = await converse(gym.client, len(said))
        made = [item for item in output if "ng_call" in item]
        assert len(made) == len(said)
        assert not any(name in item for item in output for name in IDS)
        row = completed(gym.client, mark, output)
    items = Record(row).items
    assert check_continuity(items) == (found := check_continuity(Record(with_full_prompts(row)).items))
    assert (found.ok, found.calls) == (True, len(said))
    assert "traces" not in row
    assert not any("ng_call" in item for item in items)
    [span] = token_spans(items)
    text = spoken(engine, span.ids)
    assert text.count("<|im_start|>assistant") == len(said)
    assert all(text.count(word) >= 1 for word in ("What is two and three?", "five", "more", "done"))
    # Generated as a JSON list, and never rendered as the template would.
    assert text.count('[{"name": "add"') == 3
    assert all(isinstance(item["generation_sampling"], dict) for item in items if "generation_token_ids" in item)


async def test_only_what_is_new_is_tokenized() -> None:
    said = [f"number {turn}" for turn in range(12)]
    async with gym_with(*said) as (engine, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        output = await converse(gym.client, len(said))
        assert check_continuity(completed(gym.client, mark, output)["response"]["output"]).ok
    lengths = [len(body["messages"]) for body in engine.sent_to("/tokenize")]
    # The third turn is tokenized whole as well, to see whether the template suits.
    assert (len(lengths), sorted(lengths)[-2:]) == (11 + 1, [3, 5])
    assert not engine.sent_to("/detokenize")


async def test_outside_an_attempt_items_carry_their_tokens() -> None:
    async with gym_with("one", "two") as (_, gym):
        output = await converse(gym.client, 2)
        assert len(gym.client.calls) == 0
    assert check_continuity(output).ok
    assert [all(name in item for name in IDS) for item in output] == [True, False, True]


async def test_a_call_after_the_end_of_its_attempt_carries_its_tokens() -> None:
    async with gym_with("one", "two") as (_, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        first = await ask(gym.client, [QUESTION])
        assert len(gym.client.calls.take(mark)) == 1
        assert gym.client.calls.take(mark) == []
        late = await ask(gym.client, [QUESTION, *first, next_message(first)])
    assert all(name in late[-1] for name in IDS)


async def test_another_attempt_does_not_see_the_calls() -> None:
    async with gym_with("one", "two") as (_, gym):
        mark_rollout(0, 0, 1, captured=True)
        stolen = await ask(gym.client, [QUESTION])
        mark = mark_rollout(0, 1, 1, captured=True)
        output = await ask(gym.client, [QUESTION, *stolen, next_message(stolen)])
        row = completed(gym.client, mark, [*stolen, *output])
    assert row["_ng_lost_calls"] == 1
    assert [IDS[1] in item for item in row["response"]["output"]] == [False, True]


async def test_a_model_server_that_was_restarted_opens_a_new_sequence_with_the_reason() -> None:
    async with toy_engine("vLLM", FORCED, "five", "more") as engine, AsyncExitStack() as opened:
        config = vllm(engine.url, return_token_id_information=True)
        gym = await opened.enter_async_context(host_gym(config))
        mark = mark_rollout(0, 0, 1, captured=True)
        first = await ask(gym.client, [QUESTION])
        await opened.aclose()
        gym = await opened.enter_async_context(host_gym(config))
        history = [*first, next_message(first)]
        for _ in range(2):
            history += (made := await ask(gym.client, [QUESTION, *history]))
            history.append(next_message(made))
        row = completed(gym.client, mark, history[:-1])
    assert row["_ng_lost_calls"] == 1
    assert row["traces"] == [{"response": True}]
    [span] = token_spans(Record(row).items, Record(row).traces)
    assert sum(span.mask) == len(engine.ids("five<|im_end|>")) + len(engine.ids("more<|im_end|>"))


async def test_an_agent_that_sends_full_ids_is_continued_by_a_restarted_server() -> None:
    async with toy_engine("vLLM", FORCED, "five", "five", "more") as engine, AsyncExitStack() as opened:
        config = vllm(engine.url, return_token_id_information=True)
        gym = await opened.enter_async_context(host_gym(config))
        first = await ask(gym.client, [QUESTION])
        await opened.aclose()
        gym = await opened.enter_async_context(host_gym(config))
        mark = mark_rollout(0, 0, 1, captured=True)
        history = [*first, next_message(first)]
        for _ in range(2):
            history += (made := await ask(gym.client, [QUESTION, *history]))
            history.append(next_message(made))
        row = completed(gym.client, mark, history[:-1])
    assert "_ng_lost_calls" not in row
    assert check_continuity(Record(row).items) == check_continuity(Record(with_full_prompts(row)).items)
    assert check_continuity(Record(row).items).ok
    assert check_continuity(Record(row).items).calls == 3


async def test_history_that_the_agent_edits_opens_a_trace_of_its_own() -> None:
    async with gym_with("one", "two", "three", "four") as (engine, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        output = await converse(gym.client, 3)
        summary = {"role": "user", "content": "So far: one, two."}
        last = await ask(gym.client, [QUESTION, summary])
        row = completed(gym.client, mark, last)  # the agent returns only what it still knows
    main, other = Record(row).traces[0], Record(row).traces[1]
    assert main == {"response": True}
    assert (other["parent"], other["reason"], other["input"]) == (None, "first_call", [QUESTION])
    assert [item["content"] if "id" not in item else item["content"][0]["text"] for item in other["output"]] == [
        "one", "Go on.", "two", "Go on.", "three",
    ]  # fmt: skip
    spans = token_spans(Record(row).items, Record(row).traces)
    assert sorted(spoken(engine, span.ids).count("<|im_start|>assistant") for span in spans) == [1, 3]
    sampled = [engine.text([token]) for span in spans for token, own in zip(span.ids, span.mask, strict=True) if own]
    assert sorted(sampled) == sorted(["one", "two", "three", "four", *["<|im_end|>"] * 4])
    assert output


async def test_a_repeated_request_is_a_sibling_of_the_one_that_is_continued() -> None:
    async with gym_with("one", "lost", "two", "three") as (engine, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        first = await ask(gym.client, [QUESTION])
        history = [QUESTION, *first, next_message(first)]
        await ask(gym.client, history)
        second = await ask(gym.client, history)
        third = await ask(gym.client, [*history, *second, next_message(second)])
        row = completed(gym.client, mark, [*history[1:], *second, next_message(second), *third])
    assert check_continuity(Record(row).items).ok
    [_, lost] = Record(row).traces
    assert (lost["parent"], lost["trained"]) == (0, False)
    [span] = token_spans(Record(row).items, Record(row).traces)
    assert "lost" not in spoken(engine, span.ids)


async def test_an_agent_with_sub_agents_edits_and_a_summary_loses_no_sampled_token() -> None:
    said = [
        FORCED,
        "ask the helper",
        "helper one",
        "helper two",
        "back again",
        FORCED,
        "edited",
        "summed up",
        "the end",
    ]
    async with gym_with(*said) as (engine, gym):
        mark = mark_rollout(0, 0, 1, captured=True)
        main = await converse(gym.client, 2)
        helper: list[dict[str, Any]] = [{"role": "user", "content": "You are a helper."}]
        for _ in range(2):
            made = await ask(gym.client, helper)
            helper += [*made, next_message(made)]
        main += [next_message(main)]
        for _ in range(2):
            made = await ask(gym.client, [QUESTION, *main])
            main += [*made, next_message(made)]
        edited = [item | {"output": "6"} if item.get("type") == "function_call_output" else item for item in main]
        await ask(gym.client, [QUESTION, *edited])
        summary = [{"role": "user", "content": "Summary: five."}]
        made = await ask(gym.client, summary)
        last = [*made, next_message(made), *await ask(gym.client, [*summary, *made, next_message(made)])]
        row = completed(gym.client, mark, last)
    record = Record(row)
    spans = token_spans(record.items, record.traces)
    texts = [engine.text([t for t, own in zip(span.ids, span.mask, strict=True) if own]) for span in spans]
    assert sorted("".join(texts).split("<|im_end|>")) == sorted([*said, ""])
    reasons = [(trace.get("parent"), trace.get("reason")) for trace in record.traces[1:]]
    # What was edited continues the first call, which the edit left as it was.
    assert reasons == [(None, "first_call"), (None, "new_conversation"), (1, None)]
    assert len(sequences_of(Record({**row, "reward": 1.0}), RolloutKey(0, 0))) == len(spans) == 4
