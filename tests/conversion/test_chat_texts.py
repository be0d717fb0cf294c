"""A request whose parts were converted before becomes the same chat as one that is converted at once."""

import json
from typing import Any

import msgspec
import pytest

from nemo_gym.conversion.chat_answers import ChatAnswer
from nemo_gym.conversion.chat_texts import ChatTexts
from nemo_gym.conversion.losses import LossError
from nemo_gym.conversion.request_texts import LONG, RequestTexts
from nemo_gym.responses_converter import ResponsesConverter

THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm" * 900}]}
SAID = {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "so" * 500}]}
CALL = {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "found é \u2028 12345678901234567890123" * 99}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "look" * 600}]}
CONVERSATION = [
    *({"role": "developer", "content": "be brief"}, ASKED, THOUGHT, SAID, CALL, RESULT, THOUGHT, CALL, RESULT, SAID),
    *(ASKED, SAID, {"role": "assistant", "content": "and more"}, ASKED),
]
decode = msgspec.json.Decoder(str | list[msgspec.Raw]).decode


class Outline(msgspec.Struct):
    input: msgspec.Raw
    instructions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    temperature: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    truncation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Counting(ResponsesConverter):
    """Counts the items that it converts."""

    items: int = 0

    def conversation_to_chat(self, conversation: Any) -> list[dict[str, Any]]:
        self.items += len(conversation)
        return super().conversation_to_chat(conversation)


class Chats:
    """The texts of one server, and of nobody else."""

    def __init__(self, *, max_bytes: int = 2**20, **settings: Any) -> None:
        self.converter = Counting(return_token_id_information=False, **settings)
        self.known = RequestTexts("input", Outline, max_bytes=max_bytes)
        self.texts = ChatTexts(self.known, self.converter, lambda chat: {**chat, "model": "m"}, model="m")

    def sent(self, items: Any, *, compact: bool = True, first: bool = False, **options: Any) -> dict[str, Any]:
        asked = {**options, "input": items} if not first else {"input": items, **options}
        text = json.dumps(asked, separators=(",", ":") if compact else None).encode()
        split = self.known.split(text, decode)
        assert split is not None
        sent: dict[str, Any] = json.loads(self.texts.request(split))
        return sent


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("past_reasoning", ["think", "separate", "drop"])
@pytest.mark.parametrize("compact", [True, False])
def test_a_growing_conversation_is_converted_as_if_at_once(step: int, past_reasoning: Any, compact: bool) -> None:
    chats = Chats(past_reasoning=past_reasoning)
    at_once = ResponsesConverter(return_token_id_information=False, past_reasoning=past_reasoning)
    options = {"instructions": "go", "temperature": 0.5}
    for length in range(0, len(CONVERSATION) + 1, step):
        asked = {"input": CONVERSATION[:length], **options}
        sent = chats.sent(CONVERSATION[:length], compact=compact, first=bool(length % 2), **options)
        assert sent == at_once.request_to_chat(asked) | {"model": "m"}


@pytest.mark.parametrize("compact", [True, False])
def test_only_what_is_new_is_converted(compact: bool) -> None:
    chats, history = Chats(), [ASKED, ASKED]
    for number in range(20):
        history = [*history, THOUGHT, CALL, RESULT, {"role": "user", "content": f"turn {number}"}]
        chats.sent(history, compact=compact)
    assert chats.converter.items == len(history)


def test_the_assistants_open_turn_is_converted_with_what_follows() -> None:
    chats = Chats()
    for _ in range(3):
        chats.sent([ASKED, ASKED, THOUGHT, CALL])
    assert chats.converter.items == 2 + 3 * 2


def test_options_may_change_from_call_to_call() -> None:
    chats, history = Chats(), [ASKED, ASKED]
    for number in range(20):
        history = [*history, SAID, ASKED]
        sent = chats.sent(history, first=True, temperature=number, instructions=f'turn {number}: "input":[{{}}]')
        assert sent["temperature"] == number
        assert len(sent["messages"]) == 1 + len(history)
    assert chats.converter.items == len(history)


def test_an_edited_beginning_is_converted_anew() -> None:
    chats, history = Chats(), [{"role": "user", "content": "secret" * LONG}, SAID, ASKED]
    chats.sent(history)
    redacted = [{"role": "user", "content": "[edit]" * LONG}, *history[1:], SAID, ASKED]
    at_once = ResponsesConverter(return_token_id_information=False).request_to_chat({"input": redacted})
    assert chats.sent(redacted)["messages"] == at_once["messages"]
    assert chats.converter.items == len(history) + len(redacted)


def test_a_conversation_may_branch() -> None:
    chats = Chats()
    chats.sent([ASKED, ASKED])
    for word in ("one", "two"):
        sent = chats.sent([ASKED, ASKED, SAID, {"role": "user", "content": word}])
        assert sent["messages"][-1]["content"] == word
        assert len(sent["messages"]) == 4


def test_no_more_is_remembered_than_allowed() -> None:
    chats = Chats(max_bytes=20 * LONG)
    for number in range(50):
        chats.sent([{"role": "user", "content": f"{number} " + "x" * LONG}])
    before = chats.converter.items
    chats.sent([{"role": "user", "content": "0 " + "x" * LONG}])
    assert chats.converter.items == before + 1  # the oldest was forgotten
    chats.sent([{"role": "user", "content": "49 " + "x" * LONG}])
    assert chats.converter.items == before + 1  # the latest was not
    chats.sent([{"role": "user", "content": "y" * 50 * LONG}])


def test_a_loss_is_an_error_every_time() -> None:
    strict = Chats(on_loss="error")
    lost = [{"type": "web_search_call", "id": "w"}, ASKED, ASKED]
    for _ in range(3):
        with pytest.raises(LossError, match="web_search_call"):
            strict.sent(lost)
        with pytest.raises(LossError, match="web_search_call"):
            strict.sent([*lost, SAID, ASKED])
        with pytest.raises(LossError, match="truncation"):
            strict.sent([ASKED], truncation="auto")


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}},
        {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "reasoning_tokens": 1},
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_response_says_the_same_as_text_and_as_an_object(usage: Any, finish: str) -> None:
    chats = Chats()
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": "<think>hm</think>Ü", "tool_calls": [call]}
    answer = ChatAnswer(message, finish, 1_700_000_000, None, usage)
    split = chats.known.split(b'{"input":"hi","temperature":0.5,"instructions":"go"}', decode)
    assert split is not None
    text = json.loads(chats.texts.response(split, answer))
    plain = chats.converter.answer_to_response(answer, split.frame.options, model="m")
    assert list(text) == list(plain)
    for one in (text, plain):
        one.pop("id")
        for item in one["output"]:
            item.pop("id")
    assert text == plain
