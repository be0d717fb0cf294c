"""Front door: converts between the Responses API, which everything here uses, and Chat Completions.

The work is done in ``nemo_gym.conversion``, on dictionaries; this module assigns ids, logs what has no equivalent, and
offers typed versions for authors.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, PrivateAttr, TypeAdapter

from nemo_gym.conversion.chat_completions import completion_to_response, message_as_received
from nemo_gym.conversion.chat_history import (
    PastReasoning,
    ResponsesConverterState,
    assistant_to_items,
    items_to_messages,
    messages_to_items,
    with_tokens,
    with_version,
)
from nemo_gym.conversion.chat_requests import options_to_chat
from nemo_gym.conversion.losses import COMPLETION_AUDIO, LossPolicy, OnLoss, Way
from nemo_gym.conversion.new_responses import Item, uuid4
from nemo_gym.conversion.parts import extract_reasoning, separate_reasoning, wrap_reasoning
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
)

__all__ = [
    "ReasoningParserError",
    "ResponsesConverter",
    "ResponsesConverterState",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "split_responses_input_output_items",
]

_ITEMS: Final[TypeAdapter[list[NeMoGymResponseOutputItem]]] = TypeAdapter(list[NeMoGymResponseOutputItem])


class ReasoningParserError(AssertionError):
    """The endpoint parses reasoning, but the configuration says that it does not."""


class ResponsesConverter(BaseModel):
    """Converts requests to Chat Completions and completions back."""

    return_token_id_information: bool
    # Whether the endpoint returns reasoning beside the content. If not, <think> blocks stay in the content.
    uses_reasoning_parser: bool = True
    past_reasoning: PastReasoning = "think"
    keep_strict: bool = False
    # The endpoint knows tools that take free text.
    custom_tools: bool = False
    on_loss: OnLoss = "warn"

    _losses: LossPolicy = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._losses = LossPolicy(self.on_loss)

    # Typed

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """The same request for Chat Completions. What has no equivalent is logged once."""
        chat = self.request_to_chat(request_as_sent(responses_create_params))
        messages = chat.pop("messages")
        params = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[], **chat)
        # These were just built from validated items; validating them again would double the cost.
        params.messages = messages
        return params

    def postprocess_chat_response(self, choice: NeMoGymChoice) -> list[NeMoGymResponseOutputItem]:
        """The items of one choice; the last one holds the tokens, if they are wanted and available."""
        return self.postprocess_assistant_message_dict(message_as_received(choice.message))

    def postprocess_assistant_message_dict(self, message_dict: Mapping[str, Any]) -> list[NeMoGymResponseOutputItem]:
        return _ITEMS.validate_python(self.message_to_items(message_dict))

    def chat_completions_messages_to_responses_items(
        self, messages: Iterable[Mapping[str, Any]]
    ) -> list[NeMoGymResponseInputItem]:
        return _ITEMS.validate_python(self.history_to_items(messages))

    def chat_completion_to_response(
        self,
        responses_create_params: NeMoGymResponseCreateParamsNonStreaming,
        chat_completion: NeMoGymChatCompletion,
        *,
        model: str | None = None,
    ) -> NeMoGymResponse:
        """The response to a request that was sent as a chat; it repeats the settings of the request."""
        params = responses_create_params
        request = {name: getattr(params, name) for name in params.model_fields_set}
        model = model or chat_completion.model
        return NeMoGymResponse.model_validate(self.completion_to_response(chat_completion, request, model=model))

    # As on the wire

    def request_to_chat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same request for Chat Completions; what that can't express is logged or refused (``on_loss``)."""
        options, lost = options_to_chat(request, keep_strict=self.keep_strict, custom_tools=self.custom_tools)
        messages = self._messages(request["input"], lost)
        if request.get("instructions") is not None:
            messages.insert(0, {"role": "system", "content": request["instructions"]})
        return {"messages": messages, **options}

    def _messages(self, conversation: str | Iterable[Mapping[str, Any]], lost: Sequence[str]) -> list[dict[str, Any]]:
        """The messages; ``lost`` is what else of the request can't be expressed."""
        state = ResponsesConverterState(
            self.return_token_id_information, self.past_reasoning, custom_tools=self.custom_tools
        )
        if isinstance(conversation, str):
            state.messages.append({"role": "user", "content": [{"type": "text", "text": conversation}]})
            conversation = ()
        messages = items_to_messages(conversation, state)
        if lost or state.lost or state.remarks:
            self._losses.check(Way.TO_CHAT, [*lost, *state.lost, *sorted(state.remarks)])
        return messages

    def message_to_items(self, message: Mapping[str, Any]) -> list[Item]:
        """The items of one assistant message; the last one holds the tokens, if they are wanted and available."""
        if not self.uses_reasoning_parser and separate_reasoning(message):
            raise ReasoningParserError("the endpoint returns reasoning separately: set uses_reasoning_parser: true")
        items = assistant_to_items(message, _new_id, parses_reasoning=self.uses_reasoning_parser)
        items = with_version(items, message)
        return with_tokens(items, message) if self.return_token_id_information else items

    def history_to_items(self, messages: Iterable[Mapping[str, Any]]) -> list[Item]:
        return messages_to_items(messages, self.message_to_items)

    def completion_to_response(
        self, completion: NeMoGymChatCompletion, request: Mapping[str, Any], *, model: str
    ) -> dict[str, Any]:
        """The response to a request that was sent as a chat."""
        message = message_as_received(completion.choices[0].message)
        if message.get("audio"):
            self._losses.check(Way.FROM_CHAT, [COMPLETION_AUDIO])
        output = self.message_to_items(message)
        return completion_to_response(completion, output, request, id=f"resp_{_new_id()}", model=model)

    def _extract_reasoning_from_content(self, content: str) -> tuple[list[str], str]:
        return extract_reasoning(content)

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
        return wrap_reasoning(texts)


def request_as_sent(params: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
    """A request as a dictionary: only set fields, but items with all their fields, since ``type`` may be a default."""
    request = {name: getattr(params, name) for name in params.model_fields_set}
    if not isinstance(params.input, str):
        request["input"] = params.__pydantic_serializer__.to_python(params, include={"input"})["input"]
    return request


def _new_id() -> str:
    return uuid4().hex


def split_responses_input_output_items(
    items: list[NeMoGymResponseInputItem],
) -> tuple[list[NeMoGymResponseInputItem], list[NeMoGymResponseOutputItem]]:
    """The items before the model's first output, and all items from there on."""
    for position, item in enumerate(items):
        if item.type in ("reasoning", "function_call") or (item.type == "message" and item.role == "assistant"):
            return items[:position], items[position:]
    return items, []


VLLMConverter = ResponsesConverter
VLLMConverterResponsesToChatCompletionsState = ResponsesConverterState
