"""Records what real programs send: runs them headless against a model server whose endpoint follows a script.

    python -m tests.programs.record FOLDER_OF_PROGRAMS NAME...

Writes one file for each program and version below ``recordings``. Nothing of this machine is kept in it: paths, ids and
keys are replaced.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from omegaconf import OmegaConf

from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.servers.attempts import OpenedAttempt, open_attempt
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from tests.ports import free_port
from tests.programs.recordings import Recorded, without_machine, write_recording
from tests.programs.scripted_model import ScriptedModel, scripted_endpoint

KEPT_HEADERS = re.compile(r"^(anthropic-.*|x-claude-code-.*|x-codex-.*|user-agent|x-goog-api-client)$")
PROMPT = "Write the word hello into hello.txt with a tool, then say that you are done."
DEADLINE_S = 150


@dataclass(frozen=True)
class Program:
    """How to run a program; ``{...}`` are filled in."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    last_command: str = ""
    full_at: int | None = None


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
AIDER_EDIT = "hello.txt\n```\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n```\n"
CODEX_OPTIONS = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--ephemeral"]
CODEX = """model = "scripted"
model_provider = "gym"
[model_providers.gym]
name = "gym"
base_url = "{base_url}"
env_key = "GYM_KEY"
wire_api = "responses"
"""
OPENCODE = """{"provider": {"gym": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{base_url}", "apiKey":
"{api_key}"}, "models": {"scripted": {}}}}, "model": "gym/scripted", "small_model": "gym/scripted"}"""
OPENAI = {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_BASE": "{base_url}", "OPENAI_API_KEY": "{api_key}"}
AIDER_OPTIONS = ["--model", "openai/scripted", "--yes-always", "--no-git", "--no-check-update", "--edit-format", "diff"]
AIDER_OPTIONS += ["--no-show-model-warnings", "--no-analytics"]
RUN = """import subprocess, sys
def run(command: str) -> str:
    \"\"\"Run a command.

    Args:
        command: The command for bash.
    \"\"\"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr
"""
SMOLAGENTS = f"""{RUN}
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
import os
model = OpenAIServerModel("scripted", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
print(ToolCallingAgent([tool(run)], model, planning_interval=4).run(sys.argv[1]))
"""
OPENAI_AGENTS = f"""{RUN}
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)
second = Agent("second", model="scripted", tools=[function_tool(run)])
tools = [function_tool(run), second.as_tool("ask_second", "Asks another agent.")]
agent = Agent("first", model="scripted", instructions="Use tools.", tools=tools, handoffs=[second])
print(Runner.run_sync(agent, sys.argv[1], max_turns=30).final_output)
"""
LANGGRAPH = f"""{RUN}
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
agent = create_react_agent(ChatOpenAI(model="scripted", streaming=True), [run])
print(agent.invoke({{"messages": [("user", sys.argv[1])]}}, {{"recursion_limit": 60}})["messages"][-1].content)
"""
PYDANTIC_AI = f"""{RUN}
from pydantic_ai import Agent
agent = Agent("openai-chat:scripted", instructions="Use tools.", tools=[run])
print(agent.run_sync(sys.argv[1]).output)
other = Agent("openai-responses:scripted", instructions="Use tools.", tools=[run])
print(other.run_sync(sys.argv[1]).output)
"""
PROGRAMS = {
    "codex": Program(
        [
            "{bin}/codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "--ephemeral",
            "{prompt}",
        ],
        {"CODEX_HOME": "{home}/.codex", "GYM_KEY": "{api_key}"},
        {".codex/config.toml": CODEX},
    ),
    "claude-code": Program(
        ["{bin}/claude", "-p", "{prompt}", "--output-format", "json", "--dangerously-skip-permissions"],
        {
            "ANTHROPIC_BASE_URL": "{root_url}",
            "ANTHROPIC_API_KEY": "{api_key}",
            "ANTHROPIC_MODEL": "scripted",
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
        },
    ),
    "opencode": Program(
        ["{bin}/opencode", "run", "{prompt}"],
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_CONFIG": "{home}/opencode.json"},
        {"opencode.json": OPENCODE},
    ),
    "qwen-code": Program(
        ["{bin}/qwen", "--auth-type", "openai", "--yolo", "-p", "{prompt}"],
        {**OPENAI, "OPENAI_MODEL": "scripted"},
    ),
    "gemini-cli": Program(
        ["{bin}/gemini", "--yolo", "--skip-trust", "-m", "gemini-2.5-pro", "-p", "{prompt}"],
        {"GEMINI_API_KEY": "{api_key}", "GOOGLE_GEMINI_BASE_URL": "{root_url}", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        {".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
    ),
    "mini-swe-agent": Program(
        ["{venv}/bin/mini", "-t", "{prompt}", "-y", "--exit-immediately", "-m", "openai/scripted", "-l", "0"],
        {
            **OPENAI,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
        },
        last_command=SUBMIT,
    ),
    "aider": Program(
        ["{venv}/bin/aider", *AIDER_OPTIONS, "--message", "{prompt}", "hello.txt"],
        {**OPENAI, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        texts=[AIDER_EDIT, "Done."],
    ),
    "smolagents": Program(["{venv}/bin/python", "{home}/agent.py", "{prompt}"], OPENAI, {"agent.py": SMOLAGENTS}),
    "openai-agents": Program(["{venv}/bin/python", "{home}/agent.py", "{prompt}"], OPENAI, {"agent.py": OPENAI_AGENTS}),
    "langgraph": Program(["{venv}/bin/python", "{home}/agent.py", "{prompt}"], OPENAI, {"agent.py": LANGGRAPH}),
    "pydantic-ai": Program(["{venv}/bin/python", "{home}/agent.py", "{prompt}"], OPENAI, {"agent.py": PYDANTIC_AI}),
}
# The same programs when their context is full: they sum up their history and go on. Their sub-agents run beside them.
PROGRAMS["codex+compaction"] = replace(
    PROGRAMS["codex"],
    files={".codex/config.toml": "model_auto_compact_token_limit = 50000\n" + CODEX},
    full_at=5,
)
FULL = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50"}
PROGRAMS["claude-code+compaction"] = replace(
    PROGRAMS["claude-code"], env={**PROGRAMS["claude-code"].env, **FULL}, full_at=7
)


class Recorder:
    """Stands between a program and the gateway, and keeps what passes."""

    def __init__(self, attempt: OpenedAttempt) -> None:
        self.attempt = attempt
        self.recorded: list[Recorded] = []
        self.answers: list[tuple[str, int, bytes]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        target = self.attempt.root_url + request.path_qs
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "accept-encoding")
        }
        async with (
            aiohttp.ClientSession(auto_decompress=True) as session,
            session.request(request.method, target, data=body, headers=headers) as reply,
        ):
            content = await reply.read()
            if request.method == "POST" and body:
                kept = {name.lower(): value for name, value in headers.items() if KEPT_HEADERS.match(name.lower())}
                self.recorded.append(Recorded(request.path_qs, kept, json.loads(body), reply.status))
            if reply.status >= 400:
                self.answers.append((request.path_qs, reply.status, content))
            kind = reply.headers.get("Content-Type", "application/json")
            return web.Response(status=reply.status, body=content, headers={"Content-Type": kind})


def openai_server(url: str) -> Any:
    """A Gym with one model server whose endpoint speaks Chat Completions."""
    model = {
        "entrypoint": "app.py",
        "host": "127.0.0.1",
        "port": free_port(),
        "max_retries": 0,
        "openai_base_url": url,
        "openai_api_key": "none",
        "openai_model": "scripted",
        "endpoint": "chat_completions",
    }
    head = {"host": "127.0.0.1", "port": free_port()}
    return OmegaConf.create({"head_server": head, "policy_model": {"responses_api_models": {"openai_model": model}}})


async def record(folder: Path, name: str) -> tuple[Recorder, AttemptReport, str]:
    """Run a program once."""
    program = PROGRAMS[name]
    async with (
        scripted_endpoint(ScriptedModel(program.texts, program.last_command, program.full_at)) as url,
        host_gym(openai_server(url)) as gym,
    ):
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        recorder = Recorder(attempt)
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{rest:.*}", recorder.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with tempfile.TemporaryDirectory() as place:
            output = await run(program, folder, name.partition("+")[0], Path(place), root, attempt.api_key)
            recorder.recorded[:] = [without_machine(each, place, str(folder), root) for each in recorder.recorded]
        await runner.cleanup()
        return recorder, await attempt.close(), output


async def run(program: Program, folder: Path, name: str, place: Path, root: str, key: str) -> str:
    """Run the program in folders of its own; what it wrote."""
    home, work = place / "home", place / "work"
    home.mkdir()
    work.mkdir()
    (work / "notes.md").write_text("# Notes\n")
    values = {
        "root_url": root,
        "base_url": f"{root}/v1",
        "api_key": key,
        "prompt": PROMPT,
        "home": str(home),
        "bin": str(folder / name / "node_modules" / ".bin"),
        "venv": str(folder / f"venv-{name}"),
    }

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)

    for path, text in program.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(filled(text))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1"}
    environment |= {variable: filled(text) for variable, text in program.env.items()}
    process = await asyncio.create_subprocess_exec(
        *map(filled, program.command),
        cwd=work,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    except TimeoutError:
        output = b"(it took too long)"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    wrote = (work / "hello.txt").exists()
    return f"exit {process.returncode}, wrote hello.txt: {wrote}\n{output.decode(errors='replace')[-1500:]}"


def version_of(folder: Path, name: str) -> str:
    """The version of an installed program."""
    name = name.partition("+")[0]
    packages = {"codex": "@openai/codex", "claude-code": "@anthropic-ai/claude-code", "opencode": "opencode-ai"}
    packages |= {"qwen-code": "@qwen-code/qwen-code", "gemini-cli": "@google/gemini-cli"}
    names = {"aider": "aider_chat", "langgraph": "langgraph", "pydantic-ai": "pydantic_ai_slim"}
    if name in packages:
        described = folder / name / "node_modules" / packages[name] / "package.json"
        return str(json.loads(described.read_text())["version"])
    stem = names.get(name, name.replace("-", "_"))
    [found] = (folder / f"venv-{name}").glob(f"lib/python*/site-packages/{stem}-*.dist-info")
    return found.name.removeprefix(f"{stem}-").removesuffix(".dist-info")


async def main(folder: Path, names: list[str]) -> None:
    """Record programs one after the other."""
    for name in names:
        recorder, report, output = await record(folder, name)
        shown = report.model_dump(exclude={"response"})
        sys.stdout.write(
            f"== {name} {version_of(folder, name)}: {len(recorder.recorded)} requests\n{output}\n{shown}\n"
        )
        for path, status, content in recorder.answers:
            sys.stdout.write(f"   {status} {path}: {content[:600]!r}\n")
        write_recording(name, version_of(folder, name), recorder.recorded)


if __name__ == "__main__":
    assert shutil.which("node"), "most of these programs need Node.js"
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
