"""Programs as agents, from the task to the row: real processes, the real gateway, an endpoint that answers by rule."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import nemo_gym
from nemo_gym.errors import ConfigError, RolloutError
from tests.programs.scripted_endpoint import ScriptedEndpoint, scripted_endpoint

ENVIRONMENT = """
import nemo_gym

environment = nemo_gym.Environment(tasks=[{"prompt": "Write hello into hello.txt"}])


@environment.verify
def verify(task, response):
    files = task.get("workspace", {}).get("files", {})
    return {"reward": float(files.get("hello.txt", "").strip() == "hello"), "said": response.text}
"""

TOOLS = """
import json, os, subprocess, sys
TOOL = {"name": "shell", "description": "Run a command.", "parameters": {"type": "object",
        "properties": {"command": {"type": "string"}}, "required": ["command"]}}
def shell(arguments):
    return subprocess.run(arguments["command"], shell=True, capture_output=True, text=True).stdout or "ok"
"""

PROGRAMS = {
    "chat": """
import openai
client, messages = openai.OpenAI(max_retries=0), [{"role": "user", "content": sys.argv[1]}]
while True:
    said = client.chat.completions.create(
        model=os.environ["MODEL"], messages=messages, tools=[{"type": "function", "function": TOOL}]).choices[0].message
    messages.append(said.model_dump(exclude_none=True))
    if not said.tool_calls:
        break
    for call in said.tool_calls:
        result = shell(json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(said.content)
""",
    "responses": """
import openai
client, items = openai.OpenAI(max_retries=0), [{"role": "user", "content": sys.argv[1]}]
while True:
    tools = [{"type": "function", **TOOL}]
    with client.responses.stream(model=os.environ["MODEL"], input=items, tools=tools) as stream:
        response = stream.get_final_response()
    items += [item.model_dump(exclude_none=True) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": shell(json.loads(call.arguments))}
              for call in calls]
print(response.output_text)
""",
    "messages": """
import anthropic
client, messages = anthropic.Anthropic(max_retries=0), [{"role": "user", "content": sys.argv[1]}]
tool = {"name": "shell", "description": "Run a command.", "input_schema": TOOL["parameters"]}
while True:
    with client.messages.stream(model=os.environ["MODEL"], max_tokens=500, messages=messages, tools=[tool]) as stream:
        said = stream.get_final_message()
    messages.append({"role": "assistant", "content": [part.model_dump(exclude_none=True) for part in said.content]})
    calls = [part for part in said.content if part.type == "tool_use"]
    if not calls:
        break
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": shell(call.input)} for call in calls]})
print(said.content[-1].text)
""",
}

SETTINGS = """
command: [python, "{home}/agent.py", "{prompt}"]
env: {OPENAI_BASE_URL: "{base_url}", OPENAI_API_KEY: "{api_key}", ANTHROPIC_BASE_URL: "{root_url}",
      ANTHROPIC_API_KEY: "{api_key}", MODEL: "{model}", DEADLINE: "{deadline}"}
"""

Collected = dict[str, Any]


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with scripted_endpoint() as served:
        yield served


@pytest.fixture
def collect(tmp_path: Path, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Collected]:
    """Collects one rollout of a program, given its code, and returns the saved row."""
    (tmp_path / "environment.py").write_text(ENVIRONMENT)
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")

    def run(
        code: str, *, way: str = "chat_completions", agent: str | None = None, tasks: Any = None, **settings: Any
    ) -> Collected:
        if agent is None:
            indented = "".join(f"    {line}\n" for line in (TOOLS + code).splitlines())
            more = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
            (tmp_path / "mine.yaml").write_text(f"{SETTINGS}{more}files:\n  ~/agent.py: |\n{indented}")
            agent = str(tmp_path / "mine.yaml")
        output = tmp_path / "rollouts.jsonl"
        nemo_gym.collect(
            str(tmp_path / "environment.py"),
            model="openai:scripted",
            base_url=endpoint.url,
            api_key="the-key-of-the-endpoint",
            model_settings={"endpoint": way},
            agent=agent,
            output=output,
            tasks=tasks,
            patience_s=0.5,
        )
        (line,) = output.read_text().splitlines()
        return dict(json.loads(line))

    return run


def failure(collect: Callable[..., Collected], tmp_path: Path, code: str, **settings: Any) -> Collected:
    with pytest.raises(RolloutError):
        collect(code, **settings)
    lines = (tmp_path / "rollouts_failures.jsonl").read_text().splitlines()
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize(
    ("name", "way"), [("chat", "responses"), ("responses", "chat_completions"), ("messages", "chat_completions")]
)
def test_a_program_works_and_is_scored(collect: Callable[..., Collected], name: str, way: str) -> None:
    row = collect(PROGRAMS[name], way=way)
    assert row["reward"] == 1.0
    assert [item["type"] for item in row["response"]["output"]] == ["function_call", "function_call_output", "message"]
    assert row["said"] == "The file is written."
    assert row["response"]["usage"]["output_tokens"] == 10
    assert (row["program"]["name"], row["program"]["exit_code"], row["program"]["calls"]) == ("mine", 0, 2)
    assert row["workspace"]["diff"].startswith("--- /dev/null\n+++ b/hello.txt")
    assert "the-key-of-the-endpoint" not in json.dumps(row)
    assert "refused" not in row["program"]


# ---- failures --------------------------------------------------------------------------------------------------------
ASK = """
import os, sys, time, json, urllib.request
def ask(path="/chat/completions", **more):
    body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}], **more}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
