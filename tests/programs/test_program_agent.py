"""Programs as agents, from the task to the saved row: real processes, the real gateway, an endpoint that answers by rule."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.errors import ConfigError, RolloutError
from tests.programs.scripted_endpoint import ScriptedEndpoint, scripted_endpoint

ENVIRONMENT = """
import nemo_gym

environment = nemo_gym.Environment(tasks=[{"prompt": "Write hello into hello.txt", "workspace_files": {"given.txt": "g"}}])


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
    with client.responses.stream(model=os.environ["MODEL"], input=items, tools=[{"type": "function", **TOOL}]) as stream:
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
def collect(
    tmp_path: Path, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Collected]:
    """Collects one rollout of a program, given its code, and returns the saved row."""
    (tmp_path / "environment.py").write_text(ENVIRONMENT)
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")

    def run(code: str, *, way: str = "chat_completions", agent: str | None = None, **settings: Any) -> Collected:
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


@pytest.mark.parametrize("way", ["responses", "chat_completions"])
@pytest.mark.parametrize("name", PROGRAMS)
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
