import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.view.transcript import MODEL_STARTS, render_transcript


def rollout(output: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "agent_ref": {"name": "calculator_simple_agent"},
        "responses_create_params": {"input": [{"role": "user", "content": "What is 15% of 240?"}]},
        "response": {"output": output},
        "reward": 1.0,
        **fields,
    }


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


CALL = {
    "type": "function_call",
    "name": "calculator",
    "call_id": "c1",
    "arguments": '{"expression": "240 * 15 / 100"}',
    "generation_token_ids": [1, 2, 3],
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": '{"result": "36"}'}


def test_calls_beside_the_response_follow_it_with_what_they_are() -> None:
    asked = [{"role": "user", "content": "Look it up."}]
    traces = [
        {"response": True},
        {"parent": None, "reason": "new_conversation", "thread": "searcher", "input": asked, "output": [CALL, RESULT]},
        {"parent": 1, "reason": None, "trained": False, "input": [], "output": [message("Or not.")]},
    ]
    lines = render_transcript(rollout([message("36")], traces=traces), width=80).split("\n")

    begun = next(at for at, line in enumerate(lines) if " trace 1 · searcher · new conversation ─" in line)
    assert [line.strip() for line in lines[begun + 1 : begun + 4]] == [
        "user       Look it up.",
        'call       calculator(expression="240 * 15 / 100")',
        'result     {"result": "36"}',
    ]
    assert " trace 2 · goes on from trace 1 · repeated, not used ─" in lines[begun + 4]
    assert lines[begun + 5] == "  assistant  Or not."


def test_a_rollout_reads_like_a_conversation() -> None:
    text = render_transcript(
        rollout([CALL, RESULT, message("The answer is 36.")], accuracy=1.0, used_calculator=True), width=60
    )

    assert text.split("\n") == [
        "task 3 · rollout 1 · calculator_simple_agent",
        "",
        "  user       What is 15% of 240?",
        f"  {f' {MODEL_STARTS} ':─^56}",
        '  call       calculator(expression="240 * 15 / 100")',
        '  result     {"result": "36"}',
        "  assistant  The answer is 36.",
        "",
        "  reward 1 · accuracy 1 · used_calculator true",
    ]


def test_the_reward_leads_and_long_or_structured_fields_are_left_out() -> None:
    record = rollout([message("hi")], extracted=None, checks=["a"], note="x" * 100, kind="sum")

    assert render_transcript({"kind": "sum", **record}).endswith("  reward 1 · kind sum")


def test_long_texts_are_wrapped_under_their_label_and_very_long_ones_cut() -> None:
    text = render_transcript(rollout([message("word " * 1000)]), width=60)

    assert max(map(len, text.split("\n"))) <= 60
    assert "(5000 characters)" in text


def test_lines_that_fit_keep_their_spaces() -> None:
    assert "             def f():\n                 return 1" in render_transcript(
        rollout([message("Code:\ndef f():\n    return 1")])
    )


def test_reasoning_refusals_and_images_have_their_place() -> None:
    output = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Let me see."}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I'd rather not."}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
    ]
    text = render_transcript(rollout(output))

    assert "thinks     Let me see." in text
    assert "assistant  I'd rather not." in text
    assert "user       [image]" in text


def test_arguments_that_are_no_json_object_are_shown_as_written() -> None:
    assert 'calculator({"expression": 1 +)' in render_transcript(rollout([{**CALL, "arguments": '{"expression": 1 +'}]))
    assert "calculator([1])" in render_transcript(rollout([{**CALL, "arguments": "[1]"}]))


def test_an_answer_that_was_cut_off_says_so() -> None:
    record = rollout([message("The answ")])
    record["response"]["incomplete_details"] = {"reason": "max_output_tokens"}

    assert "cut off    max_output_tokens" in render_transcript(record)


def test_instructions_and_a_plain_text_input_are_shown() -> None:
    record = rollout([message("Oui.")], responses_create_params={"instructions": "Be brief.", "input": "Ça va ?"})

    assert "  system     Be brief.\n  user       Ça va ?\n" in render_transcript(record)


def test_older_rows_with_a_list_of_chat_messages_are_shown() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    record = {
        "output": [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "cold"},
            {"role": "assistant", "content": "It is cold."},
        ]
    }

    assert render_transcript(record).split("\n") == [
        "a rollout",
        "",
        '  call       get_weather(city="Oslo")',
        "  result     cold",
        "  assistant  It is cold.",
        "",
        "  not scored",
    ]


def test_items_of_an_unknown_kind_are_shown_as_json() -> None:
    assert '{"type": "web_search_call", "query": "weather"}' in render_transcript(
        rollout([{"type": "web_search_call", "query": "weather"}])
    )


def test_model_output_cannot_control_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp.exe \r\x08 \ud800"
    text = render_transcript(rollout([message(hostile), {"role": "\x1b[H", "content": hostile}], note=hostile))

    assert not set(text) & set("\x1b\x07\x9b\r\x08\u202e\ud800")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
items = st.lists(
    json_values
    | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | json_values,
            "role": st.sampled_from(["user", "tool", "assistant"]) | json_values,
            **dict.fromkeys(["content", "summary", "name", "arguments", "output", "tool_calls"], json_values),
        },
    ),
    max_size=4,
)


@given(items, items | json_values, json_values)
def test_any_record_that_json_can_hold_is_shown(prompt: Any, output: Any, extra: Any) -> None:
    record = {"responses_create_params": {"input": prompt}, "response": {"output": output}, "extra": extra}

    text = render_transcript(json.loads(json.dumps(record)))

    assert text.startswith("a rollout")
    assert "\x1b" not in text