"""


def fails_with(status: int) -> Callable[[], web.Response]:
    return lambda: web.json_response({"error": {"message": "no", "type": "server_error"}}, status=status)


FAULTS = {
    "print('no idea', file=sys.stderr); sys.exit(1)": (
        "agent_start",
        "it wrote: no idea",
    ),
    "pass": ("agent_start", "exit code 0 without a call"),
    "time.sleep(600)": ("agent_start", "SIGTERM"),
    "ask(); time.sleep(600)": ("agent_timeout", "not ready after 4 s"),
    "ask(); held = bytearray(200 << 20); time.sleep(600)": ("agent_memory", "100 MB are allowed"),
    "ask(); sys.exit('key ' + os.environ['OPENAI_API_KEY'])": ("agent_crash", "exit code 1; it wrote: key ****"),
    "ask(); os.kill(os.getpid(), 11)": ("agent_crash", "SIGSEGV"),
    "ask()\ntry: ask(messages='none')\nexcept Exception: pass": ("gateway_refused", "/chat/completions"),
}


def test_failures_are_named_by_what_was_seen(collect: Callable[..., Collected], tmp_path: Path) -> None:
    tasks = [{"prompt": code} for code in FAULTS]
    failure(collect, tmp_path, ASK + "exec(sys.argv[1])", tasks=tasks, timeout_s=4, memory_mb=100)
    failed = [json.loads(line) for line in (tmp_path / "rollouts_failures.jsonl").read_text().splitlines()]
    found = {line["_ng_task_index"]: line for line in failed}
    for number, (kind, message) in enumerate(FAULTS.values()):
        assert found[number]["_ng_failure_class"] == kind, found[number]
        assert message in found[number]["error_message"]
        assert "_ng_owed" not in found[number]


def test_an_endpoint_that_fails_last_uses_up_no_attempt(
    collect: Callable[..., Collected], tmp_path: Path, endpoint: ScriptedEndpoint
) -> None:
    endpoint.faults = [fails_with(500)] * 100
    failed = failure(collect, tmp_path, ASK + "ask()", patience_s=0.2)
    assert failed["_ng_failure_class"] == "model_error"
    assert failed["_ng_owed"] is True


def test_an_endpoint_that_recovers_is_not_noticed(
    collect: Callable[..., Collected], endpoint: ScriptedEndpoint
) -> None:
    endpoint.faults = [fails_with(503), fails_with(503)]
    row = collect(ASK + "ask(); open('hello.txt', 'w').write('hello')")
    assert row["reward"] == 1.0


def test_work_that_is_not_finished_is_scored_on_request(collect: Callable[..., Collected]) -> None:
    code = ASK + "ask(); open('hello.txt', 'w').write('hello'); time.sleep(600)"
    row = collect(code, timeout_s=2, verify_unfinished=True)
    assert row["reward"] == 1.0
    assert "not ready after 2 s" in row["program"]["unfinished"]


def test_the_program_is_told_its_deadline_and_sees_nothing_of_ours(
    collect: Callable[..., Collected], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COLLECTOR", "hunter2")
    code = "ask(); print(json.dumps([float(os.environ['DEADLINE']) - time.time(), sorted(os.environ), os.listdir()]))"
    tasks = [{"prompt": "look", "workspace_files": {"given.txt": "g"}}]
    row = collect(ASK + code, timeout_s=77, final_answer="json:", tasks=tasks)
    left, names, files = json.loads(row["said"])
    assert 70 < left <= 78
    assert "SECRET_OF_THE_COLLECTOR" not in names
    assert files == ["given.txt"]


MCP_ENVIRONMENT = """
import nemo_gym

