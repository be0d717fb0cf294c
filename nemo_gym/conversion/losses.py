"""What is lost when a request is converted from one protocol to another, in one table, and how that is handled.

A conversion names what it leaves out, and every such name has a row here. A loss that would change what is generated is
an error, unless the model server is configured otherwise (``on_loss``); other losses are logged once.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from nemo_gym.conversion.parts import CACHE_BREAKPOINT, CHOICE_WITHOUT_TOOLS, UnsupportedContentError

logger = logging.getLogger(__name__)

OnLoss: TypeAlias = Literal["error", "warn", "ignore"]


class Way(StrEnum):
    """The direction of a conversion."""

    TO_CHAT = "Responses API → Chat Completions"
    TO_MESSAGES = "Responses API → Messages API"
    FROM_CHAT = "Chat Completions → Responses API"
    FROM_MESSAGES = "Messages API → Responses API"
    FROM_GEMINI = "Gemini's API → Responses API"
    # A handler of ``/v1/responses`` that takes the interface's request type, which lacks some keys.
    TO_HANDLER = "Responses API → request type of handlers"
    TO_LOCAL = "Chat Completions → embedded model"

    @property
    def target(self) -> str:
        """The protocol that lacks something."""
        return f"the {self.partition(' → ')[2]}".replace("the Chat", "Chat")


class Loss(NamedTuple):
    """Something that a conversion leaves out. A ``*`` at the end of a name matches any ending."""

    way: Way
    name: str
    changes_answer: bool
    why: str

    def is_named(self, name: str) -> bool:
        """Whether this row describes what a conversion named."""
        return name == self.name or (self.name.endswith("*") and name.startswith(self.name[:-1]))


ANNOTATIONS: Final = "annotations of earlier answers"
PAST_LOGPROBS: Final = "log-probabilities of earlier answers"
PHASE: Final = "phase of earlier answers"
NAMESPACE: Final = "namespace of calls"
CALLER: Final = "caller of calls"
ASYNC: Final = "async of calls"
IMAGE_DETAIL: Final = "detail of images"
FILE_DETAIL: Final = "detail of files"
SUMMARY: Final = "a reasoning summary beside the reasoning itself"
ENCRYPTED: Final = "encrypted reasoning"
UNSIGNED: Final = "reasoning without a signature"
LATE_INSTRUCTIONS: Final = "the role of instructions after the first message"
SPEAKERS: Final = "names of speakers"
PAST_AUDIO: Final = "audio of earlier answers"
COMPLETION_AUDIO: Final = "audio of answers"
COMPLETION_ANNOTATIONS: Final = "annotations of answers"
IS_ERROR: Final = "is_error of tool results"
CACHE_CONTROL: Final = "cache_control"
DOCUMENT_CITATIONS: Final = "citations of documents"
DOCUMENT_CONTEXT: Final = "context of documents"

_OF_CALLS: Final = {"namespace": NAMESPACE, "caller": CALLER, "async": ASYNC}
# Options of function tools that only an endpoint with hosted tools can follow, and the values that change nothing.
_HOSTING: Final = {"allowed_callers": ["direct"], "async": False, "defer_loading": False, "output_schema": None}

_STATE: Final = "the endpoint keeps no conversations, so what came before would be missing"
_HOSTED: Final = "only the endpoint that offers such a tool can run it"
_ITEM: Final = "there is no message for it: searches, shells, computers, MCP, images, references, compacted history"
_CALLED: Final = "how the call was made; the call itself is sent"
_REMARK: Final = "a remark on an earlier answer; the answer itself is sent"
_SERVICE: Final = "how the request is served, not what is generated"
_ONLY_CHATS: Final = "only servers whose endpoint speaks Chat Completions can pass it on"
_OUTPUT: Final = "the answer would not be in the form that was requested"

LOSSES: Final = (
    Loss(Way.TO_CHAT, "items of type *", True, _ITEM),
    Loss(Way.TO_CHAT, "previous_response_id", True, _STATE),
    Loss(Way.TO_CHAT, "conversation", True, _STATE),
    Loss(Way.TO_CHAT, "prompt", True, "stored prompts belong to the endpoint that stores them"),
    Loss(Way.TO_CHAT, "truncation", True, "a long conversation is refused instead of cut"),
    Loss(Way.TO_CHAT, "max_tool_calls", True, "calls of hosted tools are not counted"),
    Loss(Way.TO_CHAT, "tools.*", True, _HOSTED),
    Loss(Way.TO_CHAT, CHOICE_WITHOUT_TOOLS, True, "there is no tool to call"),
    Loss(Way.TO_CHAT, "tool_choice.*", True, _HOSTED),
    Loss(Way.TO_CHAT, "text.*", True, _OUTPUT),
    Loss(Way.TO_CHAT, "reasoning.*", False, "a chat returns reasoning as it is, or not at all"),
    Loss(Way.TO_CHAT, "include", False, "extra output that a chat does not have"),
    Loss(Way.TO_CHAT, "background", False, _SERVICE),
    Loss(Way.TO_CHAT, ENCRYPTED, False, "only the endpoint that wrote it can read it"),
    Loss(Way.TO_CHAT, SUMMARY, False, "the reasoning itself is sent"),
    Loss(Way.TO_CHAT, ANNOTATIONS, False, _REMARK),
    Loss(Way.TO_CHAT, PAST_LOGPROBS, False, _REMARK),
    Loss(Way.TO_CHAT, PHASE, False, _REMARK),
    Loss(Way.TO_CHAT, NAMESPACE, False, "the call is sent under its name alone"),
    Loss(Way.TO_CHAT, CALLER, False, _CALLED),
    Loss(Way.TO_CHAT, ASYNC, False, _CALLED),
    Loss(Way.TO_CHAT, "options of tools: *", True, _HOSTED),
    Loss(Way.TO_CHAT, FILE_DETAIL, False, "files are read as the endpoint sees fit"),
    Loss(Way.TO_CHAT, "*", True, "an option that the protocol does not have (context_management, image, …)"),
    Loss(Way.TO_MESSAGES, "items of type *", True, _ITEM),
    Loss(Way.TO_MESSAGES, "previous_response_id", True, _STATE),
    Loss(Way.TO_MESSAGES, "conversation", True, _STATE),
    Loss(Way.TO_MESSAGES, "prompt", True, "stored prompts belong to the endpoint that stores them"),
    Loss(Way.TO_MESSAGES, "truncation", True, "a long conversation is refused instead of cut"),
    Loss(Way.TO_MESSAGES, "max_tool_calls", True, "calls of hosted tools are not counted"),
    Loss(Way.TO_MESSAGES, "tools.*", True, _HOSTED),
    Loss(Way.TO_MESSAGES, CHOICE_WITHOUT_TOOLS, True, "there is no tool to call"),
    Loss(Way.TO_MESSAGES, "tool_choice.*", True, _HOSTED),
    Loss(Way.TO_MESSAGES, "text.*", True, _OUTPUT),
    Loss(Way.TO_MESSAGES, "reasoning.effort", True, "an effort that the protocol does not name"),
    Loss(Way.TO_MESSAGES, "reasoning.*", False, "thinking is returned as the endpoint sees fit"),
    Loss(Way.TO_MESSAGES, "top_logprobs", True, "the protocol has no log-probabilities"),
    Loss(Way.TO_MESSAGES, "include.message.output_text.logprobs", True, "the protocol has no log-probabilities"),
    Loss(Way.TO_MESSAGES, "include", False, "extra output that the protocol does not have"),
    Loss(Way.TO_MESSAGES, "background", False, _SERVICE),
    Loss(Way.TO_MESSAGES, "service_tier", False, _SERVICE),
    Loss(Way.TO_MESSAGES, "prompt_cache_*", False, _SERVICE),
    Loss(Way.TO_MESSAGES, "safety_identifier", False, "the protocol has one field for it and for user, which is sent"),
    Loss(Way.TO_MESSAGES, "metadata", False, _SERVICE),
    Loss(Way.TO_MESSAGES, "store", False, _SERVICE),
    Loss(Way.TO_MESSAGES, UNSIGNED, False, "endpoints refuse thinking that they can't prove to be their own"),
    Loss(Way.TO_MESSAGES, LATE_INSTRUCTIONS, False, "their text is sent as the user's"),
    Loss(Way.TO_MESSAGES, ANNOTATIONS, False, f"{_REMARK}; citations of the same protocol are kept"),
    Loss(Way.TO_MESSAGES, COMPLETION_ANNOTATIONS, False, "the text is given; citations of the same protocol are kept"),
    Loss(Way.TO_MESSAGES, PAST_LOGPROBS, False, _REMARK),
    Loss(Way.TO_MESSAGES, PHASE, False, _REMARK),
    Loss(Way.TO_MESSAGES, NAMESPACE, False, "the call is sent under its name alone"),
    Loss(Way.TO_MESSAGES, CALLER, False, _CALLED),
    Loss(Way.TO_MESSAGES, ASYNC, False, _CALLED),
    Loss(Way.TO_MESSAGES, "options of tools: *", True, _HOSTED),
    Loss(Way.TO_MESSAGES, IMAGE_DETAIL, False, "images are read as the endpoint sees fit"),
    Loss(Way.TO_MESSAGES, FILE_DETAIL, False, "files are read as the endpoint sees fit"),
    Loss(Way.TO_MESSAGES, CACHE_BREAKPOINT, False, _SERVICE),
    Loss(Way.TO_MESSAGES, "*", True, "an option that the protocol does not have (seed, min_p, …)"),
    Loss(Way.FROM_CHAT, PAST_AUDIO, True, "the protocol has no sound in answers"),
    Loss(Way.FROM_CHAT, COMPLETION_AUDIO, False, "the protocol has no sound in answers; the transcript is given"),
    Loss(Way.FROM_CHAT, ANNOTATIONS, False, _REMARK),
    Loss(Way.FROM_CHAT, SPEAKERS, False, "messages have a role and no name"),
    Loss(Way.FROM_CHAT, "*", True, "an option that the protocol does not have (n, logit_bias, audio, …)"),
    Loss(Way.FROM_MESSAGES, "stop_sequences", True, _ONLY_CHATS),
    Loss(Way.FROM_MESSAGES, "top_k", True, _ONLY_CHATS),
    Loss(Way.FROM_MESSAGES, "thinking", False, "models think without a budget; output_config.effort is carried over"),
    Loss(Way.FROM_MESSAGES, "context_management", False, "the history is sent whole"),
    Loss(Way.FROM_MESSAGES, "tools.*", True, _HOSTED),
    Loss(Way.FROM_MESSAGES, "options of tools: *", True, "tools have a name, a description and parameters"),
    Loss(Way.FROM_MESSAGES, "output_config.*", True, _OUTPUT),
    Loss(Way.FROM_MESSAGES, DOCUMENT_CITATIONS, True, _OUTPUT),
    Loss(Way.FROM_MESSAGES, DOCUMENT_CONTEXT, True, "files have a name and no description"),
    Loss(Way.FROM_MESSAGES, IS_ERROR, False, "results have no such mark; their text is sent"),
    Loss(Way.FROM_MESSAGES, CACHE_CONTROL, False, _SERVICE),
    Loss(Way.FROM_MESSAGES, "service_tier", False, _SERVICE),
    Loss(Way.FROM_MESSAGES, "metadata.*", False, _SERVICE),
    Loss(Way.FROM_MESSAGES, "*", True, "an option that the protocol does not have (mcp_servers, container, …)"),
    Loss(Way.FROM_GEMINI, "generationConfig.stopSequences", True, _ONLY_CHATS),
    Loss(Way.FROM_GEMINI, "generationConfig.topK", True, _ONLY_CHATS),
    Loss(Way.FROM_GEMINI, "generationConfig.seed", True, _ONLY_CHATS),
    Loss(Way.FROM_GEMINI, "generationConfig.presencePenalty", True, _ONLY_CHATS),
    Loss(Way.FROM_GEMINI, "generationConfig.frequencyPenalty", True, _ONLY_CHATS),
    Loss(
        Way.FROM_GEMINI,
        "generationConfig.thinkingConfig.*",
        False,
        "models think without a budget; thinkingLevel is carried over",
    ),
    Loss(Way.FROM_GEMINI, "generationConfig.*", True, _OUTPUT),
    Loss(Way.FROM_GEMINI, "tools.*", True, _HOSTED),
    Loss(Way.FROM_GEMINI, "options of tools: *", True, "tools have a name, a description and parameters"),
    Loss(Way.FROM_GEMINI, "safetySettings", False, "the endpoint has its own"),
    Loss(Way.FROM_GEMINI, "labels", False, _SERVICE),
    Loss(Way.FROM_GEMINI, "*", True, "an option that the protocol does not have (cachedContent, …)"),
    Loss(Way.TO_HANDLER, "prompt_cache_*", False, _SERVICE),
    Loss(Way.TO_HANDLER, "safety_identifier", False, _SERVICE),
    Loss(Way.TO_LOCAL, "audio", True, "the model reads and writes text"),
    Loss(Way.TO_LOCAL, "modalities", True, "the model reads and writes text"),
    Loss(Way.TO_LOCAL, "verbosity", True, _OUTPUT),
    Loss(Way.TO_LOCAL, "web_search_options", True, _HOSTED),
    Loss(Way.TO_LOCAL, "*", True, "an option that the engine does not have (top_a, min_tokens, functions, …)"),
)


def lost_in_call(item: Mapping[str, Any]) -> list[str]:
    """What the other protocols can't say of a call or its result."""
    # Nearly always, and calls are many.
    if "namespace" not in item and "caller" not in item and "async" not in item:
        return []
    return [name for key, name in _OF_CALLS.items() if item.get(key)]


