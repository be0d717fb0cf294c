"""A request whose parts were converted before becomes the same messages as one that is converted at once."""

import itertools
import json
import random
from typing import Any

import msgspec
import pytest

from nemo_gym.conversion.anthropic.answers import message_to_response, message_to_text, read_plain_message
from nemo_gym.conversion.anthropic.calling import request_to_messages
from nemo_gym.conversion.anthropic.message_texts import MessageTexts
from nemo_gym.conversion.chat_answers import ResponseTemplate
from nemo_gym.conversion.losses import LossError, LossPolicy
from nemo_gym.conversion.request_texts import RequestTexts
from nemo_gym.schemas.messages import AnthropicMessage

THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm" * 900}]}
SIGNED = {**THOUGHT, "encrypted_content": "proof"}
SAID = {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "so" * 500}]}
CALL = {"type": "function_call", "id": "f", "call_id": "c.1", "name": "look", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c.1", "output": "found é \u2028" * 300}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "look" * 600}]}
NOTHING = {"role": "user", "content": ""}
LATE = {"role": "system", "content": "be brief"}
KINDS = (THOUGHT, SIGNED, SAID, CALL, RESULT, ASKED, NOTHING, LATE)
decode = msgspec.json.Decoder(str | list[msgspec.Raw]).decode


class Outline(msgspec.Struct):
    input: msgspec.Raw
    instructions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    temperature: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Requests:
    """The texts of one server, and of nobody else."""

    def __init__(self) -> None:
        self.known = RequestTexts("input", Outline, max_bytes=2**20)
        finish = {"model": "m"}
        self.texts = MessageTexts(self.known, LossPolicy(), lambda body: {**body, **finish}, max_tokens=9, model="m")

    def sent(self, items: Any, **options: Any) -> dict[str, Any]:
        split = self.known.split(json.dumps({**options, "input": items}).encode(), decode)
        assert split is not None
        sent: dict[str, Any] = json.loads(self.texts.request(split))
        return sent


def at_once(items: Any, **options: Any) -> dict[str, Any]:
    return request_to_messages({**options, "input": items}, max_tokens=9).body | {"model": "m"}


def test_every_turn_of_a_conversation_is_sent_whole() -> None:
    requests, history = Requests(), [LATE, ASKED]
    for _ in range(6):
        assert requests.sent(history, instructions="go", temperature=0.5) == at_once(
            history, instructions="go", temperature=0.5
        )
        history += [SIGNED, SAID, CALL, RESULT]
    assert requests.sent("hi") == at_once("hi")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_follows_becomes_the_same_messages(seed: int) -> None:
    chance, requests = random.Random(seed), Requests()
    history: list[dict[str, Any]] = [ASKED]
    for _ in range(8):
        history = history + chance.choices(KINDS, k=chance.randint(1, 4))
        assert requests.sent(history) == at_once(history)


def test_every_pair_of_endings_and_beginnings_fits() -> None:
    requests = Requests()
    for one, other in itertools.product(KINDS, KINDS):
        for history in ([ASKED, SAID, one], [ASKED, SAID, one, other], [ASKED, SAID, one, other, SAID]):
            assert requests.sent(history) == at_once(history)


def test_a_loss_is_an_error_every_time() -> None:
    requests = Requests()
    for _ in range(2):
        with pytest.raises(LossError, match="web_search_call"):
            requests.sent([ASKED, ASKED, {"type": "web_search_call", "id": "w"}, ASKED])


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}],
    "stop_reason": "max_tokens",
    "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": None},
}
USED = {"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}}
NUMBERS: dict[str, Any] = {"input_tokens": 1, "output_tokens": 1}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"content": [USED], "stop_reason": "tool_use"},
        {"content": []},
        {"usage": {**NUMBERS, "output_tokens_details": {"thinking_tokens": 7}, "service_tier": "x"}},
    ],
)
def test_a_plain_message_is_the_same_response(more: dict[str, Any]) -> None:
    content = json.dumps({**MESSAGE, **more}).encode()
    plain, model = read_plain_message(content), AnthropicMessage.model_validate_json(content)
    assert plain is not None
    template = ResponseTemplate({"temperature": 0.5}, model="m")
    found = [json.loads(message_to_text(one, template, new_id=lambda: "i", created=7)) for one in (plain, model)]
    made = message_to_response(model, {"temperature": 0.5}, new_id=lambda: "i", created_at=7.0, model="m")
    assert found == [made, made]


@pytest.mark.parametrize(
    "more",
    [
        {"content": [{"type": "text"}]},
        {"content": [{"type": "server_tool_use", "id": "s"}]},
        {"content": [{**USED, "input": "{"}]},
        {"stop_reason": "refusal"},
        {"stop_reason": None},
        {"usage": {**NUMBERS, "output_tokens": -1}},
        {"usage": None},
        {"type": "error"},
    ],
)
def test_anything_else_is_validated(more: dict[str, Any]) -> None:
    assert read_plain_message(json.dumps({**MESSAGE, **more}).encode()) is None
