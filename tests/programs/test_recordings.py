"""What real programs sent is answered without a refusal, and in a form that their own SDKs read."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, get_args

import aiohttp
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.capture.traces import complete, references
from nemo_gym.servers.attempts import OpenedAttempt, open_attempt
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.middleware.rollout_scope import mark_of_program, mark_rollout
from tests.programs.record import openai_server
from tests.programs.recordings import FOLDER, Recorded, Recording, read_recordings
from tests.programs.scripted_model import ScriptedEngine, ScriptedModel, scripted_endpoint
from tests.servers.models.test_long_conversations import vllm

RECORDINGS = list(read_recordings())
EACH = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda each: f"{each.program}-{each.version}")


async def replay(attempt: OpenedAttempt, requests: list[Recorded]) -> list[tuple[Recorded, int, bytes]]:
    """Send the requests of a recording one after the other."""
    answers = []
    async with aiohttp.ClientSession() as session:
        for request in requests:
            headers = {**request.headers, "Authorization": f"Bearer {attempt.api_key}"}
            address = attempt.root_url + request.path
            async with session.post(address, json=request.body, headers=headers) as reply:
                answers.append((request, reply.status, await reply.read()))
    return answers


def events_of(content: bytes) -> Iterator[Any]:
    for line in content.splitlines():
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield json.loads(line[6:])


OPENAI_EVENTS = {
    name: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
    for name in get_args(kind.model_fields["type"].annotation)
}
# What the newest type of OpenAI requires and its client does not insist on.
OPTIONAL = "cache_write_tokens"


def sdk_type(request: Recorded, value: Any) -> Any:
    """The type by which the protocol's own SDK reads an answer, or an event of it; None if it is not at hand."""
    path, streams = request.path.partition("?")[0], request.body.get("stream")
    if path.endswith("/responses"):
        return OPENAI_EVENTS[value["type"]] if streams else Response
    if path.endswith("/chat/completions"):
        return ChatCompletionChunk if streams else ChatCompletion
    with suppress(ImportError):
        if path.endswith("/messages"):
            from anthropic import types

            return types.RawMessageStreamEvent if streams else types.Message
        if "enerateContent" in path:
            from google.genai.types import GenerateContentResponse

            return GenerateContentResponse
    return None


def read_as_sdk(request: Recorded, content: bytes) -> None:
    """Read an answer with the types of the protocol's own SDK."""
    values = (
        list(events_of(content)) if request.body.get("stream") or "alt=sse" in request.path else [json.loads(content)]
    )
    assert values
    for value in values:
        kind = sdk_type(request, value)
        assert kind is None or faults(kind, value) == []


@cache
def reader_of(kind: Any) -> Any:
    return TypeAdapter(kind)


def faults(kind: Any, value: Any) -> list[Any]:
    try:
        reader_of(kind).validate_python(value)
    except ValidationError as error:
        return [one for one in error.errors() if one["loc"][-1] != OPTIONAL]
    return []


def test_the_recordings_are_of_many_programs_and_tell_nothing_of_a_machine() -> None:
    requests = [request for recording in RECORDINGS for request in recording.requests]
    assert len(requests) >= 200
    assert len({recording.program for recording in RECORDINGS}) >= 8
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1 << 21
    text = json.dumps(requests)
    assert set(re.findall(r"(?<![\w.])/(?:root|home|work|Users)/[\w./-]*", text)) <= ALLOWED
    assert not re.search(r"sk-[A-Za-z0-9]{20}|ng-[A-Za-z0-9_-]{28,}", text)


# Examples in the prompts of the programs themselves.
ALLOWED = {"/Users/name/My", "/home/user/project/file.txt"}


@EACH
async def test_every_request_is_answered_and_readable(recording: Recording) -> None:
    async with scripted_endpoint(ScriptedModel()) as url, host_gym(openai_server(url)) as gym:
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        for request, status, content in await replay(attempt, recording.requests):
            assert status == request.status == 200 or request.status >= 400, content[:1000]
            if status == 200:
                read_as_sdk(request, content)
        report = await attempt.close()
        assert report.refused == []
        assert report.disagreements == []
        calls = check_owners(gym, report)[1]
        if recording.program.partition("+")[0] in ("codex", "claude-code"):
            check_lineage(calls, is_summed_up="compaction" in recording.program)


def check_lineage(calls: list[dict[str, Any]], *, is_summed_up: bool) -> None:
    """What continues what is what the headers of the program say."""
    threads = {call["id"]: call["notes"]["thread"] for call in calls}
    windows = {call["id"]: call["notes"].get("window") for call in calls}
    seen: dict[str, str] = {}
    for call in calls:
        thread, parent = threads[call["id"]], call["parent"]
        if parent is not None:
            assert threads[parent] == thread, "a call continues one of its own thread"
            assert windows[parent] == windows[call["id"]]
        elif thread in seen:
            assert call["notes"]["follows"] == seen[thread], "a thread that begins anew follows its last call"
            assert is_summed_up
        seen[thread] = call["id"]


# The newest of each program, because they are read in the order of their versions.
NEWEST = {recording.program: recording for recording in RECORDINGS}.values()


@pytest.mark.parametrize("recording", NEWEST, ids=lambda each: each.program)
async def test_every_sampled_token_of_a_program_has_one_owner(recording: Recording) -> None:
    engine, requests = ScriptedEngine(), recording.requests[:25]
    async with (
        scripted_endpoint(engine) as url,
        host_gym(vllm(url, return_token_id_information=True, on_policy_correction=False)) as gym,
    ):
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        answers = await replay(attempt, requests)
        assert [status for _, status, _ in answers] == [request.status for request in requests]
        report = await attempt.close()
        row = check_owners(gym, report)[0]
        owned = [item["generation_token_ids"] for item in items_of(row) if "generation_token_ids" in item]
        assert sorted(owned) == sorted(engine.sampled)


def items_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a row, those of its traces included."""
    traces = [item for trace in row.get("traces", []) for item in trace.get("output", [])]
    return [*row["response"]["output"], *traces]


def check_owners(gym: Gym, report: AttemptReport) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of an attempt and its calls, each of which is in exactly one place."""
    row: dict[str, Any] = {"response": report.response}
    calls = gym.client.calls.take(mark_of_program(), references(row))
    main = references(row)
    assert len(calls) == report.answered
    assert len(main) == len(set(main))
    complete(row, calls)
    assert "_ng_lost_calls" not in row
    return row, calls
