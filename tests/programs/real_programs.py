"""Real programs from npm and PyPI, from the task to the row: ``make agents``. What is not installed is installed first.

Each writes a file by a tool call (aider and smolagents by what they say), on a Chat, a Responses and a token-id server;
and each is exposed to faults, whose class must be right. ``PROGRAMS=codex,aider`` in the environment limits them.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import nemo_gym
from nemo_gym.errors import RolloutError
from nemo_gym.io.files import user_cache
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.programs.installation import Installation
from nemo_gym.programs.keeper import processes_of
from nemo_gym.programs.program import Program, ready_made_programs
from nemo_gym.schemas.record import Record
from responses_api_models.vllm_model.tests.toy_engine import WORDS, ToyEngine
from tests.programs.scripted_endpoint import ScriptedEndpoint, scripted_endpoint, text_of
from tests.programs.test_program_agent import ENVIRONMENT

NAMES = [name for name in os.environ.get("PROGRAMS", "").split(",") if name] or ready_made_programs()
WITHOUT_CALLS = {"aider", "smolagents"}
Row = dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    for name in NAMES:
        program = Program(program=name)
        Installation.of(program.title, program.install, user_cache(os.environ)).install()


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with scripted_endpoint() as served:
        yield served


class RuledEngine(ToyEngine):
    """An engine with tokens that answers by the rule of the scripted endpoint."""

    rule = ScriptedEndpoint()
    tools: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__("vLLM", [], context=10_000_000)
        self.places: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        found = []
        for word in WORDS.findall(text):
            if word not in self.places:
                self.places[word] = len(self.words)
                self.words.append(word)
            found.append(self.places[word] + 1)
        return found

    def answer_v1_chat_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        tools = body.get("tools") or ()
        self.tools = {each["function"]["name"]: each["function"].get("parameters") or {} for each in tools}
        results = sum(message["role"] == "tool" for message in body["messages"])
        self._say([text_of(message.get("content")) for message in body["messages"]], results)
        return super().answer_v1_chat_completions(body)

    def answer_v1_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text = self.text(body["prompt"])
        self._say([text], text.count("<|im_start|>tool\n"))
        return super().answer_v1_completions(body)

    def _say(self, texts: list[str], results: int) -> None:
        message = self.rule.next_message(texts, self.tools, has_result=bool(results), results=results)
        calls = [
            {"name": call["function"]["name"], "parameters": json.loads(call["function"]["arguments"])}
            for call in message.get("tool_calls") or ()
        ]
        self.script[:] = [json.dumps(calls) if calls else message["content"]]


@contextmanager
def ruled_engine() -> Iterator[ToyEngine]:
    """The engine, served from a thread."""
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    served: list[ToyEngine] = []

    async def serve() -> None:
        engine = RuledEngine()
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", engine.handle)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        served.append(engine)
        started.set()
        await stop.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield served[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def collected(folder: Path, name: str, url: str, *, kind: str = "openai", settings: Any = None, **model: Any) -> Row:
    (folder / "environment.py").write_text(ENVIRONMENT)
    output = folder / "rollouts.jsonl"
    prefix = f"{name}.responses_api_agents.program_agent."
    nemo_gym.collect(
        str(folder / "environment.py"),
        agent=name,
        model=f"{kind}:scripted",
        base_url=url,
        api_key="no-key-is-needed",
        model_settings=model,
        settings={prefix + key: value for key, value in {"patience_s": 10, **(settings or {})}.items()},
        output=output,
        patience_s=0.5,
    )
    return dict(json.loads(output.read_text()))


@pytest.mark.parametrize("way", ["responses", "chat_completions", "tokens"])
@pytest.mark.parametrize("name", NAMES)
def test_it_writes_a_file_and_is_scored(name: str, way: str, tmp_path: Path, endpoint: ScriptedEndpoint) -> None:
    if way == "tokens":
        with ruled_engine() as engine:
            row = collected(tmp_path, name, f"{engine.url}/v1", kind="vllm", return_token_id_information=True)
        items = Record(row).items
        assert check_continuity(items).ok
        trained = [item for item in items if "generation_token_ids" in item]
        others = [item for trace in row.get("traces", [])[1:] for item in trace["output"]]
        assert len(trained) + sum("generation_token_ids" in item for item in others) == row["program"]["calls"]
    else:
        row = collected(tmp_path, name, endpoint.url, endpoint=way)
    program = row["program"]
    used = f"{program['seconds']:5.1f} s {program['cpu_s']:4.1f} s CPU {program['peak_mb']:6.0f} MB"
    print(f"{name:15} {way:17} {used}")  # noqa: T201 - the figures of the page
    assert row["reward"] == 1.0
    assert "refused" not in program
    if name not in WITHOUT_CALLS:
        assert any(item["type"] == "function_call" for item in row["response"]["output"])


# ---- faults ----------------------------------------------------------------------------------------------------------
def status(code: int) -> Callable[[], web.Response]:
    return lambda: web.json_response({"error": {"message": "no", "type": "server_error"}}, status=code)


HOG = "import time; held = bytearray(2 << 30); time.sleep(600)"
BAD_REQUEST = """
import json, os, sys, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(os.environ["NG_BASE"] + "/chat/completions", b'{"messages": 5}', {
        "Authorization": "Bearer " + os.environ["NG_KEY"], "Content-Type": "application/json"}))
