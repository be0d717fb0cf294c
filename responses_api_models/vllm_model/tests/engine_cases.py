"""The cases that every engine is tested with, through our model servers, and their expected results.

The same cases run against real engines (``make engines``) and, in the ordinary tests, against recordings of them. A
case returns a few words for the table, or raises ``AssertionError``. Properties of the engine itself (whether it obeys
``tool_choice``) are reported, not asserted.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx

from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.conversion.completion_tokens import UNTRUNCATED
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.server_utils import ServerClient
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.vllm_model.app import VLLMModel
from responses_api_models.vllm_model.settings import VLLMModelConfig

MODEL: Final = "smol"
ADD: Final = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
QUESTION: Final = {"role": "user", "content": "What is 2 plus 3?"}
UNSUPPORTED: Final = "no token ids"
OWN: Final = {"host": "", "port": 0, "entrypoint": "", "name": "policy_model", "max_retries": 2}

Case = Callable[[str, str], Awaitable[str]]


def vllm_model(url: str, model: str, **settings: Any) -> VLLMModel:
    given = {"base_url": url, "api_key": "none", "model": model, "uses_reasoning_parser": True}
    config = VLLMModelConfig(**OWN | given | {"return_token_id_information": False} | settings)
    return VLLMModel(config=config, server_client=ServerClient.detached())


def openai_model(url: str, model: str, **settings: Any) -> OpenAIModel:
    given = {"openai_base_url": url, "openai_api_key": "none", "openai_model": model}
    return OpenAIModel(config=OpenAIModelConfig(**OWN | given | settings), server_client=ServerClient.detached())


async def ask(server: SimpleResponsesAPIModel, path: str = "/v1/responses", **body: Any) -> httpx.Response:
    transport = httpx.ASGITransport(server.setup_webserver(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://model", timeout=600) as client:
        return await client.post(path, json=body)


async def answered(server: SimpleResponsesAPIModel, **body: Any) -> dict[str, Any]:
    got = await ask(server, **body)
    assert got.status_code == 200, got.text[:500]
    response: dict[str, Any] = got.json()
    return response


def text_of(response: Mapping[str, Any]) -> str:
    said = [part for item in response["output"] for part in item.get("content") or ()]
    return "".join(part.get("text", "") for part in said)


async def text(url: str, model: str) -> str:
    """Text is answered through Chat Completions and through the Responses API."""
    asked = {"input": [QUESTION], "max_output_tokens": 24, "temperature": 0.0}
    by_chat = await answered(vllm_model(url, model), **asked)
    assert text_of(by_chat)
    assert by_chat["usage"]["output_tokens"] > 0
    got = await ask(openai_model(url, model), **asked)
    return "both protocols" if got.status_code == 200 and text_of(got.json()) else "Chat Completions"


async def tools(url: str, model: str) -> str:
    """A model may answer or call a tool; its calls are well-formed."""
    response = await answered(
        vllm_model(url, model), input=[QUESTION], tools=[ADD], max_output_tokens=32, temperature=0.0
    )
    kinds = [item["type"] for item in response["output"]]
    assert set(kinds) <= {"message", "function_call", "reasoning"}
    return "offered"


async def forced_tools(url: str, model: str) -> str:
    """Whether the engine obeys ``tool_choice: required``."""
    asked = {"tools": [ADD], "tool_choice": "required", "max_output_tokens": 64, "temperature": 0.0}
    got = await ask(vllm_model(url, model), input=[QUESTION], **asked)
    if got.status_code != 200:
        return f"refused ({got.json()['error']['type']})"
    calls = [item for item in got.json()["output"] if item["type"] == "function_call"]
    for call in calls:
        json.loads(call["arguments"])
    return "obeyed" if calls else "ignored by the engine"


async def streams(url: str, model: str) -> str:
    """An endpoint that streams is read to the end."""
    server = openai_model(url, model, endpoint="chat_completions", extra_body={"stream": True})
    response = await answered(server, input=[QUESTION], max_output_tokens=16, temperature=0.0)
    assert text_of(response)
    return "read to the end"


async def several_turns(url: str, model: str, *, corrected: bool) -> tuple[list[dict[str, Any]], str]:
    """The items of a conversation that begins with a forced call, with their tokens; or why they have none."""
    server = vllm_model(url, model, return_token_id_information=True, on_policy_correction=corrected)
    history: list[dict[str, Any]] = [QUESTION]
    output: list[dict[str, Any]] = []
    for turn, choice in enumerate(("required", "auto", "auto")):
        extra = {"metadata": {"extra_body": json.dumps({"seed": turn})}}
        asked = {"tools": [ADD], "tool_choice": choice, "max_output_tokens": 40, "temperature": 1.3, **extra}
        got = await ask(server, input=history, **asked)
        if got.status_code != 200:
            return [], str(got.json()["error"]["message"])
        items = got.json()["output"]
        last = items[-1]
        assert len(last["prompt_token_ids"]) == got.json()["usage"]["input_tokens"]
        assert len(last["generation_token_ids"]) == len(last["generation_log_probs"]) > 0
        output += items
        history += items
        call = last if last["type"] == "function_call" else None
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"} if call else None
        history.append(result or {"role": "user", "content": "Go on."})
    return output, ""


async def token_ids(url: str, model: str) -> str:
    """With correction, the turns after a forced call are one sequence of tokens."""
    output, reason = await several_turns(url, model, corrected=True)
    if not output:
        assert "token" in reason or "log-prob" in reason, reason
        return UNSUPPORTED
    found = check_continuity(output)
    assert found.ok, found.breaks
    return f"{found.calls} turns are one sequence"


async def prompt_options(url: str, model: str) -> str:
    """Options that change the prompt also change the recorded ids."""
    lengths = []
    for more in ({}, {"reasoning": {"effort": "high"}}, {"truncate": 16}):
        extra = {"truncate_prompt_tokens": more["truncate"]} if "truncate" in more else {}
        server = vllm_model(url, model, return_token_id_information=True, extra_body=extra)
        asked = {name: value for name, value in more.items() if name == "reasoning"}
        got = await ask(server, input=[QUESTION], tools=[ADD], max_output_tokens=4, **asked)
        if got.status_code != 200:
            return UNSUPPORTED
        lengths.append(len(got.json()["output"][-1]["prompt_token_ids"]))
        assert lengths[-1] == got.json()["usage"]["input_tokens"]
    plain, effort, truncated = lengths
    return f"{plain} ids; effort: {effort}; truncated: {truncated}"


async def uncorrected_token_ids(url: str, model: str) -> str:
    """Without correction, the turns may not be one sequence, and the check detects that."""
    output, _ = await several_turns(url, model, corrected=False)
    if not output:
        return UNSUPPORTED
    breaks = check_continuity(output).breaks
    return f"breaks at turn {breaks[0].turn} ({breaks[0].reason})" if breaks else "no break this time"


async def split_characters(url: str, model: str) -> str:
    """Characters of several tokens are recorded with all of them, or the answer is refused."""
    return await completely(url, model, input="Repeat: \U0001f600 \u6f22 \U0001f984 \U0001f600", max_output_tokens=24)


async def stop_strings(url: str, model: str) -> str:
    """The tokens of a stop string were generated, so they are recorded, or the answer is refused."""
    return await completely(url, model, input=[QUESTION], stop=["."], max_output_tokens=60)


async def completely(url: str, model: str, **asked: Any) -> str:
    server = vllm_model(url, model, return_token_id_information=True)
    got = await ask(server, temperature=0.0, **asked)
    if got.status_code != 200:
        return "refused" if "generated tokens, but" in got.json()["error"]["message"] else UNSUPPORTED
    assert len(got.json()["output"][-1]["generation_token_ids"]) == got.json()["usage"]["output_tokens"]
    return "all tokens"


async def log_probs(url: str, model: str) -> str:
    """What the log-probabilities of free and of forced answers are."""
    server = vllm_model(url, model, return_token_id_information=True)
    found = []
    for choice in ("auto", "required"):
        got = await ask(server, input=[QUESTION], tools=[ADD], tool_choice=choice, max_output_tokens=8)
        if got.status_code != 200:
            return UNSUPPORTED
        sampling = got.json()["output"][-1]["generation_sampling"]
        assert UNTRUNCATED.items() <= sampling.items()
        found.append(sampling["log_probs"])
    return f"{found[0]}; forced: {found[1]}"


async def truncation(url: str, model: str) -> str:
    """An answer that ends at its limit is incomplete, in both protocols."""
    asked = {"input": "Tell me a long story.", "max_output_tokens": 5, "temperature": 0.0}
    by_chat = await answered(vllm_model(url, model), **asked)
    assert by_chat["incomplete_details"] == {"reason": "max_output_tokens"}
    got = await ask(openai_model(url, model), **asked)
    if got.status_code != 200:
        return "recognised (Chat Completions)"
    assert got.json()["incomplete_details"] == {"reason": "max_output_tokens"}
    return "recognised"


async def errors(url: str, model: str) -> str:
    """An invalid request is refused and is not mistaken for a prompt that is too long."""
    server = vllm_model(url, model)
    got = await ask(server, "/v1/chat/completions", messages=[QUESTION], max_tokens=-5)
    if got.status_code == 200:
        return "max_tokens: -5 is accepted by the engine"
    assert got.json()["error"]["type"] in ("rejected", "model_error"), got.text
    return got.json()["error"]["type"].replace("_", " ")


async def long_prompts(url: str, model: str) -> str:
    """A prompt that does not fit ends the rollout with an empty, incomplete answer."""
    got = await ask(vllm_model(url, model), input="word " * 6000, max_output_tokens=5)
    if got.status_code != 200:
        return f"error ({got.json()['error']['type']})"
    assert got.json()["incomplete_details"] == {"reason": "max_output_tokens"}
    return "empty and incomplete" if not text_of(got.json()) else "accepted by the engine"


CASES: Final[Mapping[str, Case]] = {
    "text": text,
    "tools": tools,
    "forced tools": forced_tools,
    "streams": streams,
    "token ids": token_ids,
    "token ids, uncorrected": uncorrected_token_ids,
    "options that change a prompt": prompt_options,
    "characters of several tokens": split_characters,
    "stop strings": stop_strings,
    "log-probabilities": log_probs,
    "truncation": truncation,
    "errors": errors,
    "prompts that are too long": long_prompts,
}
