"""A conversation whose beginning was converted before becomes the same messages as one that is converted at once."""

import json
from typing import Any

import msgspec
import pytest

from nemo_gym.conversion.conversation_cache import ConversationCache
from nemo_gym.conversion.losses import LossError
from nemo_gym.io.json import encode_json
from nemo_gym.responses_converter import ResponsesConverter

THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "so"}]}
CALL = {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "found é \u2028 12345678901234567890123"}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "look"}]}
CONVERSATION = [
    *({"role": "developer", "content": "be brief"}, ASKED, THOUGHT, SAID, CALL, RESULT, THOUGHT, CALL, RESULT, SAID),
    *(ASKED, SAID, {"role": "assistant", "content": "and more"}, ASKED),
]


def converter(**settings: Any) -> ResponsesConverter:
    return ResponsesConverter(return_token_id_information=False, **settings)


def unread(items: list[dict[str, Any]]) -> list[msgspec.Raw]:
    return msgspec.json.decode(json.dumps(items).encode(), type=list[msgspec.Raw])


def sent(chats: ResponsesConverter, items: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return json.loads(encode_json(chats.unread_to_chat(options, unread(items))))


class Counted:
    """Converts items to themselves and counts them."""

    def __init__(self) -> None:
        self.items = 0

    def __call__(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.items += len(items)
        return items


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("past_reasoning", ["think", "separate", "drop"])
def test_a_growing_conversation_is_converted_as_if_at_once(step: int, past_reasoning: Any) -> None:
    remembering = converter(past_reasoning=past_reasoning)
    for length in range(0, len(CONVERSATION) + 1, step):
        asked = {"input": CONVERSATION[:length], "instructions": "go", "temperature": 0.5}
        at_once = converter(past_reasoning=past_reasoning).request_to_chat(asked)
        assert sent(remembering, CONVERSATION[:length], instructions="go", temperature=0.5) == at_once


def test_only_what_is_new_is_converted() -> None:
    cache, counted = ConversationCache(), Counted()
    turn = [THOUGHT, CALL, RESULT]
    history = [ASKED]
    for number in range(20):
        history = [*history, *turn, {"role": "user", "content": f"turn {number}"}]
        cache.convert(unread(history), counted)
    assert counted.items == len(history)


def test_an_edited_beginning_is_converted_anew() -> None:
    cache, counted = ConversationCache(), Counted()
    history = [{"role": "user", "content": "secret"}, SAID, ASKED]
    cache.convert(unread(history), counted)
    redacted = [{"role": "user", "content": "[redacted]"}, *history[1:], SAID, ASKED]
    assert json.loads(b"[%b]" % cache.convert(unread(redacted), counted)) == redacted
    assert counted.items == len(history) + len(redacted)


def test_a_conversation_may_branch() -> None:
    cache, counted = ConversationCache(), Counted()
    cache.convert(unread([ASKED]), counted)
    for word in ("one", "two"):
        branch = [ASKED, SAID, {"role": "user", "content": word}]
        assert json.loads(b"[%b]" % cache.convert(unread(branch), counted)) == branch


def test_no_more_is_remembered_than_allowed() -> None:
    cache, counted = ConversationCache(max_bytes=1000), Counted()
    for number in range(50):
        cache.convert(unread([{"role": "user", "content": f"{number} " + "x" * 100}]), counted)
    before = counted.items
    cache.convert(unread([{"role": "user", "content": "0 " + "x" * 100}]), counted)
    assert counted.items == before + 1  # the oldest was forgotten
    cache.convert(unread([{"role": "user", "content": "49 " + "x" * 100}]), counted)
    assert counted.items == before + 1  # the latest was not
    cache.convert(unread([{"role": "user", "content": "y" * 5000}]), counted)


def test_a_loss_is_an_error_every_time() -> None:
    strict = converter(on_loss="error")
    lost = [{"type": "web_search_call", "id": "w"}, ASKED]
    for _ in range(3):
        with pytest.raises(LossError, match="web_search_call"):
            sent(strict, lost)
        with pytest.raises(LossError, match="web_search_call"):
            sent(strict, [*lost, SAID, ASKED])
    with pytest.raises(LossError, match="truncation"):
        sent(strict, [ASKED], truncation="auto")
