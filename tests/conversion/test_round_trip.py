"""Round trips between the protocols lose nothing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.responses_converter import ResponsesConverter

CONVERTER = ResponsesConverter(return_token_id_information=True)

text = st.text(st.characters(exclude_characters="<"), max_size=12)
words = text.filter(bool)
image = st.fixed_dictionaries(
    {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": words}, optional={"detail": words})}
)
part = st.fixed_dictionaries({"type": st.just("text"), "text": text}) | image
content = words | st.lists(part, min_size=1, max_size=2)
others = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": content})
results = st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": words, "content": content})
calls = st.fixed_dictionaries(
    {
        "id": words,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": words, "arguments": text}),
    }
)
tokens = st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.integers(0, 9), max_size=2),
        "generation_token_ids": st.lists(st.integers(0, 9), max_size=2),
        "generation_log_probs": st.lists(st.floats(-9, 0), max_size=2),
    }
)


@st.composite
def assistants(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | words)}
    thoughts = "".join(f"<think>{thought}</think>" for thought in draw(st.lists(text, max_size=2)))
    if thoughts:
        message["content"] = thoughts + (message["content"] or "")
    if tool_calls := draw(st.lists(calls, max_size=2)):
        message["tool_calls"] = tool_calls
    if message["content"] is None and not tool_calls:
        message["refusal"] = draw(words)
    return message | draw(st.just({}) | tokens)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Somebody, the assistant, somebody, …: two turns of the assistant in a row would become one."""
    history: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        history += draw(st.lists(others | results, min_size=1, max_size=2))
        history += draw(st.lists(assistants(), max_size=1))
    return history


@given(histories())
def test_a_chat_history_survives_as_items(history: list[dict[str, Any]]) -> None:
    items = CONVERTER.chat_completions_messages_to_responses_items(history)
    params = NeMoGymResponseCreateParamsNonStreaming(input=items)

    assert CONVERTER.responses_to_chat_completion_create_params(params).messages == history


@given(histories())
def test_items_survive_as_a_chat_history_up_to_their_ids(history: list[dict[str, Any]]) -> None:
    def without_ids(items: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in item.model_dump().items() if k != "id"} for item in items]

    items = CONVERTER.chat_completions_messages_to_responses_items(history)
    params = NeMoGymResponseCreateParamsNonStreaming(input=items)
    chat: Any = CONVERTER.responses_to_chat_completion_create_params(params).messages

    assert without_ids(CONVERTER.chat_completions_messages_to_responses_items(chat)) == without_ids(items)