def lost_in_tool(tool: Mapping[str, Any]) -> list[str]:
    """Which options of a function tool the other protocols don't have."""
    return [f"options of tools: {key}" for key, none in _HOSTING.items() if tool.get(key) and tool[key] != none]


def without_hosting(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool without these options."""
    return {name: value for name, value in tool.items() if name not in _HOSTING}


def lost_in_parts(parts: Iterable[Mapping[str, Any]], *, images: bool = True) -> Iterator[str]:
    """What the other protocols can't say of the parts of a message; of ``images`` only Chat Completions can."""
    for part in parts:
        if part.get("detail") not in (None, "auto"):
            if part["type"] == "input_file":
                yield FILE_DETAIL
            elif images:
                yield IMAGE_DETAIL
        if images and part.get(CACHE_BREAKPOINT):
            yield CACHE_BREAKPOINT


class LossError(UnsupportedContentError):
    """A request that can't be sent without changing what is generated."""


@cache
def find_loss(way: Way, name: str) -> Loss:
    """The first row that matches what a conversion left out."""
    return next(loss for loss in LOSSES if loss.way is way and loss.is_named(name))


class LossPolicy:
    """How one model server handles losses."""

    def __init__(self, on_loss: OnLoss = "error") -> None:
        self._on_loss = on_loss
        self._logged: set[tuple[Way, str]] = set()

    def check(self, way: Way, names: Iterable[str]) -> None:
        """Raise ``LossError`` for what must not be lost, and log the rest once."""
        if self._on_loss == "ignore":
            return
        losses = {name: find_loss(way, name) for name in names}
        if self._on_loss == "error":
            fatal = [f"{name} ({loss.why})" for name, loss in losses.items() if loss.changes_answer]
            if fatal:
                raise LossError(
                    f"{way.target} has no equivalent for {', '.join(fatal)}: leave it out, or set on_loss: warn"
                )
        for name in losses:
            if (way, name) not in self._logged:
                self._logged.add((way, name))
                logger.warning("%s has no equivalent for %s: it is left out", way.target, name)
