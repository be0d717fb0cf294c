"""Any program as the agent: Codex, Claude Code, a script. It is started for each attempt and scored by what it does.

Each attempt has a fresh home, a fresh workspace, an address and a key of its own for the model, and limits. Its model
calls are captured on their way; the README lists the settings. ``entrypoint: my_agent.py:solve`` runs a function
instead.
"""

import asyncio
import os
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from pydantic import PrivateAttr

from nemo_gym.api.gateway_agents import GatewayAgent, GatewayAgentConfig, GatewayTask, Work
from nemo_gym.api.session_functions import load_agent_function, session_agent
from nemo_gym.base_responses_api_agent import Json
from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import user_cache
from nemo_gym.programs.attempt_folder import AttemptFolder, AttemptFolders, read_regular
from nemo_gym.programs.endings import AnswerError, Masking, Unscored, answer_in, judge, tail
from nemo_gym.programs.installation import Installation
from nemo_gym.programs.keeper import Ended, Start
from nemo_gym.programs.memory import MemoryGate, MemoryPlace
from nemo_gym.programs.program import Program
from nemo_gym.programs.running import run_program
from nemo_gym.programs.sandboxed import open_program_world
from nemo_gym.sandbox import LazyRunner, SandboxSettings
from nemo_gym.schemas.rows import FailureClass
from nemo_gym.servers.attempts import OpenedAttempt
from nemo_gym.servers.opening import open_for

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LARGEST_ANSWER: Final = 1 << 20
FUNCTION: Final = "function"
UNFINISHED: Final = (FailureClass.AGENT_TIMEOUT, FailureClass.AGENT_MEMORY)


class ProgramAgentConfig(GatewayAgentConfig, Program):
    """The program, and the servers that it uses."""

    function: str | None = None  # FILE:NAME of a function that works in place of a program


@dataclass(slots=True, kw_only=True)
class ProgramWork(Work):
    """What a program has done, and how it ended."""

    ended: Ended
    unreadable: str = ""  # why its answer can't be read


class Places(NamedTuple):
    """Where a program finds the model, the tools and its folders: on this machine, or as seen from its sandbox."""

    root_url: str
    mcp_url: str
    home: str
    workspace: str