except OSError:
    pass
"""
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "the endpoint fails from the start": ({"broken": 500, "timeout_s": 45}, "model_error"),
    "the endpoint fails after the first answer": ({"faults": [None], "broken": 500, "timeout_s": 45}, "model_error"),
    "the endpoint is overloaded": ({"broken": 429, "timeout_s": 45}, "rate_limited"),
    "it does not start": ({"wrap": "echo broken >&2; exit 1"}, "agent_start"),
    "it hangs before it asks": ({"wrap": "sleep 600", "timeout_s": 2}, "agent_start"),
    "it hangs afterwards": ({"wrap": '"$@"; sleep 600', "timeout_s": 45}, "agent_timeout"),
    "the endpoint hangs": ({"delay_s": 120, "timeout_s": 30}, "agent_timeout"),
    "it needs too much memory": (
        {"wrap": '"$@"; python3 -c "x = bytearray(3 << 30); input()"', "memory_mb": 2000},
        "agent_memory",
    ),
    "it sends nonsense": ({"wrap": '"$@"; python3 -c "$NG_NONSENSE"'}, "gateway_refused"),
    "it ends with an error": ({"wrap": '"$@"; exit 9'}, "agent_crash"),
    "it is killed": ({"wrap": '"$@"; kill -9 $$'}, "agent_crash"),
    "its answer is missing": ({"final_answer": "file:no-such-file.txt"}, "agent_crash"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_has_its_class(
    name: str, fault: str, tmp_path: Path, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")
    given, kind = FAULTS[fault]
    settings = dict(given)
    failures, broken = tmp_path / "rollouts_failures.jsonl", settings.pop("broken", None)
    if broken is not None:  # until the first attempt has failed
        endpoint.broken = lambda: None if failures.is_file() and failures.stat().st_size else status(broken)()
    endpoint.faults, endpoint.delay_s = list(settings.pop("faults", [])), settings.pop("delay_s", 0.0)
    if script := settings.pop("wrap", None):
        settings["command"] = ["sh", "-c", script, "program", *Program(program=name).command]
        settings |= {"env.NG_BASE": "{base_url}", "env.NG_KEY": "{api_key}", "env.NG_NONSENSE": BAD_REQUEST}
    with nullcontext() if broken else pytest.raises(RolloutError):
        collected(tmp_path, name, endpoint.url, endpoint="chat_completions", settings={"patience_s": 1, **settings})
    failed = json.loads(failures.read_text().splitlines()[0])
    assert failed["_ng_failure_class"] == kind, failed["error_message"]
    assert ("_ng_owed" in failed) == (broken is not None)  # such a failure uses up no attempt
    assert not list(processes_of("HOME", str(tmp_path)))