environment = nemo_gym.Environment(tasks=[{"prompt": "p", "letter": "a"}, {"prompt": "p", "letter": "b"}])


@environment.setup
def setup(task):
    return {"letter": task["letter"], "asked": 0}


@environment.tool
def letter(state: dict) -> str:
    "The letter of this rollout."
    state["asked"] += 1
    return state["letter"]


@environment.verify
def verify(task, response, state):
    return {"reward": float(task["letter"] in response.text), "asked": state["asked"]}
"""
MCP_PROGRAM = """
ask()
def rpc(method, **params):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(os.environ["MCP"], body, headers)))["result"]
assert [tool["name"] for tool in rpc("tools/list")["tools"]] == ["letter"]
print(rpc("tools/call", name="letter", arguments={})["content"][0]["text"])
"""


@pytest.mark.parametrize("where", ["host", "sandbox"])
def test_tools_come_by_an_address_of_the_rollout(
    tmp_path: Path, endpoint: ScriptedEndpoint, where: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("mcp")
    if where == "sandbox":
        request.getfixturevalue("namespaces")
    (tmp_path / "environment.py").write_text(MCP_ENVIRONMENT)
    indented = "".join(f"    {line}\n" for line in (ASK + MCP_PROGRAM).splitlines())
    more = 'with_tools: {env: {MCP: "{mcp_url}"}}\nfinal_answer: stdout\n'
    (tmp_path / "mine.yaml").write_text(f"{SETTINGS}{more}files:\n  ~/agent.py: |\n{indented}")
    run = nemo_gym.collect(
        str(tmp_path / "environment.py"),
        model="openai:scripted",
        base_url=endpoint.url,
        api_key="none",
        model_settings={"endpoint": "chat_completions"},
        agent=str(tmp_path / "mine.yaml"),
        settings={
            "environment.resources_servers.environment_file.expose_tools_over_mcp": True,
            "mine.responses_api_agents.program_agent.where": where,
        },
    )
    assert sorted((rollout.reward, rollout.fields["asked"]) for rollout in run) == [(1.0, 1), (1.0, 1)]


# ---- functions -------------------------------------------------------------------------------------------------------
FUNCTION = """
import pathlib

async def solve(task, session):
    client = session.openai()
    reply = await client.chat.completions.create(
        model=session.model, messages=[{"role": "user", "content": task["prompt"]}])
    (session.workspace / "hello.txt").write_text("hello")
    return "mine: " + reply.choices[0].message.content

async def breaks(task, session):
    await session.anthropic().messages.create(
        model=session.model, max_tokens=10, messages=[{"role": "user", "content": "hello"}])
    raise ValueError("not today")
"""


def test_a_function_brings_a_client_of_its_own(collect: Callable[..., Collected], tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(FUNCTION)
    row = collect("", agent=f"{tmp_path / 'my_agent.py'}:solve")
    assert (row["reward"], row["said"]) == (1.0, "mine: The file is written.")
    assert row["program"]["protocols"] == ["chat"]


def test_what_a_function_raises_is_in_the_failure(collect: Callable[..., Collected], tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(FUNCTION)
    failed = failure(collect, tmp_path, "", agent=f"{tmp_path / 'my_agent.py'}:breaks")
    assert (failed["_ng_failure_class"], failed["_ng_http_status"]) == ("agent_crash", 500)
    assert "ValueError: not today" in failed["error_message"]


def test_a_function_that_is_not_there_is_answered_with_the_nearest(
    collect: Callable[..., Collected], tmp_path: Path
) -> None:
    (tmp_path / "my_agent.py").write_text(FUNCTION)
    with pytest.raises(ConfigError) as caught:
        collect("", agent=f"{tmp_path / 'my_agent.py'}:solv")
    assert caught.value.hint == "did you mean solve?"


def test_a_program_that_is_not_installed_says_how_to_install_it(collect: Callable[..., Collected]) -> None:
    with pytest.raises(ConfigError, match="mine is not installed: pip:no-such-thing") as caught:
        collect("", install=["pip:no-such-thing==1.0"])
    assert "ng_prefetch" in (caught.value.hint or "")