class ProgramAgent(GatewayAgent):
    """An agent that starts a program for each attempt."""

    config: ProgramAgentConfig
    _gate: MemoryGate = PrivateAttr()
    _installed: Installation = PrivateAttr()
    _versions: dict[str, str] = PrivateAttr(default_factory=dict)
    _runner: LazyRunner = PrivateAttr(default_factory=lambda: LazyRunner(SandboxSettings(isolation="namespaces")))
    _folders: AttemptFolders = PrivateAttr(default_factory=AttemptFolders)

    @classmethod
    def named_by(cls, settings: dict[str, Any]) -> tuple[type[GatewayAgent], dict[str, Any]]:
        """The class of the function that the settings name; without one, this."""
        if not settings.get(FUNCTION):
            return cls, settings
        return session_agent(load_agent_function(settings[FUNCTION])), settings

    def setup_webserver(self) -> FastAPI:
        """Build the app, if the program is installed."""
        config = self.config
        self._gate = MemoryGate(most=config.memory_mb * (1 << 20) if config.memory_mb else None)
        self._installed = Installation.of(config.title, config.install, user_cache(os.environ))
        self._installed.require(config.title)
        self._versions = self._installed.versions()
        if not config.command:
            raise ConfigError(
                f"{config.name} has no command", hint="set command: [my-program, '{prompt}'], or program:"
            )
        if not config.install and shutil.which(config.command[0], path=self._search_path) is None:
            raise ConfigError(
                f"{config.name}: there is no program {config.command[0]!r} on {self._search_path}",
                hint="give its full path, or its package under install:",
            )
        self._folders.remove_abandoned()
        return super().setup_webserver()

    @property
    def _search_path(self) -> str:
        # In a sandbox, the folder of a virtual environment is not there, but the interpreter itself is.
        interpreters = (Path(sys.executable).parent, Path(sys.executable).resolve().parent)
        return ":".join([*self._installed.search_path, *map(str, dict.fromkeys(interpreters)), SYSTEM_PATH])

    async def work(self, task: GatewayTask, attempt: OpenedAttempt) -> ProgramWork:
        """Run the program in a folder of its own, when there is memory for it."""
        async with self._gate.place() as place, self._folders.attempt() as folder:
            run = self._run_in_sandbox if self.config.where == "sandbox" else self._run_on_host
            ended, mask = await run(task, attempt, folder, place)
            place.note(ended.peak_bytes)
            ended = replace(ended, stdout=mask(ended.stdout), stderr=mask(ended.stderr), error=mask(ended.error))
            changes = await asyncio.to_thread(folder.changes)
            done = ProgramWork(ended=ended, facts=self._facts(ended))
            if task.workspace_files or changes.diff:
                done.workspace = changes.as_fields() | {"diff": mask(changes.diff)}
            try:
                done.answer = self._answer(ended, folder)
            except AnswerError as error:
                done.unreadable = str(error)
            return done

    def judge(self, work: Work, report: AttemptReport) -> Unscored | None:
        """Why the work is not scored; None if it is."""
        assert isinstance(work, ProgramWork)
        config = self.config
        ending = judge(work.ended, report, timeout_s=config.timeout_s, memory_mb=config.memory_mb)
        if ending is None:
            return Unscored(FailureClass.AGENT_CRASH, work.unreadable) if work.unreadable else None
        if config.verify_unfinished and report.answered and ending.kind in UNFINISHED:
            work.facts["unfinished"] = ending.message
            return None
        return ending

    async def _run_on_host(
        self, task: GatewayTask, attempt: OpenedAttempt, folder: AttemptFolder, place: MemoryPlace
    ) -> tuple[Ended, Masking]:
        places = Places(attempt.root_url, self._mcp_url(task), str(folder.home), str(folder.workspace))
        filled = self.config.filled(self._values(task, attempt, places))
        environment = self._environment(places.home, str(folder.temporary)) | filled.environment
        await asyncio.to_thread(folder.write, {**task.workspace_files, **filled.files})
        ended = await run_program(self._start(filled.command, environment, folder), folder.scratch, place.note)
        return ended, Masking(environment, [attempt.api_key])

    async def _run_in_sandbox(
        self, task: GatewayTask, attempt: OpenedAttempt, folder: AttemptFolder, place: MemoryPlace
    ) -> tuple[Ended, Masking]:
        del place  # what it uses is known when it has ended
        config, runner, mcp_url = self.config, await self._runner.get(), self._mcp_url(task)
        readable = [self._installed.folder] if self._installed.packages else []
        async with open_for(attempt.root_url, *([mcp_url] if mcp_url else ())) as opening:
            inside = await open_program_world(
                runner, readable=readable, port=opening.port, memory_mb=config.memory_mb, timeout_s=config.timeout_s
            )
            try:
                url = opening.address(mcp_url) if mcp_url else ""
                places = Places(opening.address(attempt.root_url), url, inside.home, inside.workspace)
                filled = config.filled(self._values(task, attempt, places))
                environment = self._environment(places.home, inside.temporary) | filled.environment
                await asyncio.to_thread(folder.write, {**task.workspace_files, **filled.files})
                ended = await inside.run(filled.command, environment, folder, config.timeout_s)
            finally:
                await inside.world.stop()
        return ended, Masking(environment, [attempt.api_key])

    def _mcp_url(self, task: GatewayTask) -> str:
        path = task.mcp_path()
        return "" if path is None else self.address_of(self.config.resources_server.name) + path

    def _start(self, command: list[str], environment: dict[str, str], folder: AttemptFolder) -> Start:
        return Start(
            command=command,
            environment=environment,
            folder=str(folder.workspace),
            timeout_s=self.config.timeout_s,
            grace_s=self.config.grace_s,
            memory_mb=self.config.memory_mb,
            attempt_folder=str(folder.root),
        )

    def _values(self, task: GatewayTask, attempt: OpenedAttempt, places: Places) -> dict[str, str]:
        """What the templates are filled with."""
        return {
            "base_url": f"{places.root_url}/v1",
            "root_url": places.root_url,
            "api_key": attempt.api_key,
            "model": self.model_name,
            "prompt": task.prompt,
            "mcp_url": places.mcp_url,
            "deadline": f"{time.time() + self.config.timeout_s:.0f}",
            "home": places.home,
            "workspace": places.workspace,
        }

    def _environment(self, home: str, temporary: str) -> dict[str, str]:
        """The environment of the program, which has nothing of ours: it may hold keys."""
        return {
            "PATH": self._search_path,
            "HOME": home,
            "TMPDIR": temporary,
            "USER": "agent",
            "LOGNAME": "agent",
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "CI": "1",
        }

    def _answer(self, ended: Ended, folder: AttemptFolder) -> str | None:
        """The final answer, if it is not the last text of the main chain. Raises ``AnswerError``."""
        kind, _, where = self.config.final_answer.partition(":")
        if kind == "stdout":
            return ended.stdout.strip()
        if kind == "json":
            return answer_in(ended.stdout, where)
        if kind == "file":
            content = read_regular(folder.workspace, where, most=LARGEST_ANSWER)
            if content is None:
                raise AnswerError(f"the program did not write its answer to {where}")
            return content.decode(errors="replace").strip()
        return None

    def _facts(self, ended: Ended) -> Json:
        """What the row says about the program."""
        facts = {
            "name": self.config.title,
            "versions": self._versions,
            "exit_code": ended.exit_code,
            "seconds": ended.seconds,
            "cpu_s": ended.cpu_s,
            "peak_mb": round(ended.peak_bytes / (1 << 20), 1),
            "limit": ended.limit,
            "stderr": tail(ended.stderr),
            "left_running": not ended.all_ended,
        }
        return {name: value for name, value in facts.items() if value or name == "exit_code"}


if __name__ == "__main__":
    ProgramAgent.run_webserver()
